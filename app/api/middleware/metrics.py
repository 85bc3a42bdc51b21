"""Counts and times requests by route template, and problems by code: never by callers' words."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problem_document import problem_code
from app.metrics import Metrics


class MetricsMiddleware:
    """Pure ASGI."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        head: Message | None = None

        async def watch(message: Message) -> None:
            nonlocal status, head
            if message["type"] == "http.response.start":
                status, head = message["status"], message
            elif head is not None:
                code, head = problem_code(head, message), None
                if code is not None:
                    self._metrics.refusals.labels(code).inc()
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            found = scope.get("route")
            route = getattr(found, "path", "unmatched")
            # A caller may send any word for a method.
            known = scope["method"] in (getattr(found, "methods", None) or ())
            method = scope["method"] if known else "any"
            self._metrics.requests.labels(method, route, str(status)).inc()
            self._metrics.request_seconds.labels(method, route).observe(
                time.perf_counter() - started
            )
