"""The approximate vector leg on the real database: within the scope, whole, and repeatable."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.vector import PostgresVectorRetriever
from app.adapters.postgres.vector_approximate import (
    FEWEST_VECTORS,
    PostgresApproximateVectorRetriever,
    build_approximate_index,
)
from app.api.parts import Parts
from app.bootstrap import migrate_database
from app.canonical import JsonObject
from app.config import EmbeddingSettings, Settings
from app.errors import ConfigurationError
from app.indexing.embedding import EmbeddingProfile
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import Retriever, ScopedQuery
from app.scope.access import AccessScope, RequestedScope, SourcePatterns, narrow
from app.scope.claims import ClaimNames, grant_from_claims
from app.storage.labels import IndexVersion
from tests.api.service import Api, Json, chunks, question, source
from tests.contract.test_pgbouncer import PGBOUNCER, pgbouncer
from tests.scratch_database import scratch_database
from tests.word_vectors import WordVectors, embed_all

NEAR, FAR = "cancel", "some other words that are farther away"
OTHERS: dict[str, Json] = {
    "another project": {"project": "theirs"},
    "a higher classification": {"classification": "confidential"},
    "a denied group": {"acl": {"deny": ["group:eng"]}},
    "an empty list": {"acl": {"allow": []}},
}


@pytest.fixture(scope="module")
async def words(migrated: EmbeddedDatabase, owner: Database) -> AsyncIterator[WordVectors]:
    """Of a profile that has its index, until these tests end: others compare the schema."""
    made = WordVectors("approximate")
    name = await build_approximate_index(migrated.owner_url, made.profile)
    yield made
    async with owner.engine.begin() as connection:
        await connection.exec_driver_sql(f"DROP INDEX {name}")


def _scope(tenant: str, patterns: SourcePatterns | None = None, **claims: Any) -> AccessScope:
    usual: Json = {"tenant_id": tenant, "sub": "ana", "projects": ["booking"], "groups": ["eng"]}
    grant = grant_from_claims({**usual, "max_classification": "internal", **claims}, ClaimNames())
    return narrow(grant, RequestedScope(sources=patterns or SourcePatterns()))


@dataclass(frozen=True)
class Asked:
    """What both legs say to one question; the approximate one asks its index from 1 vector on."""

    database: Database
    words: WordVectors

    def leg(self, visit_cost: int = 0) -> PostgresApproximateVectorRetriever:
        return PostgresApproximateVectorRetriever(
            self.database, [self.words], fewest_vectors=1, visit_cost=visit_cost
        )

    async def both(self, scope: AccessScope, text: str = NEAR, k: int = 10) -> list[Retrieval]:
        legs = (
            self.leg(),
            PostgresVectorRetriever(self.database, [self.words]),
        )
        view = await PostgresIndexViews(self.database).open(scope)
        query = ScopedQuery(scope, view, text, None, k)
        return list(await asyncio.gather(*(leg.retrieve(query) for leg in legs)))

    async def again(
        self, scope: AccessScope, recorded: JsonObject | None, k: int = 10, **at: int
    ) -> Retrieval:
        version = IndexVersion(at["at"]) if at else None
        view = await PostgresIndexViews(self.database).open(scope, version)
        return await self.leg().retrieve(ScopedQuery(scope, view, NEAR, None, k, recorded))


@pytest.fixture
def asked(database: Database, words: WordVectors) -> Asked:
    return Asked(database, words)


async def _hidden(api: Api, each: int) -> None:
    """Nearer than anything in scope, under every kind of label that is out of it."""
    for name, members in OTHERS.items():
        texts = (f"{NEAR} {NEAR} {at}" for at in range(each))
        await api.index(source(name, chunks=chunks(*texts), **members))


async def test_the_index_finds_the_nearest_in_scope_past_nearer_ones_out_of_it(
    api: Api, asked: Asked
) -> None:
    await _hidden(api, 60)
    texts = (f"{NEAR} {FAR} {at}" for at in range(150))
    await api.index(source("mine", chunks=chunks(*texts)))
    await embed_all(asked.database, api.tenant, asked.words)
    for k in (1, 10, 50):
        found, exact = await asked.both(_scope(api.tenant), k=k)
        assert found.facts["search"] == "approximate"
        assert [one.rank for one in found.candidates] == list(range(1, k + 1))
        assert {one.chunk.source_id for one in found.candidates} == {"mine"}
        known = {one.chunk.chunk_id: one.score for one in exact.candidates}
        hits = [one for one in found.candidates if one.chunk.chunk_id in known]
        assert len(hits) >= 0.9 * k
        assert all(known[one.chunk.chunk_id] == one.score for one in hits)
        assert found.visible_version == exact.visible_version


@pytest.mark.parametrize(
    ("others", "own", "k"),
    [(100, 2, 50), (100, 5, 5), pytest.param(20_000, 10, 10, marks=pytest.mark.long)],
)
async def test_all_that_is_in_scope_is_found_however_little_it_is(
    api: Api, asked: Asked, make_tenant: Callable[[], str], others: int, own: int, k: int
) -> None:
    await _hidden(api, others // len(OTHERS))
    await api.index(source("mine", chunks=chunks(*(f"{FAR} {at}" for at in range(own)))))
    await embed_all(asked.database, api.tenant, asked.words)
    found, exact = await asked.both(_scope(api.tenant), k=k)
    assert found.candidates == exact.candidates
    assert len(found.candidates) == own
    for nobody in (
        _scope(make_tenant()),
        _scope(api.tenant, projects=["unknown"]),
        _scope(api.tenant, SourcePatterns(allow=())),
    ):
        found, _ = await asked.both(nobody, k=k)
        assert found.candidates == ()


async def test_tenants_share_an_index_and_nothing_else(
    api: Api, asked: Asked, make_tenant: Callable[[], str]
) -> None:
    neighbour = Api(api.client, api.token, make_tenant, make_tenant())
    for one in (api, neighbour):
        await one.index(source("a.md", chunks=chunks(*(f"{NEAR} {at}" for at in range(60)))))
        await embed_all(asked.database, one.tenant, asked.words)
    for one in (api, neighbour):
        found, exact = await asked.both(_scope(one.tenant))
        assert found.facts["search"] == "approximate"
        assert {each.chunk.tenant for each in found.candidates} == {one.tenant}
        assert found.candidates == exact.candidates


async def test_few_vectors_and_patterns_are_searched_exactly(api: Api, asked: Asked) -> None:
    await api.index(source("a.md", chunks=chunks(*(f"{NEAR} {at}" for at in range(60)))))
    await embed_all(asked.database, api.tenant, asked.words)
    selected, _ = await asked.both(_scope(api.tenant, SourcePatterns(deny=("b*",))))
    assert selected.facts["search"] == "exact"
    scope = _scope(api.tenant)
    usual = PostgresApproximateVectorRetriever(asked.database, [asked.words])
    view = await PostgresIndexViews(asked.database).open(scope)
    found = await usual.retrieve(ScopedQuery(scope, view, NEAR, None, 10))
    assert (found.facts["search"], found.facts["vectors"]) == ("exact", 60)
    assert FEWEST_VECTORS > 60
    assert "chunks" not in (found.inputs or {})


async def test_where_walking_past_the_others_takes_longer_all_in_scope_are_read(
    api: Api, asked: Asked, owner: Database
) -> None:
    await _hidden(api, 30)
    await api.index(source("a.md", chunks=chunks(*(f"{NEAR} {at}" for at in range(60)))))
    await embed_all(asked.database, api.tenant, asked.words)
    async with owner.engine.begin() as connection:
        await connection.exec_driver_sql("ANALYZE vectors")
    scope = _scope(api.tenant)
    view = await PostgresIndexViews(asked.database).open(scope)
    query = ScopedQuery(scope, view, NEAR, None, 10)
    # 60 squared against what is indexed, which is 180 or more, times 42 places.
    found = {cost: await asked.leg(cost).retrieve(query) for cost in (0, 1)}
    assert [one.facts["search"] for one in found.values()] == ["approximate", "exact"]
    assert found[0].candidates == found[1].candidates


async def test_what_was_found_is_found_again_and_the_past_is_searched_exactly(
    api: Api, asked: Asked
) -> None:
    texts = [f"{NEAR} {at}" for at in range(60)]
    await api.index(source("a.md", chunks=chunks(*texts)), source("b.md", "cancel"))
    await embed_all(asked.database, api.tenant, asked.words)
    version, scope = await api.index_version(), _scope(api.tenant)
    first, _ = await asked.both(scope)
    assert first.facts["search"] == "approximate"
    await api.index(source("a.md", "something else", sourceRevision="2"))
    await embed_all(asked.database, api.tenant, asked.words)
    again = await asked.again(scope, first.inputs, at=version)
    assert (again.candidates, again.inputs, again.facts) == (
        first.candidates,
        first.inputs,
        first.facts,
    )
    past = await asked.again(scope, None, at=version)
    assert past.facts["search"] == "exact"
    assert past.candidates == first.candidates
    replayed = await asked.again(scope, past.inputs, at=version)
    assert (replayed.candidates, replayed.facts) == (past.candidates, past.facts)


async def test_the_whole_service_replays_what_was_found(
    api: Api, asked: Asked, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a snapshot of a time when there was no such retriever."""
    retrievers = cast("dict[str, Retriever]", parts.services.retrievers)
    await api.index(source("a.md", chunks=chunks(*(f"{NEAR} {at}" for at in range(200)))))
    await embed_all(asked.database, api.tenant, asked.words)
    request = question(f"{NEAR} 7", strategy="approximate")
    by_words = await api.assemble(request)
    leg = asked.leg()
    monkeypatch.setitem(retrievers, leg.name, leg)
    made = await api.assemble(question(f"{NEAR} 7", strategy="approximate"))
    report = (await api.read(f"/snapshots/{made['hash']}/report"))["report"]
    assert report["retrievers"][1]["search"] == "approximate"
    assert report["retrievers"][1]["candidates"] == 100
    assert any(one["indexVersion"].startswith("vector-approximate:") for one in made["items"])
    await api.index(source("b.md", f"{NEAR} 7"), source("a.md", "gone", sourceRevision="2"))
    await embed_all(asked.database, api.tenant, asked.words)
    for one in (made, by_words):
        path = f"/snapshots/{one['hash']}/replay"
        answer = await api.client.post(path, headers=api.headers())
        assert answer.json() == {"match": True, "hash": one["hash"]}


async def test_a_profile_without_an_index_is_searched_all_the_same(
    api: Api, database: Database
) -> None:
    bare = Asked(database, WordVectors("without an index"))
    await api.index(source("a.md", chunks=chunks(*(f"{NEAR} {at}" for at in range(60)))))
    await embed_all(database, api.tenant, bare.words)
    found, exact = await bare.both(_scope(api.tenant))
    assert found.candidates == exact.candidates


async def test_the_plan_walks_the_index_with_the_scope_as_its_filter(
    api: Api, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    run = Database.run

    async def explain(self: Database, tenant: str, statement: Any, *args: Any, **more: Any) -> Any:
        if more.get("settings"):
            explained = type(statement)(f"EXPLAIN {statement.sql}", "line text")
            rows = await run(self, tenant, explained, *args, **more)
            plans.append("\n".join(row.line for row in rows))
        return await run(self, tenant, statement, *args, **more)

    await api.index(source("a.md", chunks=chunks(*(f"{NEAR} {at}" for at in range(60)))))
    await embed_all(asked.database, api.tenant, asked.words)
    monkeypatch.setattr(Database, "run", explain)
    await asked.both(_scope(api.tenant))
    (plan,) = plans
    assert f"Index Scan using vectors_hnsw_{asked.words.profile.id}" in plan
    assert "Sort" not in plan
    assert "label_key = ANY" in plan
    assert "ctxsnap.tenant_key" in plan


@pytest.fixture
async def scratch(embedded: EmbeddedDatabase) -> AsyncIterator[EmbeddedDatabase]:
    async with scratch_database(embedded) as made:
        yield made


async def test_the_owner_builds_it_once_and_an_unfinished_one_anew(
    migrated: EmbeddedDatabase, owner: Database, embedded_superuser: Database
) -> None:
    profile = EmbeddingSettings(url="http://endpoint", model="to be built", dimensions=24)
    url = SecretStr(migrated.owner_url)
    settings = Settings(migration_database_url=url, embeddings=(profile,))
    name = f"vectors_hnsw_{EmbeddingProfile('to be built', 24).id}"
    found = sa.text("SELECT oid::integer FROM pg_class WHERE relname = :name")
    built = []
    for _ in range(2):
        await migrate_database(settings, vector_index=True)
        async with owner.engine.connect() as connection:
            built.append(await connection.scalar(found, {"name": name}))
    async with embedded_superuser.engine.begin() as connection:
        await connection.exec_driver_sql(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass($1)", (name,)
        )
    await migrate_database(settings, vector_index=True)
    async with owner.engine.begin() as connection:
        anew = await connection.scalar(found, {"name": name})
        await connection.exec_driver_sql(f"DROP INDEX {name}")
    assert built[0] is not None
    assert built == [built[0]] * 2
    assert anew not in (None, built[0])
    with pytest.raises(ConfigurationError, match="CTXSNAP_EMBEDDINGS"):
        await migrate_database(Settings(migration_database_url=url), vector_index=True)


async def test_without_the_tables_it_is_refused(
    scratch: EmbeddedDatabase, words: WordVectors
) -> None:
    with pytest.raises(ConfigurationError, match="CREATE EXTENSION"):
        await build_approximate_index(scratch.owner_url, words.profile)


@pytest.mark.parametrize("pooled", [False, True])
async def test_settings_of_a_statement_end_with_it(
    migrated: EmbeddedDatabase, tenant: str, pooled: bool
) -> None:
    if pooled and PGBOUNCER is None:
        pytest.skip("needs the program pgbouncer")
    async with AsyncExitStack() as stack:
        url = migrated.serving_url
        if pooled:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = (await stack.enter_async_context(pgbouncer(url, folder))).url
        database = Database(url, pool_size=1, transaction_pooling=pooled)
        stack.push_async_callback(database.close)
        shown = Statement("SELECT current_setting('enable_sort')", "value text")
        (inside,) = await database.run(tenant, shown, settings={"enable_sort": "off"})
        ((after,), (later,)) = [await database.run(tenant, shown) for _ in range(2)]
        assert (inside.value, after.value, later.value) == ("off", "on", "on")
