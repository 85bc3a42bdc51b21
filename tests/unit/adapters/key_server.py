"""A real HTTP key server on loopback that tests can turn, break and slow down."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class KeyServer:
    """What the server answers next, and how often it was asked."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/jwks.json"
        self.body = b""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.paths: list[str] = []
        self.reached = threading.Event()
        self.open = threading.Event()
        self.open.set()

    @property
    def asked(self) -> int:
        return len(self.paths)


@contextmanager
def running_key_server() -> Iterator[KeyServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.paths.append(self.path)
            keys.reached.set()
            keys.open.wait(timeout=10)
            self.send_response(keys.status)
            for name, value in keys.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(keys.body)))
            self.end_headers()
            try:
                self.wfile.write(keys.body)
            except (BrokenPipeError, ConnectionResetError):
                # The reader has hung up, as it should for an answer that is too large.
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    keys = KeyServer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield keys
    finally:
        keys.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
