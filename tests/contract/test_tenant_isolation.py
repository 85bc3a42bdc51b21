"""Tenants are kept apart by the database itself, whatever a statement asks for.

The statements here name no tenant, as one that was written carelessly would; every table
is filled for the tenant that must stay hidden, so that nothing passes for want of rows.
"""

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.adapters.postgres.rate_limits import PostgresRateLimiter
from app.adapters.postgres.schema import check_readiness, migrate
from app.errors import ServiceError
from app.rate_limits import RateLimits
from tests.scratch_database import changed_url, scratch_database
from tests.tokens import TokenFactory
from tests.word_vectors import WordVectors, embed_all

TABLES = (
    "tenants",
    "labels",
    "index_versions",
    "label_states",
    "source_versions",
    "source_heads",
    "chunks",
    "source_contents",
    "source_originals",
    "postings",
    "ended_postings",
    "vectors",
    "ended_vectors",
    "vector_states",
    "snapshots",
    "snapshot_sources",
    "snapshot_contents",
    "repeats",
    "idempotency_keys",
    "rate_limits",
    "audit_events",
    "audit_unsealed",
    "audit_seals",
)
_COUNTS = " UNION ALL ".join(
    f"SELECT '{name}' AS name, tenant_key, count(*) AS found FROM {name} GROUP BY tenant_key"
    for name in TABLES
)
COUNTS = Statement(_COUNTS, "name text, tenant_key integer, found bigint")
KEY = Statement("SELECT $1", "tenant_key integer")
LEFT_OVER = """
    SELECT pg_backend_pid() AS pid, COALESCE(current_setting('ctxsnap.tenant', true), '') AS tenant,
        COALESCE(current_setting('ctxsnap.tenant_key', true), '') AS tenant_key
"""


@pytest.fixture(scope="module")
async def filled(
    client: httpx.AsyncClient,
    token: TokenFactory,
    make_tenant: Callable[[], str],
    database: Database,
) -> tuple[str, str]:
    """Two tenants with rows in every table."""
    tenants = (make_tenant(), make_tenant())
    for tenant in tenants:
        headers = token.headers(tenant)
        for revision in ("1", "2"):
            source = {
                "project": "alpha",
                "sourceId": "a.md",
                "sourceRevision": revision,
                "class": "documents",
                "text": f"cancel a booking, revision {revision}",
            }
            put = await client.put("/sources", json={"sources": [source]}, headers=headers)
            assert put.status_code == 200, put.text
            await embed_all(database, tenant, WordVectors())
        head = {"project": "alpha", "sourceId": "a.md", "sourceRevision": "3"}
        told = await client.put("/sources/heads", json={"heads": [head]}, headers=headers)
        assert told.status_code == 200, told.text
        item = {"class": "task", "project": "alpha", "sourceId": "task:1", "sourceRevision": "1"}
        request = {
            "runId": str(uuid.uuid4()),
            "attemptId": str(uuid.uuid4()),
            "query": "cancel",
            "items": [{**item, "chunkId": "0", "text": "Cancel it.", "trustTier": "user"}],
        }
        keyed = {**headers, "Idempotency-Key": "k"}
        made = await client.post("/snapshots", json=request, headers=keyed)
        assert made.status_code == 201, made.text
        await PostgresRateLimiter(database).count(tenant, "ana", RateLimits(1, 1))
        # Seals what was until here, and leaves an event of its own that is not sealed.
        sealed = await client.get("/audit/seals", headers=headers)
        assert sealed.status_code == 200, sealed.text
    return tenants


@pytest.fixture
async def single(migrated: EmbeddedDatabase) -> AsyncIterator[Database]:
    """One connection only, so that whatever a tenant leaves behind meets the next."""
    opened = Database(migrated.serving_url, pool_size=1)
    yield opened
    await opened.close()


async def seen_by(database: Database, tenant: str) -> set[tuple[str, int]]:
    rows = await database.run(tenant, COUNTS)
    return {(row.name, row.tenant_key) for row in rows}


async def seen_by_nobody(database: Database) -> list[Any]:
    """What the pooled connection shows and holds when no tenant was entered."""
    async with database.engine.connect() as connection:
        held = (await connection.execute(sa.text(LEFT_OVER))).one()
        assert (held.tenant, held.tenant_key) == ("", "")
        return list(await connection.execute(sa.text(_COUNTS)))


async def backend_pid(database: Database) -> int:
    async with database.engine.connect() as connection:
        return int((await connection.execute(sa.text("SELECT pg_backend_pid()"))).scalar_one())


async def test_the_tables_are_all_there_are(owner: Database) -> None:
    async with owner.engine.connect() as connection:
        found = await connection.execute(
            sa.text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        )
        assert set(found.scalars()) == {*TABLES, "alembic_version"}


async def test_a_statement_sees_the_rows_of_its_own_tenant_only(
    database: Database, filled: tuple[str, str]
) -> None:
    for tenant in filled:
        key = (await database.run(tenant, KEY))[0].tenant_key
        assert key > 0
        assert await seen_by(database, tenant) == {(name, key) for name in TABLES}


async def test_a_transaction_sees_the_rows_of_its_own_tenant_only(
    database: Database, filled: tuple[str, str]
) -> None:
    for tenant in filled:
        async with database.transaction(tenant) as (connection, key):
            rows = (await connection.execute(sa.text(_COUNTS))).all()
        assert {(row.name, row.tenant_key) for row in rows} == {(name, key) for name in TABLES}


async def test_a_pooled_connection_shows_nothing_after_a_tenant_has_left(
    single: Database, filled: tuple[str, str]
) -> None:
    pid = await backend_pid(single)
    assert len(await seen_by(single, filled[0])) == len(TABLES)
    assert await seen_by_nobody(single) == []
    async with single.transaction(filled[1]) as (connection, _):
        assert len((await connection.execute(sa.text(_COUNTS))).all()) == len(TABLES)
    assert await seen_by_nobody(single) == []
    assert await backend_pid(single) == pid, "it was another connection that showed nothing"


async def test_a_tenant_is_left_when_its_transaction_fails(
    single: Database, filled: tuple[str, str]
) -> None:
    pid = await backend_pid(single)
    with pytest.raises(ServiceError, match="22012"):
        await single.run(filled[0], Statement("SELECT 1 / 0", "one integer"))
    assert await seen_by_nobody(single) == []
    with pytest.raises(ServiceError, match="22012"):
        async with single.transaction(filled[0]) as (connection, _):
            await connection.execute(sa.text("SELECT 1 / 0"))
    assert await seen_by_nobody(single) == []
    with pytest.raises(RuntimeError, match="the caller gave up"):
        async with single.transaction(filled[0]):
            raise RuntimeError("the caller gave up")
    assert await seen_by_nobody(single) == []
    assert await backend_pid(single) == pid


async def test_a_tenant_is_left_when_its_statement_is_cancelled(
    single: Database, filled: tuple[str, str]
) -> None:
    slow = asyncio.create_task(
        single.run(filled[0], Statement("SELECT 1 FROM pg_sleep(60)", "one integer"))
    )
    await asyncio.sleep(0.2)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert await seen_by_nobody(single) == []
    assert len(await seen_by(single, filled[1])) == len(TABLES)


async def test_an_unknown_tenant_is_empty_and_leaves_no_row(
    database: Database, embedded_superuser: Database, filled: tuple[str, str], tenant: str
) -> None:
    assert await seen_by(database, tenant) == set()
    assert (await database.run(tenant, KEY))[0].tenant_key == 0
    async with embedded_superuser.engine.connect() as connection:
        stored = await connection.execute(
            sa.text("SELECT count(*) FROM tenants WHERE name = :name"), {"name": tenant}
        )
        assert stored.scalar_one() == 0


@pytest.mark.parametrize(
    "name",
    [
        "x' OR '1'='1' --",
        "'; DROP TABLE tenants; --",
        '"quoted"',
        "$1",
        "100%",
        "%",
        "_",
        "%s %(name)s :name {columns}",
        "back\\slash\\",
        " ",
        "line\nfeed",
        "テナント 🏢",
        "cafe\u0301",
        "ctxsnap.tenant",
        "0",
    ],
)
async def test_a_tenant_may_have_any_name(
    single: Database,
    filled: tuple[str, str],
    client: httpx.AsyncClient,
    token: TokenFactory,
    name: str,
) -> None:
    assert await seen_by(single, name) == set()
    adding = Statement(KEY.sql, KEY.columns, adds_tenant=True)
    key = (await single.run(name, adding))[0].tenant_key
    assert key > 0
    named = Statement("SELECT name FROM tenants", "name text")
    assert [row.name for row in await single.run(name, named)] == [name]
    assert await seen_by(single, name) == {("tenants", key)}
    assert await seen_by_nobody(single) == []
    described = await client.get("/sources", headers=token.headers(name))
    assert (described.status_code, described.json()["sources"]) == (200, [])


async def test_names_that_only_look_alike_are_different_tenants(
    database: Database, make_tenant: Callable[[], str]
) -> None:
    stem = make_tenant()
    names = (f"{stem}é", f"{stem}e\u0301", f"{stem}É", f"{stem}é ")
    adding = Statement(KEY.sql, KEY.columns, adds_tenant=True)
    keys = {(await database.run(name, adding))[0].tenant_key for name in names}
    assert len(keys) == len(names)


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO postings VALUES (($2->>'key')::integer, 1, 1, 1, 1) RETURNING 1",
        "INSERT INTO index_versions VALUES (($2->>'key')::integer, 99, 1, 'e') RETURNING 1",
        "INSERT INTO tenants (name) VALUES ('another tenant') RETURNING 1",
        "UPDATE label_states SET tenant_key = ($2->>'key')::integer RETURNING 1",
        "UPDATE tenants SET name = 'another tenant' RETURNING 1",
    ],
)
async def test_a_row_of_another_tenant_is_refused(
    database: Database, filled: tuple[str, str], change: str
) -> None:
    mine, other = filled
    key = (await database.run(other, KEY))[0].tenant_key
    with pytest.raises(ServiceError, match="42501"):
        await database.run(mine, Statement(change, "one integer"), {"key": key})


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE label_states SET chunks = 0 WHERE tenant_key = ($2->>'key')::integer RETURNING 1",
        "DELETE FROM postings WHERE tenant_key = ($2->>'key')::integer RETURNING 1",
        "DELETE FROM source_contents WHERE tenant_key = ($2->>'key')::integer RETURNING 1",
    ],
)
async def test_a_change_of_another_tenants_rows_finds_none(
    database: Database, filled: tuple[str, str], change: str
) -> None:
    mine, other = filled
    key = (await database.run(other, KEY))[0].tenant_key
    assert await database.run(mine, Statement(change, "one integer"), {"key": key}) == []
    assert len(await seen_by(database, other)) == len(TABLES)


@asynccontextmanager
async def role(
    embedded: EmbeddedDatabase, superuser: Database, attributes: str, granted: str | None = None
) -> AsyncIterator[Database]:
    """The database as a role that was made for one test sees it."""
    name, password = f"role_{secrets.token_hex(4)}", secrets.token_hex(8)
    statements = [
        f"CREATE ROLE {name} LOGIN PASSWORD '{password}' {attributes}",
        f"GRANT CONNECT ON DATABASE ctxsnap TO {name}",
        f"GRANT SELECT ON alembic_version TO {name}",
        *([f"GRANT {granted.format(name=name)}"] if granted else []),
    ]
    async with superuser.engine.begin() as connection:
        for statement in statements:
            await connection.execute(sa.text(statement))
    opened = Database(changed_url(embedded.serving_url, username=name, password=password))
    try:
        yield opened
    finally:
        await opened.close()
        async with superuser.engine.begin() as connection:
            await connection.execute(sa.text(f"DROP OWNED BY {name}"))
            await connection.execute(sa.text(f"DROP ROLE {name}"))


async def complaint(database: Database) -> str | None:
    """What readiness says against the role."""
    (found,) = [one for one in await check_readiness(database) if one.name == "role"]
    return None if found.ok else found.detail


async def test_readiness_accepts_the_serving_role(database: Database) -> None:
    assert await complaint(database) is None
    assert all(one.ok for one in await check_readiness(database))


async def test_readiness_refuses_a_superuser(embedded_superuser: Database) -> None:
    assert "is a superuser" in (await complaint(embedded_superuser) or "")


async def test_readiness_refuses_the_owner(owner: Database) -> None:
    assert "owns tables of the service" in (await complaint(owner) or "")


@pytest.mark.parametrize(
    ("attributes", "granted", "reason"),
    [
        ("BYPASSRLS", None, "has BYPASSRLS"),
        ("CREATEROLE", None, "may give itself other roles"),
        ("", "ctxsnap_owner TO {name}", "may act as the owner"),
        ("", "ctxsnap_owner TO {name} WITH INHERIT FALSE, SET TRUE", "may act as the owner"),
        ("", "ctxsnap_superuser TO {name}", "may act as a role that bypasses"),
        ("", "ctxsnap_superuser TO {name} WITH INHERIT FALSE", "may act as a role that bypasses"),
    ],
)
async def test_readiness_refuses_a_role_that_cannot_be_confined(
    migrated: EmbeddedDatabase,
    embedded_superuser: Database,
    attributes: str,
    granted: str | None,
    reason: str,
) -> None:
    async with role(migrated, embedded_superuser, attributes, granted) as opened:
        assert reason in (await complaint(opened) or "")


async def test_readiness_refuses_membership_by_way_of_another_role(
    migrated: EmbeddedDatabase, embedded_superuser: Database
) -> None:
    between = f"between_{secrets.token_hex(4)}"
    async with embedded_superuser.engine.begin() as connection:
        await connection.execute(sa.text(f"CREATE ROLE {between}"))
        await connection.execute(sa.text(f"GRANT ctxsnap_owner TO {between}"))
    async with role(migrated, embedded_superuser, "", f"{between} TO {{name}}") as opened:
        assert "may act as the owner" in (await complaint(opened) or "")
    async with embedded_superuser.engine.begin() as connection:
        await connection.execute(sa.text(f"DROP ROLE {between}"))


async def test_readiness_accepts_another_confined_role(
    migrated: EmbeddedDatabase, embedded_superuser: Database
) -> None:
    async with role(migrated, embedded_superuser, "") as opened:
        assert await complaint(opened) is None


async def test_readiness_refuses_tables_whose_row_security_is_not_forced(
    embedded: EmbeddedDatabase,
) -> None:
    async with scratch_database(embedded) as scratch:
        await migrate(scratch.owner_url, serving_role="ctxsnap_service")
        serving, owning = Database(scratch.serving_url), Database(scratch.owner_url)
        assert await complaint(serving) is None
        for change in ("NO FORCE", "DISABLE"):
            async with owning.engine.begin() as connection:
                await connection.execute(
                    sa.text(f"ALTER TABLE snapshots {change} ROW LEVEL SECURITY")
                )
            assert "row security is not forced" in (await complaint(serving) or "")
            async with owning.engine.begin() as connection:
                for repair in ("ENABLE", "FORCE"):
                    await connection.execute(
                        sa.text(f"ALTER TABLE snapshots {repair} ROW LEVEL SECURITY")
                    )
            assert await complaint(serving) is None
        await serving.close()
        await owning.close()
