"""Spans of a request's stages, in the caller's trace, and the trace's id in the log lines."""

import json
import re
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from app import tracing
from tests.api.service import Api, question, source

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
MALFORMED = [
    "",
    "x",
    TRACE,
    f"00-{TRACE}-{PARENT}",
    f"00-{TRACE}-{PARENT}-01-more",
    f"ff-{TRACE}-{PARENT}-01",
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE.upper()}-{PARENT}-01",
    f"00-{TRACE[:-1]}-{PARENT}-01",
    f"00-{'g' * 32}-{PARENT}-01",
    TRACEPARENT * 1000,
]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """An SDK of the test's own, as an operator would bring."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


async def _asked(api: Api, **headers: str) -> httpx.Response:
    sent = {**api.headers(), **headers}
    return await api.client.post("/snapshots", json=question("cancel"), headers=sent)


def _named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    [found] = [one for one in exporter.get_finished_spans() if one.name == name]
    return found


async def test_stages_and_retrievers_have_spans_in_the_caller_s_trace(
    api: Api, spans: InMemorySpanExporter
) -> None:
    await api.index(source("canary.md", "cancel canary"))
    spans.clear()
    answer = await _asked(api, traceparent=TRACEPARENT, tracestate="vendor=1")
    assert answer.status_code == 201
    request = _named(spans, "request")
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT
    assert dict(request.attributes or {}) == {
        "http.response.status_code": 201,
        "http.route": "/snapshots",
    }
    for stage in ("retrieval", "assembly", "storage"):
        parent = _named(spans, stage).parent
        assert parent is not None
        assert parent.span_id == request.context.span_id
    leg = _named(spans, "retriever")
    assert leg.attributes == {"ctxsnap.retriever": "lexical"}
    assert leg.parent is not None
    assert leg.parent.span_id == _named(spans, "retrieval").context.span_id
    finished = spans.get_finished_spans()
    assert {f"{one.context.trace_id:032x}" for one in finished} == {TRACE}
    assert all(one.context.trace_state.get("vendor") == "1" for one in finished)
    assert all(word not in one.to_json() for one in finished for word in ("canary", api.tenant))


async def test_a_failure_marks_the_span_and_tells_nothing_of_what_failed(
    api: Api, app: FastAPI, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ValueError("canary")

    monkeypatch.setattr(type(app.state.parts.services.retrievers["lexical"]), "retrieve", fail)
    assert (await _asked(api)).status_code == 503
    for name in ("retriever", "request"):
        failed = _named(spans, name)
        assert failed.status.status_code is StatusCode.ERROR
        assert failed.events == ()
        assert "canary" not in failed.to_json()


@pytest.mark.parametrize("traceparent", MALFORMED)
async def test_a_malformed_traceparent_is_ignored(
    api: Api, spans: InMemorySpanExporter, traceparent: str
) -> None:
    headers = {"traceparent": traceparent, "tracestate": "vendor=1"}
    assert (await api.client.get("/healthz", headers=headers)).status_code == 200
    request = _named(spans, "request")
    assert request.parent is None
    assert len(request.context.trace_state) == 0


async def test_two_traceparents_are_ignored_and_a_malformed_tracestate_alone_is(
    api: Api, spans: InMemorySpanExporter
) -> None:
    await api.client.get("/healthz", headers=[("traceparent", TRACEPARENT)] * 2)
    assert _named(spans, "request").parent is None
    spans.clear()
    headers = {"traceparent": TRACEPARENT, "tracestate": "\x7f=;,,===" + "x" * 5000}
    await api.client.get("/healthz", headers=headers)
    assert _named(spans, "request").context.trace_id == int(TRACE, 16)


@pytest.mark.parametrize("recording", [True, False])
async def test_log_lines_name_the_trace_with_an_sdk_and_without(
    api: Api,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    recording: bool,
) -> None:
    if recording:
        request.getfixturevalue("spans")

    async def broken() -> AsyncIterator[bytes]:
        raise RuntimeError("the body breaks")
        yield b""

    headers = {**api.headers(), "traceparent": TRACEPARENT, "content-type": "application/json"}
    await api.client.post("/snapshots", content=broken(), headers=headers)
    [line] = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert line["event"] == "request_failed"
    assert line["trace_id"] == TRACE
    assert line["request_id"]


async def test_a_trace_does_not_become_the_request_id(api: Api) -> None:
    answer = await api.client.get("/healthz", headers={"traceparent": TRACEPARENT})
    assert re.fullmatch(r"[0-9a-f-]{36}", answer.headers["x-request-id"])


async def test_the_context_is_handed_on_to_what_the_service_asks(
    spans: InMemorySpanExporter,
) -> None:
    seen: list[httpx.Headers] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200)

    hooks = {"request": [tracing.hand_on_with]}
    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, event_hooks=hooks) as client:
        await client.get("http://elsewhere/")
        context = tracing.incoming_context([TRACEPARENT], ["vendor=1"])
        with tracing.span("request", context=context) as current:
            await client.get("http://elsewhere/")
    assert "traceparent" not in seen[0]
    assert seen[1]["traceparent"] == f"00-{TRACE}-{current.get_span_context().span_id:016x}-01"
    assert seen[1]["tracestate"] == "vendor=1"
