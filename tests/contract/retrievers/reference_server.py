"""A server that speaks the retriever contract, over real sockets, before a real store.

Each query and each honest answer is checked against openapi/retriever.json.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from jsonschema import Draft202012Validator

from app.retrieval.retriever import SCOPE_PARTS
from tests.contract.retrievers.sqlite_store import SqliteStore

Json = dict[str, Any]
Reply = tuple[int, dict[str, str], bytes]

CONTRACT: Json = json.loads(
    (Path(__file__).parents[3] / "openapi" / "retriever.json").read_text(encoding="utf-8")
)


def conforms(schema: str, document: Any) -> None:
    """Raises ValidationError for what the contract does not have."""
    whole = {**CONTRACT, "$ref": f"#/components/schemas/{schema}"}
    Draft202012Validator(whole).validate(document)


def reply(document: Any, status: int = 200, **headers: str) -> Reply:
    return status, headers, json.dumps(document).encode()


@dataclass
class ReferenceServer:
    """`instead` answers in place of the store; `asked` are the queries so far."""

    store: SqliteStore
    url: str = ""
    filters: tuple[str, ...] = SCOPE_PARTS
    instead: Callable[[Json], Reply] | None = None
    asked: list[Json] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    traces: list[str | None] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    calls: int = 0
    """Of every operation, also of those that ended in nothing."""

    def answer(self, path: str, asked: Json) -> Reply:
        self.calls += 1
        if path == "/base/capabilities":
            conforms("CapabilitiesQuery", asked)
            told = {"contract": 1, "filters": list(self.filters)}
            conforms("Capabilities", told)
            return reply(told)
        assert path == "/base/retrieve", path
        conforms("Query", asked)
        self.asked.append(asked)
        if self.instead is not None:
            return self.instead(asked)
        found = self.store.search(asked)
        conforms("Answer", found)
        return reply(found)


class _Handler(BaseHTTPRequestHandler):
    server_of: ClassVar[ReferenceServer]
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        server = self.server_of
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.keys.append(self.headers.get("Authorization"))
        server.traces.append(self.headers.get("traceparent"))
        try:
            status, headers, content = server.answer(self.path, json.loads(body))
        except Exception as error:
            server.failures.append(error)
            status, headers, content = 400, {}, b"{}"
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            # Whoever asked has gone.
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing on the test's output."""


@contextmanager
def running_reference_server(folder: Path) -> Iterator[ReferenceServer]:
    """Its base URL has a path of its own. What was not in the contract's form fails the test."""
    server = ReferenceServer(SqliteStore(folder / "retriever.sqlite"))
    handler = type("Handler", (_Handler,), {"server_of": server})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        listening.daemon_threads = True
        server.url = f"http://127.0.0.1:{listening.server_address[1]}/base"
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
            server.store.close()
    assert server.failures == []
