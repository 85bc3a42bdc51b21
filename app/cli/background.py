"""The service in a thread of this process, for as long as a command needs it.

Guarantees: it is stopped, the embedded database included, however the block is left; an
application that does not start is the ServiceError that says why.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from app.cli.client import ServiceClient
from app.cli.server import Server, listen, url_of
from app.config import Settings
from app.errors import ServiceError, UnavailableError

_START_TIMEOUT_S = 180.0
_POLL_S = 0.05


@contextmanager
def running_service(settings: Settings) -> Iterator[str]:
    """The URL of a service that is ready. Only for the main thread, because of the signals."""
    # A second of imports that the other commands can do without.
    from app.main import create_app  # noqa: PLC0415

    bound = listen(settings.host, settings.port)
    url = url_of(bound)
    # Ended by SIGTERM, the block is left as by Ctrl-C, and not cut off.
    signal.signal(signal.SIGTERM, _leave)
    thread = _ServerThread(Server(create_app(settings), bound))
    thread.start()
    try:
        _wait_until_ready(thread, url)
        yield url
    finally:
        thread.server.should_exit = True
        thread.join()


class _ServerThread(threading.Thread):
    def __init__(self, server: Server) -> None:
        super().__init__(name="service")
        self.server = server
        self.error: ServiceError | None = None

    def run(self) -> None:
        try:
            self.server.run_until_stopped()
        except ServiceError as error:
            self.error = error


def _wait_until_ready(thread: _ServerThread, url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    with ServiceClient(url, None) as client:
        # The socket takes connections before the server does: asked too early, a call hangs.
        while not (thread.server.started and client.is_ready()):
            if not thread.is_alive():
                raise thread.error or UnavailableError("The service stopped while it started.")
            if time.monotonic() > deadline:
                raise UnavailableError(f"The service was not ready in {_START_TIMEOUT_S:.0f} s.")
            time.sleep(_POLL_S)


def _leave(signal_number: int, _: FrameType | None) -> None:
    sys.exit(128 + signal_number)
