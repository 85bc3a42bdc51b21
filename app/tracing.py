"""Traces by the OpenTelemetry API: spans of a request's stages, and W3C trace context.

Guarantees: spans have constant names, and as attributes numbers and names that operators gave;
no text of an exception, query or content. Without an SDK in the process nothing is recorded,
and the caller's trace context is still handed on.

Not handled: setting up an SDK and an exporter, which is the operator's (`opentelemetry-instrument`,
or a module of theirs).
"""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_tracer = trace.get_tracer("ctxsnap")
_propagator = TraceContextTextMapPropagator()


@contextmanager
def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    context: Context | None = None,
    **attributes: str | int,
) -> Iterator[Span]:
    """A span around the block; `failed` where the block raises, without the exception's text."""
    named = {f"ctxsnap.{key}": value for key, value in attributes.items()}
    with _tracer.start_as_current_span(
        name,
        kind=kind,
        context=context,
        attributes=named,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException:
            current.set_status(Status(StatusCode.ERROR))
            raise


def incoming_context(traceparents: Sequence[str], tracestates: Sequence[str]) -> Context:
    """The caller's context; an empty one where its fields are malformed, or come twice."""
    if len(traceparents) != 1:
        return Context()
    carrier = {"traceparent": traceparents[0], "tracestate": ",".join(tracestates)}
    return _propagator.extract(carrier, Context())


class OutgoingRequest(Protocol):
    """A request to elsewhere, before it is sent."""

    @property
    def headers(self) -> MutableMapping[str, str]: ...


async def hand_on_with(request: OutgoingRequest) -> None:
    """Add the current context to the request's header fields, if there is one."""
    _propagator.inject(request.headers)


def trace_id() -> str | None:
    """32 hexadecimal digits, while a trace is known."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
