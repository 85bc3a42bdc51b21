"""One span for each request, in the caller's trace where it names one (W3C Trace Context).

Guaranteed: a `traceparent` that is malformed or comes twice is ignored, with its `tracestate`;
log lines carry `trace_id` while a trace is known; the span names the route's template, never
the path that was asked for.
"""

import structlog
from opentelemetry.trace import SpanKind, Status, StatusCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.tracing import incoming_context, span, trace_id


class TraceMiddleware:
    """Pure ASGI; stands right inside of the request id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = incoming_context(headers.getlist("traceparent"), headers.getlist("tracestate"))
        with span("request", kind=SpanKind.SERVER, context=context) as current:

            async def note_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    current.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        current.set_status(Status(StatusCode.ERROR))
                await send(message)

            known = trace_id()
            bound = {} if known is None else {"trace_id": known}
            try:
                with structlog.contextvars.bound_contextvars(**bound):
                    await self.app(scope, receive, note_status)
            finally:
                # Of a route that does not take the method nothing but the template is known.
                current.set_attribute(
                    "http.route", getattr(scope.get("route"), "path", "unmatched")
                )
