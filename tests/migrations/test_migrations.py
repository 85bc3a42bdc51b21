"""Migrations: from empty, step by step, twice at once, and refused when the schema is newer.

What has to hold after every one of them is checked on the catalogue: no relation shows
more than one tenant, and the serving role has the rights that are listed here and no more.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import SERVING_ROLE, EmbeddedDatabase
from app.adapters.postgres.schema import check_readiness, known_revisions, migrate
from app.bootstrap import running_application
from app.config import Settings
from app.errors import ConfigurationError, ServiceError
from tests.scratch_database import scratch_database

OLDEST_FIRST = tuple(reversed(known_revisions()))
HEAD = known_revisions()[0]

SHARED_TABLES = {"alembic_version"}
"""Tables that hold nothing of any tenant."""

READ, ADD, CHANGE, REMOVE = "SELECT", "INSERT", "UPDATE", "DELETE"
RIGHTS = {
    "alembic_version": {READ},
    "tenants": {READ, ADD, CHANGE},
    "labels": {READ, ADD},
    "index_versions": {READ, ADD, REMOVE},
    "label_states": {READ, ADD, CHANGE, REMOVE},
    "source_versions": {READ, ADD, CHANGE, REMOVE},
    "source_heads": {READ, ADD, CHANGE, REMOVE},
    "source_originals": {READ, ADD, REMOVE},
    "chunks": {READ, ADD, REMOVE},
    "source_contents": {READ, ADD, REMOVE},
    "postings": {READ, ADD, REMOVE},
    "ended_postings": {READ, ADD, REMOVE},
    "vectors": {READ, ADD, REMOVE},
    "ended_vectors": {READ, ADD, REMOVE},
    "vector_states": {READ, ADD, CHANGE, REMOVE},
    "snapshots": {READ, ADD},
    "snapshot_sources": {READ, ADD},
    "snapshot_contents": {READ, ADD},
    "repeats": {READ, ADD, CHANGE},
    "idempotency_keys": {READ, ADD},
    "rate_limits": {READ, ADD, CHANGE},
    "audit_events": {READ, ADD},
    "audit_unsealed": {READ, ADD, REMOVE},
    "audit_seals": {READ, ADD},
}

_BY_NAME = "(name = current_setting('ctxsnap.tenant'::text, true))"
_BY_KEY = (
    "(tenant_key = (NULLIF(current_setting('ctxsnap.tenant_key'::text, true), ''::text))::integer)"
)
_RELATIONS = """
    SELECT c.relname AS name, c.relkind::text AS kind, c.relrowsecurity AS enabled,
        c.relforcerowsecurity AS forced,
        ARRAY(SELECT concat_ws(' ', p.permissive, p.roles, p.cmd, p.qual, p.with_check)
            FROM pg_policies p WHERE p.schemaname = n.nspname AND p.tablename = c.relname
        ) AS policies
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
        AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""
_GRANTED = f"""
    SELECT c.relname AS name, array_agg(a.privilege_type) AS rights
    FROM pg_class c CROSS JOIN LATERAL (
        SELECT * FROM aclexplode(c.relacl) UNION ALL
        SELECT one.* FROM pg_attribute t CROSS JOIN LATERAL aclexplode(t.attacl) one
        WHERE t.attrelid = c.oid
    ) a
    WHERE a.grantee IN (0, '{SERVING_ROLE}'::regrole) AND c.relnamespace = 'public'::regnamespace
    GROUP BY c.relname
"""
_SHAPE = """
    SELECT table_name || '.' || column_name || ' ' || data_type || is_nullable
        || COALESCE(column_default, '') FROM information_schema.columns
    WHERE table_schema = 'public'
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT conrelid::regclass || conname || pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT pg_get_triggerdef(oid) || tgenabled::text
    FROM pg_trigger WHERE NOT tgisinternal
    ORDER BY 1
"""


async def unconfined_relations(connection: AsyncConnection) -> set[str]:
    """Names of relations that may show rows of more than one tenant.

    A view shows what its owner may see and a materialised one cannot be confined at all;
    a second policy would add to what the first one shows.
    """
    rows = await connection.execute(sa.text(_RELATIONS))
    return {
        row.name
        for row in rows
        if row.name not in SHARED_TABLES
        and not (
            row.kind in ("r", "p")
            and row.enabled
            and row.forced
            and row.policies
            == [f"PERMISSIVE {{public}} ALL {_BY_NAME if row.name == 'tenants' else _BY_KEY}"]
        )
    }


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncConnection]:
    """A connection whose changes are rolled back unless they are committed."""
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


async def values(connection: AsyncConnection, sql: str) -> Sequence[Any]:
    return (await connection.execute(sa.text(sql))).scalars().all()


async def migrate_owned(scratch: EmbeddedDatabase, target: str = "head") -> str:
    return await migrate(scratch.owner_url, serving_role=SERVING_ROLE, target=target)


@pytest.fixture
async def scratch(embedded: EmbeddedDatabase) -> AsyncIterator[EmbeddedDatabase]:
    async with scratch_database(embedded) as made:
        yield made


async def test_each_migration_applies_on_the_one_before(
    scratch: EmbeddedDatabase, migrated: EmbeddedDatabase
) -> None:
    keys = set()
    for revision in OLDEST_FIRST:
        assert await migrate_owned(scratch, revision) == revision
        async with connected(scratch.serving_url) as connection:
            assert await unconfined_relations(connection) == set()
            keys.add((await values(connection, "SELECT enter_tenant('kept', true)"))[0])
            await connection.commit()
    assert len(keys) == 1, "a migration lost a tenant"
    async with connected(scratch.superuser_url) as connection:
        assert await values(connection, "SELECT to_regclass('vectors')") == [None]
        await connection.execute(sa.text("CREATE EXTENSION vector"))
        await connection.commit()
    # Installed after the last revision, it gets its tables with the next migration.
    assert await migrate_owned(scratch) == HEAD
    async with connected(scratch.owner_url) as stepwise, connected(migrated.owner_url) as at_once:
        assert await values(stepwise, _SHAPE) == await values(at_once, _SHAPE)


async def test_migrations_that_run_at_once_migrate_once_and_all_succeed(
    scratch: EmbeddedDatabase,
) -> None:
    assert await asyncio.gather(*(migrate_owned(scratch) for _ in range(3))) == [HEAD] * 3
    assert await migrate_owned(scratch) == HEAD
    async with connected(scratch.serving_url) as connection:
        assert await values(connection, "SELECT version_num FROM alembic_version") == [HEAD]


async def test_a_migration_that_fails_leaves_the_revision_before_it(
    scratch: EmbeddedDatabase,
) -> None:
    before = OLDEST_FIRST[OLDEST_FIRST.index("0005") - 1]
    await migrate_owned(scratch, before)
    async with connected(scratch.owner_url) as connection:
        await connection.execute(sa.text("CREATE TABLE source_originals (in_the_way boolean)"))
        await connection.commit()
    with pytest.raises(ServiceError, match="42P07"):
        await migrate_owned(scratch)
    async with connected(scratch.owner_url) as connection:
        assert await values(connection, "SELECT version_num FROM alembic_version") == [before]
        assert await values(connection, "SELECT to_regclass('source_heads')") == [None]
        await connection.execute(sa.text("DROP TABLE source_originals"))
        await connection.commit()
    assert await migrate_owned(scratch) == HEAD


@pytest.mark.parametrize(
    ("revisions", "sentence"),
    [
        (["9999"], rf"revision 9999, which is newer than this program \(it knows up to {HEAD}\)"),
        ([HEAD, "9998", "9999"], "revision 9998, 9999, which is newer"),
        ([OLDEST_FIRST[0], HEAD], f"revisions {OLDEST_FIRST[0]}, {HEAD} at once"),
    ],
    ids=["newer", "newer ones beside the head", "two known ones"],
)
async def test_a_schema_that_is_not_this_programs_is_refused_when_migrating_and_when_starting(
    scratch: EmbeddedDatabase, tmp_path: Path, revisions: list[str], sentence: str
) -> None:
    await migrate_owned(scratch)
    async with connected(scratch.owner_url) as connection:
        await connection.execute(sa.text("DELETE FROM alembic_version"))
        for revision in revisions:
            await connection.execute(
                sa.text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision}
            )
        await connection.commit()
        before = await values(connection, _SHAPE)
    with pytest.raises(ConfigurationError, match=sentence):
        await migrate_owned(scratch)
    given: dict[str, Any] = {"database_url": scratch.serving_url, "data_dir": tmp_path}
    with pytest.raises(ConfigurationError, match=sentence):
        async with running_application(Settings(**given)):
            pytest.fail("the service started on a schema that it does not know")
    async with connected(scratch.owner_url) as connection:
        assert await values(connection, _SHAPE) == before
        left = await values(connection, "SELECT version_num FROM alembic_version ORDER BY 1")
        assert left == revisions
    serving = Database(scratch.serving_url)
    (found,) = [one for one in await check_readiness(serving) if one.name == "migrations"]
    await serving.close()
    assert not found.ok
    assert f"schema at {', '.join(revisions)}, program at {HEAD}" in found.detail


async def test_every_relation_is_confined_to_one_tenant(migrated: EmbeddedDatabase) -> None:
    async with connected(migrated.serving_url) as connection:
        found = {row.name for row in await connection.execute(sa.text(_RELATIONS))}
        assert found == set(RIGHTS)
        assert await unconfined_relations(connection) == set()


_TABLE = "CREATE TABLE careless (tenant_key integer PRIMARY KEY)"
_ENABLED = f"{_TABLE}; ALTER TABLE careless ENABLE ROW LEVEL SECURITY"
_FORCED = f"{_ENABLED}; ALTER TABLE careless FORCE ROW LEVEL SECURITY"
_POLICY = "CREATE POLICY tenant_isolation ON {} USING {}"


@pytest.mark.parametrize(
    ("change", "table"),
    [
        (_TABLE, "careless"),
        ("CREATE SCHEMA aside; CREATE TABLE aside.careless (tenant_key integer)", "careless"),
        (f"{_ENABLED}; {_POLICY.format('careless', _BY_KEY)}", "careless"),
        (_FORCED, "careless"),
        (f"{_FORCED}; {_POLICY.format('careless', '(true)')}", "careless"),
        (f"{_FORCED}; {_POLICY.format('careless', _BY_KEY)} WITH CHECK (true)", "careless"),
        ("CREATE POLICY more ON snapshots FOR SELECT USING (true)", "snapshots"),
        ("ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY", "tenants"),
        ("CREATE VIEW careless AS SELECT * FROM snapshots", "careless"),
        ("CREATE MATERIALIZED VIEW careless AS SELECT * FROM snapshots", "careless"),
    ],
)
async def test_the_check_reports_a_relation_that_is_not_confined(
    migrated: EmbeddedDatabase, change: str, table: str
) -> None:
    async with connected(migrated.superuser_url) as connection:
        for statement in change.split("; "):
            await connection.execute(sa.text(statement))
        assert await unconfined_relations(connection) == {table}


async def test_the_check_accepts_a_confined_table(migrated: EmbeddedDatabase) -> None:
    async with connected(migrated.owner_url) as connection:
        for statement in (*_FORCED.split("; "), _POLICY.format("careless", _BY_KEY)):
            await connection.execute(sa.text(statement))
        assert await unconfined_relations(connection) == set()


async def test_every_index_begins_with_the_tenant(migrated: EmbeddedDatabase) -> None:
    async with connected(migrated.serving_url) as connection:
        found = await connection.execute(
            sa.text(
                """
                SELECT i.indexrelid::regclass::text AS name FROM pg_index i
                JOIN pg_class c ON c.oid = i.indrelid
                JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
                WHERE c.relnamespace = 'public'::regnamespace AND a.attname <> 'tenant_key'
                """
            )
        )
        # By name is how a tenant is entered.
        assert {row.name for row in found} == {"tenants_name_key", "alembic_version_pkc"}


async def test_the_serving_role_has_exactly_the_rights_listed(migrated: EmbeddedDatabase) -> None:
    async with connected(migrated.serving_url) as connection:
        granted = await connection.execute(sa.text(_GRANTED))
        assert {row.name: set(row.rights) for row in granted} == RIGHTS
        functions = await values(
            connection,
            f"""
            SELECT proname FROM pg_proc p WHERE pronamespace = 'public'::regnamespace
            AND has_function_privilege('{SERVING_ROLE}', p.oid, 'EXECUTE')
            AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = p.oid AND deptype = 'e')
            """,
        )
        # The last one only refuses; triggers call it.
        assert set(functions) == {"enter_tenant", "in_tenant", "refuse_change"}
        assert await values(connection, "SELECT proname FROM pg_proc WHERE prosecdef") == []


async def test_the_serving_role_owns_nothing_and_is_member_of_nothing(
    migrated: EmbeddedDatabase,
) -> None:
    async with connected(migrated.superuser_url) as connection:
        owned = f"SELECT classid FROM pg_shdepend WHERE refobjid = '{SERVING_ROLE}'::regrole"
        assert await values(connection, f"{owned} AND deptype = 'o'") == []
        assert await values(connection, f"{owned} AND deptype = 'a'") != []
        memberships = f"""
            SELECT roleid::regrole::text FROM pg_auth_members
            WHERE member = '{SERVING_ROLE}'::regrole
        """
        assert await values(connection, memberships) == []


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mine (a integer)",
        "CREATE TEMPORARY TABLE mine (a integer)",
        "CREATE SCHEMA mine",
        "CREATE FUNCTION mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE OR REPLACE FUNCTION enter_tenant(tenant text, may_add boolean) RETURNS integer "
        "LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE snapshots DISABLE TRIGGER immutable_rows",
        "ALTER TABLE snapshots DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        "ALTER TABLE snapshots DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE snapshots NO FORCE ROW LEVEL SECURITY",
        "DROP POLICY tenant_isolation ON snapshots",
        "CREATE POLICY mine ON snapshots USING (true)",
        "DROP TABLE postings",
        "TRUNCATE postings",
        "DELETE FROM tenants",
        "UPDATE snapshots SET engine = ''",
        "UPDATE alembic_version SET version_num = '9'",
        "SET ROLE ctxsnap_owner",
        "SET ROLE ctxsnap_superuser",
        "SET SESSION AUTHORIZATION ctxsnap_owner",
        "ALTER ROLE ctxsnap_service BYPASSRLS",
        "GRANT ctxsnap_owner TO ctxsnap_service",
        "COPY labels TO PROGRAM 'cat'",
        "SELECT pg_read_file('PG_VERSION')",
    ],
)
async def test_the_serving_role_is_refused(database: Database, statement: str) -> None:
    async with database.engine.connect() as connection:
        with pytest.raises(DBAPIError) as refused:
            await connection.execute(sa.text(statement))
    assert getattr(refused.value.orig, "sqlstate", None) == "42501", refused.value


async def test_row_security_that_is_switched_off_shows_nothing(database: Database) -> None:
    async with database.engine.connect() as connection:
        await connection.execute(sa.text("SET LOCAL row_security = off"))
        with pytest.raises(DBAPIError, match="would be affected by row-level security"):
            await connection.execute(sa.text("SELECT * FROM labels"))
