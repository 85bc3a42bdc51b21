"""Bounded work: so many requests at once, so many waiting for their turn, and no more.

Guaranteed: what is beyond both bounds is answered 503 `overloaded` with Retry-After at once,
before its body is read, and without the database: it is in the metrics and log lines, not in
the audit log. Who waits is let in by order of arrival; waiting holds no body and no
connection of the database. Reading calls, health, readiness and metrics never wait.

Not handled: other processes; the bounds are those of this one. A caller that sends its body
slowly holds its place until the deadline.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.audit_trail import Trail
from app.api.routing import note_route
from app.errors import UnavailableError
from app.metrics import Metrics

_WORKING_METHODS = frozenset({"POST", "PUT", "DELETE"})

_log = structlog.get_logger()


class AdmissionMiddleware:
    """Stands inside of the deadline, so that waiting counts, and outside of the body."""

    def __init__(
        self, app: ASGIApp, *, max_concurrent: int, max_queued: int, metrics: Metrics
    ) -> None:
        self.app = app
        self._slots = asyncio.Semaphore(max_concurrent)
        self._max_queued = max_queued
        self._waiting = 0
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WORKING_METHODS:
            await self.app(scope, receive, send)
            return
        if self._slots.locked() and self._waiting >= self._max_queued:
            note_route(scope)
            trail: Trail = scope["state"]["trail"]
            trail.leave_out()
            _log.warning("overloaded", waiting=self._waiting)
            raise UnavailableError(
                "Too many requests are under way; try again shortly.", code="overloaded"
            )
        async with self._slot():
            await self.app(scope, receive, send)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            with self._metrics.queued_requests.track_inprogress():
                await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            with self._metrics.admitted_requests.track_inprogress():
                yield
        finally:
            self._slots.release()
