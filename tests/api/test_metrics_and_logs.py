"""What operators see: metrics of each stage, and log lines that tell nothing of callers."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import httpx
import pytest
from asgi_lifespan import LifespanManager
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from app.api.parts import Parts
from app.config import Settings
from app.main import create_app
from app.packing.tokens import TokenCounter
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import Retriever, ScopedQuery
from tests.api.service import Api, chunks, item, question, source
from tests.recipes import calling

CANARY = "canary7f3a"
EVENT = re.compile(r"[a-z]+([_-][a-z]+)*")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
async def talkative(service_settings: Settings) -> AsyncIterator[FastAPI]:
    """A service that logs all it can, and whose metrics nobody else changes."""
    told = {"log_level": "debug", "max_body_bytes": 65536, "max_concurrent_requests": 4}
    app = create_app(service_settings.model_copy(update=told))
    async with LifespanManager(app, startup_timeout=60):
        yield app


@pytest.fixture(scope="module")
async def client(talkative: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(talkative) as opened:
        yield opened


async def _samples(client: httpx.AsyncClient) -> Samples:
    text = (await client.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class _Growth:
    def __init__(self, before: Samples, after: Samples) -> None:
        self._before, self._after = before, after

    def of(self, name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return self._after.get(key, 0) - self._before.get(key, 0)


async def test_an_assembly_is_measured_stage_by_stage(api: Api) -> None:
    await api.index(
        source("a.md", chunks=chunks(*(f"cancel booking number {n}" for n in range(6))))
    )
    before = await _samples(api.client)
    asked = question("cancel", budget={"maxTokens": 200, "reservedForOutput": 50})
    snapshot = await api.assemble(asked)
    grown = _Growth(before, await _samples(api.client))
    for stage in ("scope", "retrieval", "assembly", "storage"):
        assert grown.of("ctxsnap_stage_seconds_count", stage=stage) == 1
    considered = len(snapshot["items"]) + len(snapshot["exclusions"])
    assert grown.of("ctxsnap_candidates_total", retriever="lexical") == considered
    assert grown.of("ctxsnap_retriever_seconds_count", retriever="lexical") == 1
    assert grown.of("ctxsnap_offered_tokens_total") == 150
    assert grown.of("ctxsnap_used_tokens_total") == snapshot["budget"]["usedTokens"] > 0
    left_out = [one for one in snapshot["exclusions"] if one["reason"] == "budget"]
    assert grown.of("ctxsnap_exclusions_total", reason="budget") == len(left_out) > 0

    middle = await _samples(api.client)
    assert (await api.post(asked)).status_code == 200
    repeated = _Growth(middle, await _samples(api.client))
    assert repeated.of("ctxsnap_used_tokens_total") == 0
    assert repeated.of("ctxsnap_stage_seconds_count", stage="assembly") == 0


async def test_the_pool_is_measured_and_its_waits(api: Api) -> None:
    before = await _samples(api.client)
    await api.read("/index")
    after = await _samples(api.client)
    assert after[("ctxsnap_database_pool_size", ())] == 10
    assert after[("ctxsnap_database_pool_in_use", ())] == 0
    # What it asked, and its audit event.
    assert _Growth(before, after).of("ctxsnap_database_pool_wait_seconds_count") >= 2


async def test_refusals_are_counted_by_code(api: Api) -> None:
    before = await _samples(api.client)
    await api.client.get("/index")
    await api.get("/nowhere")
    await api.post(question(None, budget={"maxTokens": 10, "reservedForOutput": 10}))
    await api.get("/index", scope="")
    grown = _Growth(before, await _samples(api.client))
    for code in ("authentication-failed", "not-found", "invalid-request", "permission-missing"):
        assert grown.of("ctxsnap_http_problems_total", code=code) == 1


class _Failing:
    """The real leg, until it raises something that holds a caller's words."""

    name = "lexical"

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        raise ValueError(f"no answer to {query.text}")


async def _everything(api: Api, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Assembles, indexes, reads, erases, is refused and fails, each with the canary in it."""
    text = f"{CANARY} text"
    await api.index(source("a.md", text, provenance=f"{CANARY}-provenance"))
    asked = question(f"{CANARY} query", items=[item("task", f"{CANARY} inline")])
    snapshot = await api.assemble(asked)
    path = f"/snapshots/{snapshot['hash']}"
    for part in ("", "/contents", "/prompt", "/report", "/verify"):
        await api.read(path + part) if part != "/prompt" else await api.get(path + part)
    await api.read(f"{path}/explain", {"project": "booking", "sourceId": "a.md"})
    await api.client.post(f"{path}/replay", headers=api.headers())
    secret = api.token.sign(api.tenant, secret=CANARY)[:-2]
    for credentials in (secret, f"{CANARY}.x.y", f"{CANARY} {CANARY}"):
        headers = {"Authorization": f"Bearer {credentials}"}
        assert (await api.client.get("/index", headers=headers)).status_code == 401
    keyed = {**api.headers(), "Idempotency-Key": CANARY}
    await api.client.post("/snapshots", json=asked, headers=keyed)
    await api.client.post("/snapshots", content=f"{{{CANARY}", headers=keyed)
    await api.client.post("/snapshots", content=CANARY * 10_000, headers=keyed)
    await api.get(f"/{CANARY}", {CANARY: CANARY})
    await api.client.request(CANARY.upper(), "/index", headers=api.headers())
    await api.post(question("x", strategy=CANARY, **{CANARY: CANARY}))
    await api.post(question("x", scope={"projects": [CANARY]}), projects=["booking"])
    retrievers = cast("dict[str, Retriever]", parts.services.retrievers)
    with monkeypatch.context() as patch:
        patch.setitem(retrievers, "lexical", _Failing())
        assert (await api.post(question(f"{CANARY} failing"))).status_code == 503
        broken = replace(parts.reader, tokens=cast("TokenCounter", None))
        patch.setattr(api.client._transport.app.state, "parts", replace(parts, reader=broken))  # type: ignore[attr-defined]
        await api.get(f"{path}/verify")
    erased = {"project": "booking", "sourceId": "a.md", "erase": "true"}
    await api.client.delete("/sources", params=erased, headers=api.headers())
    return [secret, CANARY, CANARY.upper()]


async def test_no_log_line_and_no_metric_holds_a_caller_s_words(
    api: Api,
    talkative: FastAPI,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secrets = await _everything(api, talkative.state.parts, monkeypatch)
    lines = capfd.readouterr().err.splitlines()
    logged = [json.loads(line) for line in lines]
    events = {line["event"] for line in logged}
    assert events >= {"authentication_failed", "request_failed"}
    assert all(EVENT.fullmatch(event) for event in events)
    assert all(line["level"] and line["timestamp"] and line["request_id"] for line in logged)
    metrics = (await api.client.get("/metrics")).text
    for secret in (*secrets, "booking", "a.md", api.tenant):
        assert [line for line in lines if secret in line] == []
        assert secret not in metrics


async def test_labels_have_no_room_for_callers(talkative: FastAPI) -> None:
    """Labels are names of routes, methods, codes, retrievers, stages and reasons: no others."""
    names = {
        name
        for collector in talkative.state.metrics.registry._collector_to_names
        for name in getattr(collector, "_labelnames", ())
    }
    assert names == {"method", "route", "status", "code", "retriever", "reason", "stage"}
