"""Compaction: past versions go, and whatever a present reader or a stored snapshot needs stays."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app import bootstrap
from app.adapters.postgres import compaction as module
from app.adapters.postgres.compaction import PostgresIndexCompaction
from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.ended_chunks import REMOVAL_LOCK, remove_chunks
from app.config import Settings
from app.errors import UnavailableError
from app.storage.compaction import Compactor
from app.storage.labels import IndexVersion
from tests.api.service import Api, Json, assert_problem, chunks, question, source, source_ids
from tests.contract.changes import explaining_changes, forget_statistics, rows_of

OLDEST = IndexVersion(6)
RETENTION = timedelta(days=30)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def compaction(database: Database) -> PostgresIndexCompaction:
    return PostgresIndexCompaction(database)


async def age(owner: Database, tenant: str, upto: int, days: int = 40) -> None:
    """Let versions be of long ago."""
    async with owner.transaction(tenant) as (connection, _):
        await connection.execute(
            sa.text(
                "UPDATE index_versions SET created_at = created_at - make_interval(days => :days) "
                "WHERE version <= :upto"
            ),
            {"days": days, "upto": upto},
        )


async def add_vectors(owner: Database, tenant: str) -> None:
    """Vectors and their sums as they would be for sources that came and went."""
    statements = (
        """
        INSERT INTO vectors SELECT $1, -5, s.label_key, c.chunk_key, s.valid_from, '[1]'
        FROM chunks c JOIN source_versions s USING (tenant_key, source_key)
        WHERE c.tenant_key = $1 AND s.valid_to = 9223372036854775807
        """,
        """
        INSERT INTO ended_vectors
        SELECT $1, -5, s.label_key, c.chunk_key, s.valid_from, s.valid_to, '[2]'
        FROM chunks c JOIN source_versions s USING (tenant_key, source_key)
        WHERE c.tenant_key = $1 AND s.valid_to < 9223372036854775807
        """,
        """
        INSERT INTO vector_states SELECT $1, -5, label_key, valid_from, valid_to, 1, 0, 0, 0, 0
        FROM label_states WHERE tenant_key = $1
        """,
    )
    async with owner.transaction(tenant) as (connection, key):
        for statement in statements:
            await connection.exec_driver_sql(statement, (key,))


async def a_history(api: Api, owner: Database) -> list[Json]:
    """Nine versions, of which those up to OLDEST are of long ago; a snapshot of each."""
    made = []

    async def look() -> None:
        made.append((await api.post(question("cancel"))).json())

    await api.index(source("a.md", "cancel one"), source("b.md", chunks=chunks("cancel", "two")))
    await look()
    await api.index(source("a.md", "cancel one again", sourceRevision="2"))
    await look()
    heads = [{"project": "booking", "sourceId": "b.md", "sourceRevision": name} for name in "23"]
    for number, head in enumerate(heads, 3):
        answer = await api.client.put(
            "/sources/heads", json={"heads": [head]}, headers=api.headers()
        )
        assert answer.json()["indexVersion"] == number
        await look()
    await api.index(source("gone.md", "cancel gone", classification="confidential"))
    await look()
    await api.delete("booking", "gone.md")
    await look()
    await api.index(source("a.md", "cancel one at last", sourceRevision="3"))
    await look()
    await api.delete("booking", "b.md")
    await look()
    await api.index(source("c.md", "cancel three"))
    await look()
    await add_vectors(owner, api.tenant)
    await age(owner, api.tenant, OLDEST)
    return made


async def compact(compaction: PostgresIndexCompaction, tenant: str) -> None:
    assert await compaction.give_up(tenant, now() - RETENTION) == OLDEST
    await compaction.remove(tenant, OLDEST)


async def ended(owner: Database, tenant: str) -> dict[str, list[int]]:
    """The version with which each row ended, of those that did; of `index_versions` all."""
    columns = {
        **dict.fromkeys(
            ("source_versions", "source_heads", "label_states", "vector_states",
             "ended_postings", "ended_vectors"),
            "valid_to",
        ),
        "index_versions": "version",
    }  # fmt: skip
    async with owner.transaction(tenant) as (connection, _):
        return {
            table: sorted(
                set((
                    await connection.execute(
                        sa.text(
                            f"SELECT {column} FROM {table} WHERE {column} < 9223372036854775807"
                        )
                    )
                ).scalars())
            )
            for table, column in columns.items()
        }  # fmt: skip


KEPT = {
    # `gone.md` was deleted with version 6, and its last row stays.
    "source_versions": [6, 7, 8],
    "source_heads": [],
    "label_states": [7, 8, 9],
    "vector_states": [7, 8, 9],
    "ended_postings": [7, 8],
    "ended_vectors": [7, 8],
    "index_versions": [6, 7, 8, 9],
}


async def test_what_ended_by_the_oldest_version_is_gone_and_nothing_else(
    api: Api, compaction: PostgresIndexCompaction, owner: Database
) -> None:
    await a_history(api, owner)
    before, rows = await ended(owner, api.tenant), await rows_of(owner, api.tenant)
    assert before["source_versions"] == [2, 6, 7, 8]
    assert before["source_heads"] == [4]
    assert before["ended_postings"] == [2, 6, 7, 8]
    await compact(compaction, api.tenant)
    assert await ended(owner, api.tenant) == KEPT
    left = await rows_of(owner, api.tenant)
    for table in ("source_contents", "snapshot_contents", "snapshots", "labels", "postings"):
        assert left[table] == rows[table], table
    # Those of a.md's first revision and of gone.md.
    assert len(rows["chunks"]) - len(left["chunks"]) == 2
    assert await compaction.give_up(api.tenant, now() - RETENTION) is None


async def test_kept_versions_are_read_as_before_and_older_ones_are_refused(
    api: Api, compaction: PostgresIndexCompaction, owner: Database
) -> None:
    made = await a_history(api, owner)
    await compact(compaction, api.tenant)
    for version, snapshot in enumerate(made, 1):
        path = f"/snapshots/{snapshot['hash']}"
        assert (await api.get(path)).json() == snapshot
        texts = (await api.read(f"{path}/contents"))["contents"]
        assert texts
        assert not any(one["erased"] for one in texts)
        assert (await api.get(f"{path}/prompt")).status_code == 200
        verified = await api.read(f"{path}/verify")
        assert [one for one in verified["checks"] if not one["ok"]] == []
        (access,) = [one for one in verified["checks"] if one["name"] == "access"]
        assert ("not evaluated again" in access["detail"]) is (version < OLDEST)
        replayed = await api.client.post(f"{path}/replay", headers=api.headers())
        asked = question("cancel", asOf={"snapshot": snapshot["hash"]})
        if version < OLDEST:
            assert replayed.json()["firstDifference"]["stage"] == "index"
            assert_problem(await api.post(asked), 422, "version-not-kept")
        else:
            assert replayed.json()["match"] is True
            again = await api.assemble(asked)
            assert again["items"] == snapshot["items"]
    assert sorted(source_ids(await api.assemble(question("cancel")))) == ["a.md", "c.md"]


async def test_the_last_label_of_a_deleted_source_still_decides_who_reads(
    api: Api, compaction: PostgresIndexCompaction, owner: Database
) -> None:
    made = await a_history(api, owner)
    await compact(compaction, api.tenant)
    (with_gone,) = [one for one in made if "gone.md" in source_ids(one)]
    path = f"/snapshots/{with_gone['hash']}"
    assert (await api.get(path, max_classification="confidential")).status_code == 200
    assert (await api.get(path, max_classification="internal")).status_code == 404
    deleted = await api.client.delete(
        "/sources",
        params={"project": "booking", "sourceId": "gone.md", "erase": "true"},
        headers=api.headers(),
    )
    assert deleted.status_code == 200
    found = await api.read(f"{path}/contents")
    assert [one["erased"] for one in found["contents"]] == [
        name == "gone.md" for name in source_ids(with_gone)
    ]


async def test_explaining_by_a_version_that_is_given_up_tells_nothing_apart(
    api: Api, compaction: PostgresIndexCompaction, owner: Database
) -> None:
    made = await a_history(api, owner)
    await api.index(source("z.md", "unrelated", classification="restricted"))
    await compact(compaction, api.tenant)

    async def explained(snapshot: Json, name: str) -> Any:
        path = f"/snapshots/{snapshot['hash']}/explain"
        params = {"project": "booking", "sourceId": name}
        low: Json = {"max_classification": "internal"}
        return (await api.read(path, params, **low))["stages"]

    for name in ("c.md", "z.md", "unknown"):
        assert await explained(made[0], name) == [
            {
                "stage": "index",
                "outcome": "not-kept",
                "detail": "the index of that version is given up",
            }
        ]
    assert [one["stage"] for one in await explained(made[0], "b.md")] == [
        "index", "scope", "retrieval", "packing",
    ]  # fmt: skip
    assert [one["outcome"] for one in await explained(made[-1], "unknown")] == ["absent"]


async def test_batches_of_one_row_come_to_the_same(
    api: Api,
    compaction: PostgresIndexCompaction,
    owner: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await a_history(api, owner)
    for name in ("_SOURCES_PER_BATCH", "_CHUNKS_PER_BATCH", "_ROWS_PER_BATCH"):
        monkeypatch.setattr(module, name, 1)
    await compact(compaction, api.tenant)
    assert await ended(owner, api.tenant) == KEPT


async def test_a_removal_that_was_cut_short_is_taken_up_again(
    api: Api,
    compaction: PostgresIndexCompaction,
    owner: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await a_history(api, owner)
    monkeypatch.setattr(module, "_SOURCES_PER_BATCH", 1)
    calls = iter(range(10))

    async def failing(*arguments: Any) -> None:
        await remove_chunks(*arguments)
        if next(calls) == 1:
            raise UnavailableError("The database is away.")

    monkeypatch.setattr(module, "remove_chunks", failing)
    with pytest.raises(UnavailableError):
        await compact(compaction, api.tenant)
    assert (await ended(owner, api.tenant))["ended_postings"] == [6, 7, 8]
    await compact(compaction, api.tenant)
    assert await ended(owner, api.tenant) == KEPT


async def test_the_row_that_a_source_was_deleted_with_goes_once_it_is_not_the_last(
    api: Api, compaction: PostgresIndexCompaction, owner: Database
) -> None:
    await a_history(api, owner)
    await compact(compaction, api.tenant)
    await api.index(source("gone.md", "cancel again"))
    await api.index(source("gone.md", "cancel once more"))
    await age(owner, api.tenant, 12)
    assert await compaction.give_up(api.tenant, now() - RETENTION) == 11
    await compaction.remove(api.tenant, IndexVersion(11))
    # b.md was deleted with version 8.
    assert (await ended(owner, api.tenant))["source_versions"] == [8]


async def test_a_tenant_without_an_old_version_gives_nothing_up(
    api: Api, compaction: PostgresIndexCompaction, owner: Database, make_tenant: Callable[[], str]
) -> None:
    unknown = make_tenant()
    assert await compaction.give_up(unknown, now()) is None
    assert [row.key for row in await owner.run(unknown, Statement("SELECT $1", "key integer"))] == [
        0
    ]
    await api.index(source("a.md", "cancel"))
    await api.index(source("a.md", "refund"))
    assert await compaction.give_up(api.tenant, now() - RETENTION) is None
    other = api.elsewhere()
    await a_history(other, owner)
    rows = await rows_of(owner, api.tenant)
    await compact(compaction, other.tenant)
    assert await rows_of(owner, api.tenant) == rows


async def test_only_one_removes_at_a_time_and_nobody_waits(
    api: Api, compaction: PostgresIndexCompaction, database: Database, owner: Database
) -> None:
    await a_history(api, owner)
    before = await ended(owner, api.tenant)
    async with database.transaction(api.tenant) as (connection, key):
        await connection.exec_driver_sql(
            f"SELECT pg_advisory_xact_lock({REMOVAL_LOCK}, $1)", (key,)
        )
        await asyncio.wait_for(compact(compaction, api.tenant), 5)
        assert await ended(owner, api.tenant) == before
        # Writers go on, but for an erasure.
        await asyncio.wait_for(api.index(source("d.md", "cancel")), 5)
    await compaction.remove(api.tenant, OLDEST)
    assert (await ended(owner, api.tenant))["source_versions"] == KEPT["source_versions"]


# On a database of its own run: what hundreds of other tenants leave behind changes the plans.
@pytest.mark.long
async def test_no_statement_reads_what_is_live(
    api: Api, compaction: PostgresIndexCompaction, owner: Database
) -> None:
    live = [source(f"{number}.md", f"cancel number {number}") for number in range(300)]
    await api.index(*live)
    await api.index(source("a.md", "cancel"))
    await api.index(source("a.md", "refund"))
    await age(owner, api.tenant, 3)
    assert await compaction.give_up(api.tenant, now() - RETENTION) == 3
    await forget_statistics(owner)
    with explaining_changes() as plans:
        await compaction.remove(api.tenant, IndexVersion(3))
    for statement, found in plans:
        for scan in found:
            assert scan.kind != "Seq Scan", (scan, statement)
            assert (scan.rows or 0) + scan.dropped_rows <= 8, (scan, statement)
    left = await ended(owner, api.tenant)
    assert {table: versions for table, versions in left.items() if versions} == {
        "index_versions": [3]
    }


class _Clock:
    def __init__(self) -> None:
        self.at = now()

    def __call__(self) -> datetime:
        return self.at


class _Rounds:
    """The real adapter, counting and failing as told."""

    def __init__(self, compaction: PostgresIndexCompaction) -> None:
        self._compaction = compaction
        self.calls: list[str] = []
        self.failing = ""

    async def give_up(self, tenant: str, before: datetime) -> IndexVersion | None:
        self._note("give up", tenant)
        return await self._compaction.give_up(tenant, before)

    async def remove(self, tenant: str, oldest: IndexVersion) -> None:
        self._note("remove", tenant)
        await self._compaction.remove(tenant, oldest)

    def _note(self, what: str, tenant: str) -> None:
        self.calls.append(what)
        if tenant == self.failing:
            raise RuntimeError("told to fail")


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


async def test_each_tenant_that_was_seen_is_compacted_once_an_hour(
    api: Api, compaction: PostgresIndexCompaction, owner: Database, clock: _Clock
) -> None:
    await a_history(api, owner)
    rounds = _Rounds(compaction)
    compactor = Compactor(rounds, retention=RETENTION, now=clock, grace_s=0)
    await compactor.compact_due()
    assert rounds.calls == []
    for _ in range(3):
        compactor.saw(api.tenant)
        await compactor.compact_due()
    assert rounds.calls == ["give up", "remove"]
    assert await ended(owner, api.tenant) == KEPT
    clock.at += timedelta(hours=1)
    await compactor.compact_due()
    assert rounds.calls == ["give up", "remove", "give up"]


async def test_a_version_is_refused_for_a_while_before_it_is_removed(
    api: Api, compaction: PostgresIndexCompaction, owner: Database, clock: _Clock
) -> None:
    made = await a_history(api, owner)
    before = await ended(owner, api.tenant)
    compactor = Compactor(compaction, retention=RETENTION, now=clock, grace_s=3600)
    compactor.saw(api.tenant)
    async with compactor.running():
        async with asyncio.timeout(10):
            while (await _as_of(api, made[0])).status_code != 422:
                pass
        assert await ended(owner, api.tenant) == before


async def _as_of(api: Api, snapshot: Json) -> httpx.Response:
    return await api.post(question("cancel", asOf={"snapshot": snapshot["hash"]}))


async def test_a_failure_is_one_tenants_alone_and_made_up_for_an_hour_later(
    api: Api, compaction: PostgresIndexCompaction, owner: Database, clock: _Clock
) -> None:
    other, rounds = api.elsewhere(), _Rounds(compaction)
    for one in (api, other):
        await a_history(one, owner)
    compactor = Compactor(rounds, retention=RETENTION, now=clock, grace_s=0)
    compactor.saw(api.tenant)
    compactor.saw(other.tenant)
    rounds.failing = api.tenant
    await compactor.compact_due()
    assert (await ended(owner, api.tenant))["source_versions"] == [2, 6, 7, 8]
    assert await ended(owner, other.tenant) == KEPT
    rounds.failing = ""
    clock.at += timedelta(hours=1)
    await compactor.compact_due()
    assert await ended(owner, api.tenant) == KEPT


async def test_without_a_retention_everything_is_kept(
    api: Api, compaction: PostgresIndexCompaction, owner: Database, clock: _Clock
) -> None:
    await a_history(api, owner)
    rounds = _Rounds(compaction)
    compactor = Compactor(rounds, retention=None, now=clock, grace_s=0)
    compactor.saw(api.tenant)
    await compactor.compact_due()
    assert rounds.calls == []


async def test_what_is_given_up_is_kept_for_as_long_as_a_request_may_take(
    api: Api,
    database: Database,
    owner: Database,
    service_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await a_history(api, owner)
    bounds = {"index_retention_days": RETENTION.days, "request_timeout_s": 77.0}
    compactor = bootstrap._compactor(service_settings.model_copy(update=bounds), database)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("app.storage.compaction.asyncio.sleep", pause)
    compactor.saw(api.tenant)
    await compactor.compact_due()
    assert pauses == [77.0]
    assert await ended(owner, api.tenant) == KEPT
