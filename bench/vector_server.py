"""An embedding endpoint that answers with vectors that were made before, or are made here."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Vectors = Callable[[str], list[float] | None]
"""The vector of a text, prefix included; None for one that has none."""


@contextmanager
def serve_vectors(vectors: Vectors) -> Iterator[str]:
    """The base URL of an OpenAI-compatible server that gives these vectors."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(vectors))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()


def _handler(vectors: Vectors) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = [vectors(text) for text in request["input"]]
            entries = [{"index": at, "embedding": one} for at, one in enumerate(found)]
            body = json.dumps({"data": entries}).encode()
            self.send_response(404 if None in found else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Thousands of requests."""

    return Handler
