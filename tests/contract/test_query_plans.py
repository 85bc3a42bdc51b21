"""The plans of the service's statements, as PostgreSQL makes them under the serving role.

Every statement that a request sends is explained where it runs: in the tenant, behind
row-level security, with its own values. Both right after a load, when the planner knows
nothing of the tables, and with fresh statistics.
"""

import random
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager

from app.adapters.development_key import load_or_create_development_key
from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.adapters.postgres.schema import migrate
from app.config import Settings
from app.indexing.analysis import analyze, term_key
from app.main import create_app
from tests.recipes import write_recipes
from tests.scratch_database import scratch_database
from tests.tokens import TokenFactory

Json = dict[str, Any]

SOURCES, CHUNKS, WORDS = 300, 2, 60
VOCABULARY = tuple(f"word{number}" for number in range(2_000))
QUERY = "word0 word1 word7 word40 word300"
ARRAYS = ("postings", "ended_postings")
FEW_PROJECTS = {"projects": ["p3", "p7"]}
EXPANDING = {"expanding": "retrievers: [{name: lexical, limit: 5}]\nexpansion: {hops: 3}"}

# Copies of the tenant under other keys: everything is copied often, so that no table is so
# small that reading it whole would be right, and what is big in any case only a few times.
COPIES = {
    "tenants": 60,
    "labels": 60,
    "label_states": 60,
    "source_versions": 60,
    "snapshots": 60,
    "snapshot_sources": 5,
    "repeats": 60,
    "snapshot_contents": 60,
    "index_versions": 60,
    "chunks": 3,
    "source_contents": 3,
    "postings": 3,
    "ended_postings": 60,
    "audit_events": 60,
}


@dataclass(frozen=True, slots=True)
class Scan:
    """One node of a plan that reads a table; `rows` is None for a plan that was not run."""

    kind: str
    table: str
    condition: str
    rows: float | None
    dropped_rows: float


@dataclass(frozen=True, slots=True)
class Explained:
    sql: str
    scans: tuple[Scan, ...]

    def of(self, *tables: str) -> tuple[Scan, ...]:
        return tuple(scan for scan in self.scans if scan.table in tables)


def scans(node: Json) -> Iterator[Scan]:
    """The nodes of a plan that read a table; a bitmap counts by the index that it comes from."""
    if "Relation Name" in node and node["Node Type"] != "ModifyTable":
        below = node.get("Plans", ()) if node["Node Type"] == "Bitmap Heap Scan" else ()
        conditions = [node.get("Index Cond", ""), *(one.get("Index Cond", "") for one in below)]
        loops = node.get("Actual Loops", 0)
        dropped = node.get("Rows Removed by Filter", 0) + node.get(
            "Rows Removed by Index Recheck", 0
        )
        yield Scan(
            node["Node Type"],
            node["Relation Name"],
            " ".join(conditions),
            node["Actual Rows"] * loops if "Actual Rows" in node else None,
            dropped * loops,
        )
    for child in node.get("Plans", ()):
        yield from scans(child)


@contextmanager
def explaining() -> Iterator[list[Explained]]:
    """Explain whatever goes through `Database.run`; what only reads is run for it."""
    run, found = Database.run, list[Explained]()

    async def explain_and_run(
        self: Database,
        tenant: str,
        statement: Statement,
        arguments: Any = None,
        *,
        numbers: Sequence[int] = (),
        blobs: Sequence[bytes] = (),
    ) -> Sequence[sa.Row[Any]]:
        options = "FORMAT JSON" if statement.adds_tenant else "ANALYZE, FORMAT JSON"
        explain = Statement(f"EXPLAIN ({options}) {statement.sql}", "plan json")
        plan = await run(self, tenant, explain, arguments, numbers=numbers, blobs=blobs)
        found.append(Explained(statement.sql, tuple(scans(plan[0].plan[0]["Plan"]))))
        return await run(self, tenant, statement, arguments, numbers=numbers, blobs=blobs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "run", explain_and_run)
        yield found


@dataclass(frozen=True)
class World:
    client: httpx.AsyncClient
    token: TokenFactory
    superuser: Database
    alone: list[Explained] = field(default_factory=list)
    """What a request sent while there was no other tenant, nor any statistics."""

    async def put(self, sources: list[Json]) -> None:
        headers = self.token.headers("big")
        answer = await self.client.put("/sources", json={"sources": sources}, headers=headers)
        assert answer.status_code == 200, answer.text

    async def post(self, number: int, claims: Json, **members: Any) -> Json:
        ids = {"runId": str(uuid.UUID(int=number)), "attemptId": str(uuid.UUID(int=number))}
        answer = await self.client.post(
            "/snapshots",
            json={**ids, "query": QUERY, **members},
            headers=self.token.headers("big", **claims),
        )
        assert answer.status_code in (200, 201), answer.text
        snapshot: Json = answer.json()
        return snapshot

    async def get(self, path: str, claims: Json) -> None:
        answer = await self.client.get(path, headers=self.token.headers("big", **claims))
        assert answer.status_code == 200, answer.text

    async def execute(self, sql: str, **values: Any) -> Sequence[Any]:
        async with self.superuser.engine.begin() as connection:
            result = await connection.execute(sa.text(sql), values)
            return result.all() if result.returns_rows else ()


def source(number: int, revision: int = 1) -> Json:
    chosen = random.Random(number * 1_000 + revision)
    weights = [1 / (at + 5) for at in range(len(VOCABULARY))]
    texts = [" ".join(chosen.choices(VOCABULARY, weights, k=WORDS)) for _ in range(CHUNKS)]
    return {
        "project": f"p{number % 20}",
        "sourceId": f"docs/{number}.md",
        "sourceRevision": str(revision),
        "class": ("documents", "code", "schema")[number % 3],
        "classification": ("public", "internal")[number % 2],
        "chunks": [{"chunkId": str(at), "text": text} for at, text in enumerate(texts)],
        # Twenty sources share a project; the last link leads nowhere.
        "links": [f"docs/{(number + 20 * step) % SOURCES}.md" for step in (1, 2, 5, 7)] + ["gone"],
    }


async def fill(world: World) -> None:
    for table in COPIES:
        await world.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    await world.put([source(number) for number in range(SOURCES)])
    for number in range(25):
        await world.post(number, {})
    with explaining() as plans:
        await world.post(25, {})
    world.alone.extend(plans)
    await world.put([source(number, revision=2) for number in range(20)])
    (row,) = await world.execute("SELECT tenant_key FROM tenants WHERE name = 'big'")
    for table, copies in COPIES.items():
        columns = await world.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:name AS regclass) "
            "AND attnum > 0 AND attname <> 'tenant_key' ORDER BY attnum",
            name=table,
        )
        names = ", ".join(column.attname for column in columns)
        copied = names.replace("name", "name || n") if table == "tenants" else names
        await world.execute(
            f"INSERT INTO {table} (tenant_key, {names}) OVERRIDING SYSTEM VALUE "
            f"SELECT n, {copied} FROM {table}, generate_series(1001, 1000 + {copies}) n "
            f"WHERE tenant_key = {row.tenant_key}"
        )
    await world.execute(
        "INSERT INTO tenants (tenant_key, name) OVERRIDING SYSTEM VALUE "
        "SELECT n, 'small' || n FROM generate_series(2001, 4000) n"
    )


@pytest.fixture(scope="module")
async def world(
    embedded: EmbeddedDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A tenant with tens of thousands of postings among others like it."""
    data_dir: Path = tmp_path_factory.mktemp("plans")
    async with scratch_database(embedded) as scratch:
        await migrate(scratch.owner_url, serving_role="ctxsnap_service")
        given: dict[str, Any] = {"database_url": scratch.serving_url, "data_dir": data_dir}
        recipes = write_recipes(data_dir, EXPANDING)
        app = create_app(Settings(**given, strategies_dir=recipes, log_level="warning"))
        superuser = Database(scratch.superuser_url)
        async with (
            LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://service"
            ) as client,
        ):
            token = TokenFactory(load_or_create_development_key(data_dir))
            made = World(client, token, superuser)
            await fill(made)
            yield made
        await superuser.close()


async def know(world: World, statistics: bool) -> None:
    if statistics:
        for table in COPIES:
            await world.execute(f"ANALYZE {table}")
    known = await world.execute("SELECT count(*) AS found FROM pg_stats WHERE tablename = 'chunks'")
    assert (known[0].found > 0) == statistics


# One list, because statistics once taken are there for those that come after.
@pytest.fixture(
    scope="module",
    params=[(False, {}), (False, FEW_PROJECTS), (True, {}), (True, FEW_PROJECTS)],
    ids=["blind", "blind, few projects", "analyzed", "analyzed, few projects"],
)
async def explained(world: World, request: pytest.FixtureRequest) -> dict[str, list[Explained]]:
    """The plans of every statement of a request's, by the request."""
    statistics, claims = request.param
    await know(world, statistics)
    number = uuid.uuid4().int
    found: dict[str, list[Explained]] = {}
    with explaining() as plans:
        made = await world.post(number, claims)
        found["assemble"] = plans[:]
        plans.clear()
        assert made["items"]
        assert (await world.post(number, claims))["hash"] == made["hash"]
        found["repeat"] = plans[:]
        plans.clear()
        pin = {"project": "p3", "sourceId": "docs/23.md"}
        narrowed = {"sources": {"allow": ["docs/*"], "deny": ["docs/1*"]}}
        await world.post(number + 1, claims, pins=[pin], scope=narrowed)
        found["assemble narrowed"] = plans[:]
        plans.clear()
        await world.post(number + 2, claims, strategy="expanding", scope=narrowed)
        found["assemble expanded"] = plans[:]
        plans.clear()
        for path in (
            f"/snapshots/{made['hash']}",
            f"/snapshots/{made['snapshotId']}",
            f"/snapshots/{made['hash']}/contents",
            f"/snapshots?runId={made['runId']}&attemptId={made['attemptId']}",
            "/snapshots?limit=5",
            "/sources?project=p3&prefix=docs/2&limit=5",
            "/sources?limit=5",
            "/index",
            "/audit?limit=5",
            "/audit?limit=5&since=2020-01-01T00:00:00Z",
        ):
            await world.get(path, claims)
            found[path.replace(made["hash"], "hash").replace(made["snapshotId"], "id")] = plans[:]
            plans.clear()
    return found


async def test_the_world_is_big_enough_to_tell(world: World) -> None:
    (row,) = await world.execute(
        """
        SELECT (SELECT count(*) FROM postings JOIN tenants t USING (tenant_key)
            WHERE t.name = 'big') AS mine, (SELECT count(*) FROM postings) AS all_tenants,
            (SELECT count(*) FROM ended_postings JOIN tenants t USING (tenant_key)
            WHERE t.name = 'big') AS ended
        """
    )
    assert row.mine > 20_000
    assert row.all_tenants > 3 * row.mine
    assert row.ended > 1_000


async def test_every_request_was_explained(explained: dict[str, list[Explained]]) -> None:
    # find_repeat, open, postings, chosen, put
    assert len(explained["assemble"]) == 5
    # find_repeat, the audit log
    assert len(explained["repeat"]) == 2
    assert all(explained.values())
    tables = {scan.table for plans in explained.values() for plan in plans for scan in plan.scans}
    assert tables >= set(COPIES) - {"index_versions", "tenants"}


async def test_no_statement_reads_a_table_whole(explained: dict[str, list[Explained]]) -> None:
    for name, plans in explained.items():
        for plan in plans:
            for scan in plan.scans:
                assert scan.kind in ("Index Scan", "Index Only Scan", "Bitmap Heap Scan"), (
                    name,
                    scan,
                    plan.sql,
                )


async def test_every_statement_reaches_an_index_by_the_tenant(
    explained: dict[str, list[Explained]],
) -> None:
    for name, plans in explained.items():
        for plan in plans:
            for scan in plan.scans:
                by_tenant = "tenant_key = " in scan.condition
                assert by_tenant or (scan.table == "tenants" and "name = " in scan.condition), (
                    name,
                    scan,
                    plan.sql,
                )


async def test_postings_are_reached_by_tenant_term_and_label(
    explained: dict[str, list[Explained]],
) -> None:
    found = [
        scan
        for name in ("assemble", "assemble narrowed")
        for plan in explained[name]
        for scan in plan.of(*ARRAYS)
    ]
    assert len(found) == 4
    for scan in found:
        for column in ("tenant_key = ", "term = ", "label_key = ANY"):
            assert column in scan.condition, scan


async def test_no_posting_is_read_in_vain(
    world: World, explained: dict[str, list[Explained]], request: pytest.FixtureRequest
) -> None:
    """What is read is what the query's terms have under the scope's labels, to the row."""
    projects = request.node.callspec.params["explained"][1].get("projects")
    (wanted,) = await world.execute(
        """
        SELECT count(*) AS postings FROM postings p
        JOIN labels l USING (tenant_key, label_key) JOIN tenants t USING (tenant_key)
        WHERE t.name = 'big' AND p.term = ANY(:terms)
            AND (CAST(:projects AS text[]) IS NULL OR l.project = ANY(:projects))
        """,
        terms=[term_key(term) for term in analyze(QUERY, None)],
        projects=projects,
    )
    assert wanted.postings > 0
    (scan,) = [scan for plan in explained["assemble"] for scan in plan.of("postings")]
    assert scan.rows == pytest.approx(wanted.postings, abs=1)
    assert scan.dropped_rows == 0
    (ended,) = [scan for plan in explained["assemble"] for scan in plan.of("ended_postings")]
    assert (ended.rows, ended.dropped_rows) == (0, 0)


async def test_patterns_do_not_make_a_posting_be_read_twice(
    explained: dict[str, list[Explained]],
) -> None:
    (whole,) = [scan for plan in explained["assemble"] for scan in plan.of("postings")]
    (narrowed,) = [scan for plan in explained["assemble narrowed"] for scan in plan.of("postings")]
    assert whole.rows
    assert narrowed.rows is not None
    assert narrowed.rows <= whole.rows


async def test_chosen_chunks_are_looked_up_by_key(explained: dict[str, list[Explained]]) -> None:
    # The statement after the one on postings; the place in the sequence is checked above.
    chosen = explained["assemble"][3]
    candidates = max(scan.rows or 0 for scan in chosen.of("chunks"))
    assert candidates > 0
    for scan in chosen.scans:
        assert scan.kind in ("Index Scan", "Index Only Scan"), scan
        assert scan.rows is not None
        assert scan.rows <= candidates, scan
        assert scan.dropped_rows == 0, scan


async def test_links_are_followed_by_key(explained: dict[str, list[Explained]]) -> None:
    """Each source on a path is one row of the index, wherever the path leads."""
    (paths,) = [plan for plan in explained["assemble expanded"] if "hop_1" in plan.sql]
    sources = paths.of("source_versions")
    assert len(sources) == 4
    for scan in sources:
        for column in ("tenant_key = ", "project = ", "source_id = "):
            assert column in scan.condition, scan
    assert sum(scan.rows or 0 for scan in sources) > 10
    for scan in paths.scans:
        assert scan.kind in ("Index Scan", "Index Only Scan"), scan
    chunks = sum(scan.rows or 0 for scan in paths.of("chunks"))
    assert 0 < chunks <= CHUNKS * sum(scan.rows or 0 for scan in sources)


@pytest.mark.parametrize("name", ["repeat", "/snapshots/hash", "/snapshots/id"])
async def test_one_snapshot_is_found_by_key(
    explained: dict[str, list[Explained]], name: str
) -> None:
    # The last one adds to the audit log and reads nothing.
    *found, audited = explained[name]
    assert found
    assert audited.scans == ()
    for plan in found:
        (scan,) = plan.of("snapshots")
        assert (scan.rows, scan.dropped_rows) == (1, 0)
        assert "hash = " in scan.condition or "snapshot_id = " in scan.condition


def test_the_walk_reports_a_table_that_is_read_whole() -> None:
    plan = {
        "Node Type": "Aggregate",
        "Plans": [
            {
                "Node Type": "Bitmap Heap Scan",
                "Relation Name": "chunks",
                "Actual Rows": 2.0,
                "Actual Loops": 3,
                "Plans": [{"Node Type": "Bitmap Index Scan", "Index Cond": "(tenant_key = 1)"}],
            },
            {"Node Type": "Seq Scan", "Relation Name": "postings", "Filter": "(term = 1)"},
        ],
    }
    assert list(scans(plan)) == [
        Scan("Bitmap Heap Scan", "chunks", " (tenant_key = 1)", 6, 0),
        Scan("Seq Scan", "postings", "", None, 0),
    ]


@pytest.mark.parametrize("name", ["assemble", "repeat", "/snapshots/hash", "/snapshots/id"])
async def test_the_sources_of_other_snapshots_are_not_read(
    world: World, explained: dict[str, list[Explained]], name: str
) -> None:
    """Whether a caller may read a snapshot costs as much as its own sources are many."""
    (held,) = await world.execute(
        """
        SELECT max(sources) AS most, sum(sources) AS of_all FROM (
            SELECT count(*) AS sources FROM snapshot_sources s JOIN tenants t USING (tenant_key)
            WHERE t.name = 'big' GROUP BY s.hash
        ) one
        """
    )
    assert held.of_all > 5 * held.most
    (scan,) = explained[name][0].of("snapshot_sources")
    assert scan.rows is not None
    # A snapshot that is not there yet has none.
    assert scan.rows + scan.dropped_rows <= (0 if name == "assemble" else held.most)


async def test_looking_for_a_repeat_reads_no_snapshot_while_the_database_is_young(
    world: World,
) -> None:
    """Few rows of one tenant and no statistics: any order of joining looks as cheap."""
    repeat = world.alone[0]
    assert "FROM repeats" in repeat.sql
    read = [scan for scan in repeat.scans if scan.rows or scan.dropped_rows]
    assert read == []
