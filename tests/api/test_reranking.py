"""Re-ranking behind the whole service: what it is shown, what it decides, and that it is kept."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager

from app.adapters.postgres.database import Database
from app.config import RerankingSettings, Settings
from app.errors import ConfigurationError
from app.main import create_app
from tests.api.service import Api, Json, assert_problem, question, source, source_ids
from tests.recipes import calling, serving, write_recipes
from tests.reranking_server import RerankingServer, running_reranking_server
from tests.tokens import TokenFactory

LEXICAL = "retrievers: [{name: lexical}]\n"
RECIPES = {
    "reranked": LEXICAL + "rerank: {limit: 3, onFailure: degrade, deadlineMs: 5000}\n"
    "expansion: {seeds: 1}",
    "hasty": LEXICAL + "rerank: {onFailure: degrade, deadlineMs: 100}",
    "required": LEXICAL + "rerank: {}",
    "wherever": LEXICAL + "rerank: {optional: true}",
}
LOW: Json = {"max_classification": "internal"}
# By words alone the first is the best, by the share of common words the third.
TEXTS = {
    "a.md": "order order order order cancel cancel now",
    "b.md": "cancel cancel cancel now or never",
    "c.md": "cancel order",
    "d.md": "cancel something that is about other things and has many words",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipes(tmp_path_factory.mktemp("recipes"), RECIPES)


@pytest.fixture(scope="module")
def running() -> Iterator[RerankingServer]:
    with running_reranking_server() as server:
        yield server


@pytest.fixture
def reranker(running: RerankingServer) -> Iterator[RerankingServer]:
    """The endpoint, which has been asked nothing yet, and answers rightly until told."""
    running.requests.clear()
    yield running
    running.fault = None


@pytest.fixture(scope="module")
async def client(
    service_settings: Settings, running: RerankingServer, folder: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """Over a service that re-ranks."""
    endpoint = RerankingSettings(url=running.url, model="words", batch=2, deadline_ms=5000)
    settings = service_settings.model_copy(update={"reranking": endpoint})
    async with serving(settings, folder) as app, calling(app) as opened:
        yield opened


async def _indexed(api: Api) -> None:
    await api.index(
        *(source(name, text) for name, text in TEXTS.items()),
        source("secret.md", "cancel order", classification="restricted"),
    )


async def _report(api: Api, snapshot: Json) -> Json:
    report: Json = (await api.read(f"/snapshots/{snapshot['hash']}/report"))["report"]
    return report


async def _replay(api: Api, snapshot: Json) -> Json:
    path = f"/snapshots/{snapshot['hash']}/replay"
    answer: Json = (await api.client.post(path, headers=api.headers())).json()
    return answer


async def test_the_best_are_put_in_order_and_the_answer_is_replayed(
    api: Api, reranker: RerankingServer
) -> None:
    await _indexed(api)
    asked = question("cancel order")
    plain = await api.assemble({**asked, "strategy": "lexical-only"}, **LOW)
    assert reranker.requests == []
    made = await api.assemble({**asked, "strategy": "reranked"}, **LOW)
    assert source_ids(plain)[0] == "a.md"
    assert sorted(reranker.texts) == sorted(TEXTS[name] for name in source_ids(plain)[:3])
    assert source_ids(made)[0] == "c.md"
    assert source_ids(made)[-1] == source_ids(plain)[-1], "what was not re-ranked stays behind"
    assert made["budget"]["assembly"]["degraded"] == []
    report = await _report(api, made)
    assert report["rerank"] == {"status": "ok", "model": "words", "candidates": 3}
    names = [stage["name"] for stage in report["stages"]]
    assert names[:5] == ["scope", "retrieval:lexical", "rerank", "retrieval:graph", "fusion"]
    asked_before = len(reranker.requests)
    reranker.fault = "500"
    await api.index(source("e.md", "cancel order cancel"))
    assert await _replay(api, made) == {"match": True, "hash": made["hash"]}
    assert len(reranker.requests) == asked_before, "a replay asks nobody"
    verified = await api.read(f"/snapshots/{made['hash']}/verify")
    assert verified["ok"], verified


async def test_what_is_out_of_scope_is_never_shown(api: Api, reranker: RerankingServer) -> None:
    other = api.elsewhere()
    await _indexed(api)
    await _indexed(other)
    await api.index(
        source("drafts/x.md", "cancel order drafts"),
        source("x.md", "cancel order billing", project="billing"),
        source("y.md", "cancel order denied", acl={"deny": ["user:ana"]}),
    )
    scope: Json = {"projects": ["booking"], "sources": {"deny": ["drafts/*"]}}
    asked = question("cancel order", strategy="wherever", scope=scope)
    made = await api.assemble(asked, sub="ana", **LOW)
    assert sorted(source_ids(made)) == sorted(TEXTS)
    assert sorted(reranker.texts) == sorted(TEXTS.values())


async def test_no_query_and_no_candidate_are_not_asked_about(
    api: Api, reranker: RerankingServer
) -> None:
    await _indexed(api)
    for query in (None, "unheard"):
        made = await api.assemble(question(query, strategy="required"))
        assert made["items"] == []
        assert (await _replay(api, made))["match"]
    assert reranker.requests == []


@pytest.mark.parametrize("fault", ["500", "nan", "twice", "10 MB"])
async def test_a_failure_degrades_and_is_replayed_as_one(
    api: Api, reranker: RerankingServer, fault: Any
) -> None:
    await _indexed(api)
    reranker.fault = fault
    asked = question("cancel order")
    plain = await api.assemble({**asked, "strategy": "lexical-only"}, **LOW)
    answer = await api.post({**asked, "strategy": "reranked"}, **LOW)
    assert answer.status_code == 201, answer.text
    assert answer.headers["snapshot-degraded"] == "rerank; reason=error"
    made = answer.json()
    assert made["budget"]["assembly"]["degraded"] == ["rerank"]
    assert source_ids(made) == source_ids(plain)
    assert (await _report(api, made))["rerank"] == {"status": "error"}
    listed = (await api.read("/snapshots"))["snapshots"]
    assert [one["degraded"] for one in listed if one["hash"] == made["hash"]] == [["rerank"]]
    reranker.fault = None
    asked_before = len(reranker.requests)
    assert await _replay(api, made) == {"match": True, "hash": made["hash"]}
    assert len(reranker.requests) == asked_before
    metrics = (await api.client.get("/metrics")).text
    assert 'ctxsnap_degraded_retrievals_total{reason="error",retriever="rerank"}' in metrics


async def test_one_that_hangs_is_given_up_at_the_strategys_deadline(
    api: Api, reranker: RerankingServer
) -> None:
    await _indexed(api)
    reranker.fault = "hang"
    answer = await api.post(question("cancel order", strategy="hasty"), **LOW)
    assert answer.headers["snapshot-degraded"] == "rerank; reason=timeout"
    assert (await _replay(api, answer.json()))["match"]


async def test_a_required_one_that_fails_fails_the_request(
    api: Api, reranker: RerankingServer
) -> None:
    await _indexed(api)
    reranker.fault = "nan"
    answer = await api.post(question("cancel order", strategy="required"))
    problem = assert_problem(answer, 503, "retriever-unavailable")
    assert "re-ranking" in problem["detail"]
    assert int(answer.headers["retry-after"]) >= 1
    assert (await api.read("/snapshots"))["snapshots"] == []


async def test_where_there_is_no_endpoint_an_optional_step_says_so(
    api: Api,
    reranker: RerankingServer,
    service_settings: Settings,
    folder: Path,
    tmp_path: Path,
    token: TokenFactory,
    make_tenant: Callable[[], str],
) -> None:
    """And a replay elsewhere neither asks for it, nor forgets what was answered."""
    with pytest.raises(ConfigurationError, match="CTXSNAP_RERANKING"):
        await _start(service_settings, folder)
    await _indexed(api)
    reranked = await api.assemble(question("cancel order", strategy="wherever"), **LOW)
    asked_before = len(reranker.requests)
    recipes = write_recipes(tmp_path, {"wherever": RECIPES["wherever"]})
    async with serving(service_settings, recipes) as app, calling(app) as bare:
        there = Api(bare, token, make_tenant, api.tenant)
        plain = await there.assemble(question("cancel order", strategy="wherever"), **LOW)
        assert (await _report(there, plain))["rerank"] == {"status": "not-configured"}
        assert plain["budget"]["assembly"]["degraded"] == []
        assert await _replay(there, reranked) == {"match": True, "hash": reranked["hash"]}
    assert source_ids(plain) != source_ids(reranked)
    assert await _replay(api, plain) == {"match": True, "hash": plain["hash"]}
    assert len(reranker.requests) == asked_before


async def _start(settings: Settings, folder: Path) -> None:
    app = create_app(settings.model_copy(update={"strategies_dir": folder}))
    async with LifespanManager(app, startup_timeout=60, shutdown_timeout=60):
        pass


async def test_a_replay_with_other_scores_names_the_stage(
    api: Api, reranker: RerankingServer, embedded_superuser: Database
) -> None:
    await _indexed(api)
    made = await api.assemble(question("cancel order", strategy="reranked"), **LOW)
    digest = bytes.fromhex(made["hash"].removeprefix("sha256:"))
    async with embedded_superuser.engine.begin() as connection:
        found = await connection.execute(
            sa.text("SELECT inputs FROM snapshots WHERE hash = :hash"), {"hash": digest}
        )
        inputs = json.loads(found.scalar_one())
        inputs["rerank"]["scores"][0][3] += 1_000_000
        await connection.execute(sa.text("ALTER TABLE snapshots DISABLE TRIGGER immutable_rows"))
        await connection.execute(
            sa.text("UPDATE snapshots SET inputs = :inputs WHERE hash = :hash"),
            {"inputs": json.dumps(inputs).encode(), "hash": digest},
        )
        await connection.execute(
            sa.text("ALTER TABLE snapshots ENABLE ALWAYS TRIGGER immutable_rows")
        )
    replayed = await _replay(api, made)
    assert replayed["firstDifference"]["stage"] == "rerank"
