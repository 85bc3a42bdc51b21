"""One id for each request: in the scope, the response and every log line.

Guaranteed: `scope["state"]["request_id"]` is 1 to 128 of `A-Z a-z 0-9 . _ -`; every response
carries it once as `X-Request-Id`; log lines written during the request carry it as
`request_id`, those of concurrent requests theirs.

Not handled: whether a caller's id is unique; it is taken as it comes.
"""

import re
from collections.abc import Callable
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
_ACCEPTABLE = re.compile(r"[A-Za-z0-9._-]{1,128}")


def _random_id() -> str:
    return str(uuid4())


class RequestIdMiddleware:
    """Takes the caller's `X-Request-Id` where it is well-formed, else one from `new_id`."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str] = _random_id) -> None:
        self.app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist(HEADER)
        if len(given) == 1 and _ACCEPTABLE.fullmatch(given[0]):
            request_id = given[0]
        else:
            request_id = self._new_id()
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self.app(scope, receive, send_with_id)
