"""The schema's revision and the serving role's rights: migrating, and checking at start.

Guarantees: two processes that migrate at once do it once (an advisory lock); a database
whose schema is newer than this program is refused, never touched.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from app.adapters.postgres.database import Database, connection_url, translated_errors
from app.errors import ConfigurationError
from app.readiness import Readiness

_MIGRATIONS = Path(__file__).parents[3] / "migrations"
_MIGRATION_LOCK = 0x6374_7873_6E61_70
"""`ctxsnap` in ASCII: the key of the advisory lock that migrations hold."""


def known_revisions() -> tuple[str, ...]:
    """The revisions that this program knows, newest first."""
    script = ScriptDirectory(str(_MIGRATIONS))
    return tuple(revision.revision for revision in script.walk_revisions())


async def migrate(owner_url: str, *, serving_role: str, target: str = "head") -> str:
    """Bring the schema to `target` under the owner's role and return its revision.

    Raises ConfigurationError when the schema is newer than this program.
    """
    engine = create_async_engine(connection_url(owner_url), poolclass=NullPool)
    with translated_errors():
        try:
            async with engine.connect() as connection:
                # Held by the session, so that it spans the transactions of all steps.
                await connection.execute(
                    sa.text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK}
                )
                await connection.commit()
                refuse_unusable(await current_revisions(connection))
                await connection.commit()
                await connection.run_sync(_upgrade, serving_role, target)
                await connection.commit()
                return ", ".join(await current_revisions(connection))
        finally:
            await engine.dispose()


def _upgrade(connection: sa.Connection, serving_role: str, target: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["serving_role"] = serving_role
    command.upgrade(config, target)


async def current_revisions(connection: AsyncConnection) -> tuple[str, ...]:
    """What the database says of its schema: one revision, and none where it is empty."""
    found = await connection.execute(sa.text("SELECT to_regclass('alembic_version') IS NOT NULL"))
    if not found.scalar_one():
        return ()
    rows = await connection.execute(
        sa.text("SELECT version_num FROM alembic_version ORDER BY version_num")
    )
    return tuple(rows.scalars())


def refuse_unusable(revisions: tuple[str, ...]) -> None:
    """Raise ConfigurationError for revisions newer than this program, and for several at once."""
    known = known_revisions()
    newer = [one for one in revisions if one not in known]
    if newer:
        raise ConfigurationError(
            f"The database's schema is at revision {', '.join(newer)}, which is newer than this "
            f"program (it knows up to {known[0]}). Start a newer release of "
            f"context-snapshots, or restore a backup made before the upgrade."
        )
    if len(revisions) > 1:
        raise ConfigurationError(
            f"The database's schema is at the revisions {', '.join(revisions)} at once, which no "
            f"migration leaves behind: see to it that alembic_version holds the last one alone."
        )


async def refuse_newer_schema(database: Database) -> None:
    """Raise ConfigurationError when the schema is newer than this program."""
    with translated_errors():
        async with database.engine.connect() as connection:
            refuse_unusable(await current_revisions(connection))


async def check_readiness(database: Database) -> tuple[Readiness, ...]:
    """Whether the schema is this program's and the role is one that can be confined.

    Raises UnavailableError when the database cannot be asked.
    """
    head = known_revisions()[0]
    with translated_errors():
        async with database.engine.connect() as connection:
            revisions = await current_revisions(connection)
            role = (await connection.execute(_ROLE_FACTS)).one()
    problems = [
        text
        for text, holds in (
            ("is a superuser", role.is_superuser),
            ("has BYPASSRLS", role.bypasses),
            ("owns tables of the service", role.owns_tables),
            ("may act as the owner of the tables", role.may_become_owner),
            ("may act as a role that bypasses row security", role.may_become_exempt),
            ("may give itself other roles", role.creates_roles),
            ("reads tables whose row security is not forced", role.reads_unforced_tables),
        )
        if holds
    ]
    return (
        Readiness(
            "migrations",
            revisions == (head,),
            f"schema at {', '.join(revisions) or 'nothing'}, program at {head}"
            + ("" if revisions == (head,) else ": run `ctxsnap migrate`"),
        ),
        Readiness(
            "role",
            not problems,
            f"role {role.name} "
            + (
                " and ".join(problems)
                if problems
                else "owns nothing and cannot bypass row security"
            ),
        ),
    )


_ROLE_FACTS = sa.text(
    """
    SELECT current_user AS name, r.rolsuper AS is_superuser, r.rolbypassrls AS bypasses,
        r.rolcreaterole AS creates_roles,
        EXISTS (
            SELECT FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace
            AND c.relkind IN ('r', 'p') AND c.relowner = r.oid
        ) AS owns_tables,
        EXISTS (
            SELECT FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace
            AND c.relkind IN ('r', 'p') AND c.relowner <> r.oid
            AND pg_has_role(r.oid, c.relowner, 'MEMBER')
        ) AS may_become_owner,
        EXISTS (
            SELECT FROM pg_roles other WHERE other.oid <> r.oid
            AND (other.rolsuper OR other.rolbypassrls) AND pg_has_role(r.oid, other.oid, 'MEMBER')
        ) AS may_become_exempt,
        EXISTS (
            SELECT FROM pg_class c JOIN pg_attribute a
            ON a.attrelid = c.oid AND a.attname = 'tenant_key'
            WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
            AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
        ) AS reads_unforced_tables
    FROM pg_roles r WHERE r.rolname = current_user
    """
)
