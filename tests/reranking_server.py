"""A real re-ranking endpoint on a port of its own: relevance is the share of common words.

It answers as Cohere and Jina do, or as TEI does, by what it is asked; and wrongly on demand.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.api.service import Json

Fault = Literal["hang", "500", "nan", "twice", "missing", "10 MB"]
_TEN_MEGABYTES = 10_000_000


def overlap(query: str, text: str) -> float:
    """Of the words of both, those that both have."""
    mine, theirs = set(query.split()), set(text.split())
    return len(mine & theirs) / len(mine | theirs)


@dataclass
class RerankingServer:
    """`fault` changes what it answers from now on; `requests` are all that it was sent."""

    url: str = ""
    fault: Fault | None = None
    requests: list[Json] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def texts(self) -> list[str]:
        """All that it was shown, in order."""
        return [
            text
            for one in self.requests
            for text in one["texts" if "texts" in one else "documents"]
        ]

    def answer(self, asked: Json) -> tuple[int, bytes]:
        self.requests.append(asked)
        name, texts = ("score", asked["texts"]) if "texts" in asked else (
            "relevance_score", asked["documents"]
        )  # fmt: skip
        results: list[Json] = [
            {"index": at, name: overlap(asked["query"], text)} for at, text in enumerate(texts)
        ]
        results.sort(key=lambda one: -one[name])
        status = 200
        if self.fault == "hang":
            self.released.wait()
        elif self.fault == "500":
            status = 500
        elif self.fault == "nan":
            results[0][name] = float("nan")
        elif self.fault == "twice":
            results[-1] = results[0]
        elif self.fault == "missing":
            results.pop()
        # Python's own JSON, which spells NaN as well.
        body = json.dumps(results if "texts" in asked else {"results": results}).encode()
        if self.fault == "10 MB":
            body += b" " * _TEN_MEGABYTES
        return status, body


@contextmanager
def running_reranking_server() -> Iterator[RerankingServer]:
    served = RerankingServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = self.path == "/v1/rerank"
            status, body = served.answer(asked) if known else (404, b"")
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                # Whoever asked has hung up: that is what some tests are about.
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield served
        finally:
            served.released.set()
            server.shutdown()
            thread.join()
