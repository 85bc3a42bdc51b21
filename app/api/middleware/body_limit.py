"""A limit on request bodies, kept while they stream.

Guaranteed: a body whose Content-Length is beyond the limit is refused before any of it is
read; one that turns out longer is refused when the limit is passed, whatever the application
makes of the interruption. No more than one chunk beyond the limit is ever handed on. The 413
names the limit and the setting that raises it.

Not handled: a body that passes the limit after the response has begun. The reading fails,
and the response ends as the application ends it.
"""

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import instance_of, problem_response, request_id_of
from app.errors import TooLargeError

_NDJSON = "application/x-ndjson"
_MAX_LENGTH_DIGITS = 18


@dataclass(frozen=True, slots=True)
class _Limit:
    max_bytes: int
    setting: str

    def error(self) -> TooLargeError:
        return TooLargeError(
            f"The body is larger than {self.max_bytes} bytes, the limit that {self.setting} "
            "sets: send less, or several requests.",
            extra={"limitBytes": self.max_bytes},
        )


class BodyLimitMiddleware:
    """`max_load_bytes` is for NDJSON, `max_body_bytes` for all other bodies; both inclusive."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, max_load_bytes: int) -> None:
        self.app = app
        self._body = _Limit(max_body_bytes, "CTXSNAP_MAX_BODY_BYTES")
        self._load = _Limit(max_load_bytes, "CTXSNAP_MAX_LOAD_BYTES")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        essence = headers.get("content-type", "").partition(";")[0].strip().lower()
        limit = self._load if essence == _NDJSON else self._body
        if _declared_bytes(headers) > limit.max_bytes:
            await _refuse(limit, scope, receive, send)
            return
        body = _LimitedBody(limit, receive, send)
        try:
            await self.app(scope, body.receive, body.send)
        except Exception:
            # Whatever came of the interruption, the caller is told its cause.
            if not body.is_refusable:
                raise
        if body.is_refusable:
            await _refuse(limit, scope, receive, send)


class _LimitedBody:
    """Both channels of one request: counts what comes in, holds back answers once too much."""

    def __init__(self, limit: _Limit, receive: Receive, send: Send) -> None:
        self._limit = limit
        self._receive = receive
        self._send = send
        self._received_bytes = 0
        self._response_started = False

    @property
    def _is_exceeded(self) -> bool:
        return self._received_bytes > self._limit.max_bytes

    @property
    def is_refusable(self) -> bool:
        return self._is_exceeded and not self._response_started

    async def receive(self) -> Message:
        if self._is_exceeded:
            raise self._limit.error()
        message = await self._receive()
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            if self._is_exceeded:
                raise self._limit.error()
        return message

    async def send(self, message: Message) -> None:
        if self.is_refusable:
            return
        self._response_started = True
        await self._send(message)


async def _refuse(limit: _Limit, scope: Scope, receive: Receive, send: Send) -> None:
    response = problem_response(
        limit.error(), instance=instance_of(scope), request_id=request_id_of(scope)
    )
    await response(scope, receive, send)


def _declared_bytes(headers: Headers) -> int:
    """The Content-Length, 0 where there is none; servers refuse what is not a number."""
    digits = headers.get("content-length", "").strip().lstrip("0")
    if not (digits.isascii() and digits.isdigit()):
        return 0
    return int(digits[:_MAX_LENGTH_DIGITS]) if len(digits) <= _MAX_LENGTH_DIGITS else 10**18
