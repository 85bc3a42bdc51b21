"""Property 10: a failed request leaves nothing behind, and a failed leg is no empty list."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.postgres.database import Database
from app.api.parts import Parts
from app.api.snapshot_schemas import CreateSnapshotBody
from app.errors import RetrieverUnavailableError, ServiceError, UnavailableError
from app.pipeline import Answer, Call, create_snapshot
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import Retriever, ScopedQuery
from app.scope.claims import ClaimNames, grant_from_claims
from app.strategy.strategy import Strategy, StrategyCatalog
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import Caller, Json, situations

# A tenant that is met for the first time gets its row with its first audit entry.
_EXEMPT = {"alembic_version", "audit_events", "audit_unsealed", "audit_seals", "tenants"}


class _FailingRetriever:
    """A leg that fails in the way it is told to."""

    name = "failing"

    def __init__(self, fail: Callable[[], Awaitable[Retrieval]]) -> None:
        self._fail = fail

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        del query
        return await self._fail()


async def _raise() -> Retrieval:
    raise UnavailableError("The backend is down.")


async def _hang() -> Retrieval:
    await asyncio.sleep(60)
    raise AssertionError("the deadline did not cut this leg off")


def _strategy(on_failure: str) -> Strategy:
    leg = {"name": "failing", "deadlineMs": 30, "onFailure": on_failure}
    document: dict[str, Any] = {
        "id": "two-legs",
        "version": 1,
        "description": "A leg that works and one that does not.",
        "retrievers": [{"name": "lexical"}, leg],
    }
    return Strategy.model_validate(document)


async def _assemble(
    parts: Parts, failing: Retriever, on_failure: str, tenant: str, request: Json
) -> Answer:
    services = dataclasses.replace(
        parts.services,
        strategies=StrategyCatalog((_strategy(on_failure),)),
        retrievers={**parts.services.retrievers, "failing": failing},
    )
    claims = {"sub": "ana", "tenant_id": tenant, "projects": ["*"]}
    grant = grant_from_claims({**claims, "max_classification": "restricted"}, ClaimNames())
    body = CreateSnapshotBody.model_validate({**request, "strategy": "two-legs"})
    return await create_snapshot(services, Call(grant, body.to_core(grant), datetime.now(UTC)))


async def _row_counts(superuser: Database) -> dict[str, int]:
    async with superuser.engine.connect() as connection:
        tables = await connection.execute(
            sa.text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        )
        return {
            table: (await connection.execute(sa.text(f"SELECT count(*) FROM {table}"))).scalar_one()
            for table in tables.scalars()
            if table not in _EXEMPT
        }


@pytest.mark.parametrize("fail", [_raise, _hang])
@pytest.mark.parametrize("on_failure", ["fail", "degrade"])
async def test_the_strategy_says_whether_a_failed_leg_fails_the_request(
    service: Service,
    parts: Parts,
    embedded_superuser: Database,
    fail: Callable[[], Awaitable[Retrieval]],
    on_failure: str,
) -> None:
    tenant = service.make_tenant()
    source = {"project": "p", "sourceId": "s", "sourceRevision": "1", "class": "documents"}
    await service.index(tenant, [{**source, "text": "cancel"}])
    ids = dict.fromkeys(("runId", "attemptId"), "00000000-0000-4000-8000-000000000001")
    request: Json = {**ids, "query": "cancel", "scope": {}}
    tasks, rows = len(asyncio.all_tasks()), await _row_counts(embedded_superuser)
    if on_failure == "fail":
        with pytest.raises(RetrieverUnavailableError, match="failing"):
            await _assemble(parts, _FailingRetriever(fail), on_failure, tenant, request)
        assert await _row_counts(embedded_superuser) == rows
    else:
        answer = await _assemble(parts, _FailingRetriever(fail), on_failure, tenant, request)
        assert [leg.name for leg in answer.degraded] == ["failing"]
        document = (await service.get(tenant, f"/snapshots/{answer.hash}")).json()
        assert document["budget"]["assembly"]["degraded"] == ["failing"]
        assert [item["sourceId"] for item in document["items"]] == ["s"]
        report = (await service.get(tenant, f"/snapshots/{answer.hash}/report")).json()["report"]
        statuses = {leg["name"]: leg["status"] for leg in report["retrievers"]}
        assert statuses["lexical"] == "ok"
        assert statuses["failing"] in ("error", "timeout")
    assert len(asyncio.all_tasks()) == tasks


_SPOILERS = st.sampled_from(
    [
        {"strategy": "never-heard-of"},
        {"budget": {"maxTokens": 1, "reservedForOutput": 1}},
        {"budget": {"maxTokens": 40}, "items": True},
        {"budget": {"encoding": "p50k"}},
        {"scope": {"groups": ["never-granted"]}},
        {"pins": [{"project": "alpha", "sourceId": "never-heard-of"}]},
        {"runId": "no-uuid"},
        {"language": "not a language"},
    ]
)


@sized(40, full=1_000)
@given(situation=situations(), spoiler=_SPOILERS)
async def test_a_refused_request_leaves_no_row_behind(
    service: Service,
    embedded_superuser: Database,
    situation: tuple[list[Json], Caller, Json],
    spoiler: Json,
) -> None:
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    before = await _row_counts(embedded_superuser)
    answer = await service.assemble(tenant, caller, {**request, **spoiler})
    assert answer.status_code in (403, 422), answer.text
    bad = {**sources[0], "sourceId": "new", "classification": "secret"}
    refused = await service.client.put(
        "/sources", json={"sources": [*sources, bad]}, headers=service.token.headers(tenant)
    )
    assert refused.status_code == 422
    unknown = await service.get(service.make_tenant(), "/index")
    assert unknown.status_code == 200
    assert await _row_counts(embedded_superuser) == before


def test_every_error_of_the_tree_is_one_the_leg_may_raise() -> None:
    assert issubclass(RetrieverUnavailableError, ServiceError)
