"""The HTTP server: a socket that is bound first, uvicorn on it, and failures as sentences.

Guarantees: the port is known before the application starts; an application that cannot
start is the ServiceError that says why, not a stack trace; log lines of the server are JSON
like all others; requests under way get time to finish when the server is told to stop.
"""

import errno
import logging
import os
import socket
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from app.errors import ConfigurationError, ServiceError

_STOP_TIMEOUT_S = 20
_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""Longer than balancers (60 s) and clients (5 s) keep a connection that nothing comes over: whoever
closes it must not be the one that a request is on its way to.
"""

_AsgiApp = Callable[..., Any]


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises ConfigurationError."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.create_server((str(address[0]), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # Python's own sentence repeats the address.
        known = error.errno in errno.errorcode
        reason = os.strerror(error.errno or 0) if known else error.strerror
        raise ConfigurationError(
            f"Cannot listen on {host}, port {port} ({reason}): choose another with --host and "
            "--port, or CTXSNAP_HOST and CTXSNAP_PORT."
        ) from error
    # asyncio sets it for sockets that name their protocol, and those of create_server do not:
    # an answer's body would wait for the acknowledgement of its head, 40 ms (measured).
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def url_of(bound: socket.socket) -> str:
    """The URL by which this machine reaches a bound socket."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared only
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """One application on one bound socket; `on_started` is called once it takes requests."""

    def __init__(
        self, app: _AsgiApp, bound: socket.socket, on_started: Callable[[], None] | None = None
    ) -> None:
        self._lifespan = _Lifespan(app)
        self._bound = bound
        self._on_started = on_started
        super().__init__(
            uvicorn.Config(
                self._lifespan,
                http=AutoHTTPProtocol,
                ws="none",
                lifespan="on",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_STOP_TIMEOUT_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_started is not None and not self.should_exit:
            self._on_started()

    def run_until_stopped(self) -> None:
        """Serve; raises the ServiceError that kept the application from starting or stopping."""
        # That the application did not start is said by its error, once.
        _log_as_json(lambda _: self._lifespan.error is None)
        try:
            self.run(sockets=[self._bound])
        except SystemExit:
            # uvicorn's way to say that the application did not start.
            if self._lifespan.error is None:
                raise
        finally:
            self._bound.close()
        if self._lifespan.error is not None:
            raise self._lifespan.error


class _Lifespan:
    """Keeps the ServiceError that ended the application's lifespan from becoming a trace."""

    def __init__(self, app: _AsgiApp) -> None:
        self._app = app
        self.error: ServiceError | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        failed: list[dict[str, Any]] = []

        async def hold_failures(message: dict[str, Any]) -> None:
            if message["type"].endswith(".failed"):
                failed.append(message)
            else:
                await send(message)

        try:
            await self._app(scope, receive, hold_failures)
        except ServiceError as error:
            self.error = error
            for message in failed:
                await send({"type": message["type"]})
        except BaseException:
            for message in failed:
                await send(message)
            raise


def _log_as_json(is_wanted: Callable[[logging.LogRecord], bool]) -> None:
    """Give uvicorn's own log lines the form of all others; texts of exceptions stay out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.add_logger_name,
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _without_traces,
                structlog.processors.JSONRenderer(),
            ]
        )
    )
    handler.addFilter(is_wanted)
    logger = logging.getLogger("uvicorn")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING)


def _without_traces(
    _logger: Any, _name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event.pop("exc_info", None)
    return event
