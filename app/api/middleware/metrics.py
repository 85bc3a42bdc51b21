"""Counts and times requests by route template, so that no caller's words become labels."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
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
