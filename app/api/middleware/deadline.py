"""Ends a request at its deadline, and when its caller has left.

Guaranteed: past the deadline the answer is 504 and nothing is stored, or else the request
was being stored already and its own answer comes. When the caller closes the connection,
the work ends, statements of the database included; no task is left. An answer that has
begun is never cut off.

Not handled: a caller that leaves while its body is still to be read, in the queue for example.
It is noticed when the body is read.
"""

import asyncio
import re
from contextlib import suppress

import structlog
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.routing import note_route
from app.errors import DeadlineExceededError
from app.interruption import Interruption, interruptible
from app.metrics import Metrics

HEADER = "Request-Timeout-Ms"
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,8}")

_log = structlog.get_logger()


class DeadlineMiddleware:
    """`timeout_s` is for requests that name no deadline, and the longest that one may name."""

    def __init__(
        self, app: ASGIApp, *, timeout_s: float, metrics: Metrics, public_paths: frozenset[str]
    ) -> None:
        self.app = app
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._public_paths = public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._public_paths:
            await self.app(scope, receive, send)
            return
        try:
            limit_s = min(self._timeout_s, _asked_s(scope) or self._timeout_s)
        except RequestValidationError:
            note_route(scope)
            raise
        try:
            async with interruptible(limit_s) as interruption:
                await self._answer(scope, receive, send, interruption)
        except TimeoutError as error:
            if not interruption.happened:
                raise
            if interruption.caller_left:
                self._metrics.callers_left.inc()
                _log.info("caller_left")
                return
            if "route" not in scope:
                note_route(scope)
            raise DeadlineExceededError(
                f"The request was not done within {round(limit_s * 1000)} ms, and nothing of it "
                f"is stored: ask for less, or allow more with {HEADER}, up to "
                f"{round(self._timeout_s * 1000)}."
            ) from error

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, interruption: Interruption
    ) -> None:
        watch = _Watch(receive, interruption)
        if _has_no_body(scope):
            await watch.begin()

        async def begin_answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                interruption.rule_out()
            await send(message)

        try:
            await self.app(scope, watch.receive, begin_answer)
        finally:
            await watch.end()


class _Watch:
    """The request's messages for the application; behind the body, the caller's leaving."""

    def __init__(self, receive: Receive, interruption: Interruption) -> None:
        self._receive = receive
        self._interruption = interruption
        self._first: Message | None = None
        self._leaving: asyncio.Task[Message] | None = None

    async def begin(self) -> None:
        """Watch at once: there is no body to wait for."""
        self._first = await self._receive_one()

    async def receive(self) -> Message:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._leaving is not None:
            # Shielded: who waits here may give up, and the watch goes on.
            return await asyncio.shield(self._leaving)
        return await self._receive_one()

    async def _receive_one(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._leaving = asyncio.create_task(self._see_leaving(), name="caller-watch")
        return message

    async def _see_leaving(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._interruption.end_for_absent_caller()
        return message

    async def end(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            with suppress(asyncio.CancelledError):
                await self._leaving


def _asked_s(scope: Scope) -> float | None:
    """Seconds that the caller allows; RequestValidationError for what is no such number."""
    values = Headers(scope=scope).getlist(HEADER)
    if not values:
        return None
    if len(values) > 1 or not _MILLISECONDS.fullmatch(values[0]):
        sentence = "Must be one whole number of milliseconds, from 1 to 999999999."
        fault = {"type": "milliseconds", "loc": ("header", HEADER), "msg": sentence}
        raise RequestValidationError([fault])
    return int(values[0]) / 1000


def _has_no_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"
