"""Giving up past versions of a tenant's index in PostgreSQL.

Guarantees: what `storage.compaction` asks. Writers wait for none of it but the moment in
which the oldest version is set; two removals of one tenant never run at once. A removal that
was cut short is taken up by whoever is next.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.ended_chunks import REMOVAL_LOCK, chunks_of, remove_chunks
from app.audit.event import instant
from app.storage.labels import IndexVersion

_SOURCES_PER_BATCH = 100
_CHUNKS_PER_BATCH = 2_000
_ROWS_PER_BATCH = 10_000
_LAST = 2**63 - 1

# The newest version of that time or before: those below it had been followed by then.
_GIVE_UP: Final = Statement(
    """
    WITH horizon AS (
        SELECT version FROM index_versions
        WHERE tenant_key = $1 AND created_at <= ($2->>'before')::timestamptz
        ORDER BY version DESC LIMIT 1
    ), raised AS (
        UPDATE tenants t SET oldest_version = horizon.version FROM horizon
        WHERE t.tenant_key = $1 AND t.oldest_version < horizon.version
        RETURNING t.oldest_version
    )
    SELECT COALESCE((SELECT oldest_version FROM raised), oldest_version), compacted_version
    FROM tenants WHERE tenant_key = $1
    """,
    "oldest bigint, compacted bigint",
)
_COMPACTED: Final = Statement(
    "SELECT compacted_version FROM tenants WHERE tenant_key = $1", "compacted bigint"
)
_SETTLE = """
    UPDATE tenants SET compacted_version = $2 WHERE tenant_key = $1 AND compacted_version < $2
"""
_TRY_LOCK = f"SELECT pg_try_advisory_xact_lock({REMOVAL_LOCK}, $1)"
# Right after a load the planner does not know the tables' sizes yet.
_PLAN_BY_KEY = """
    SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
        set_config('enable_seqscan', 'off', true)
"""
_ENDED_SOURCES = """
    SELECT source_key, project, source_id, label_key, valid_to, first_chunk_key, chunks
    FROM source_versions
    WHERE tenant_key = $1 AND valid_to < 9223372036854775807 AND valid_to <= $2
        AND (valid_to, source_key) > ($3, $4)
    ORDER BY valid_to, source_key LIMIT $5
"""
# All but the last row of each source: a deleted one keeps its label there.
_REMOVE_SOURCES = """
    DELETE FROM source_versions s WHERE s.tenant_key = $1 AND s.project = $2
        AND s.source_id = $3 AND s.valid_to <= $4 AND s.valid_to < (
            SELECT n.valid_to FROM source_versions n WHERE n.tenant_key = $1 AND n.project = $2
            AND n.source_id = $3 ORDER BY n.valid_to DESC LIMIT 1
        )
"""
# Up to the version after so many rows, or up to the last one.
_REMOVE_ROWS = """
    DELETE FROM {table} WHERE tenant_key = $1 AND {column} < 9223372036854775807
        AND {column} <= COALESCE((
            SELECT {column} FROM {table} WHERE tenant_key = $1
            AND {column} < 9223372036854775807 AND {column} <= $2
            ORDER BY {column} OFFSET $3 LIMIT 1
        ), $2)
"""
_HAS_TABLE = "SELECT to_regclass($1) IS NOT NULL"

_Step = Callable[[AsyncConnection, int], Awaitable[bool]]
"""Removes one batch of a tenant's; says whether there may be more."""


class PostgresIndexCompaction:
    """Implements `storage.compaction.IndexCompaction`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def give_up(self, tenant: str, before: datetime) -> IndexVersion | None:
        rows = await self._database.run(tenant, _GIVE_UP, {"before": instant(before)})
        if not rows or rows[0].oldest <= rows[0].compacted:
            return None
        return IndexVersion(rows[0].oldest)

    async def remove(self, tenant: str, oldest: IndexVersion) -> None:
        (row,) = await self._database.run(tenant, _COMPACTED)
        steps: tuple[_Step, ...] = (
            _EndedSources(row.compacted, oldest).remove_some,
            partial(_remove_rows, "source_heads", "valid_to", oldest),
            partial(_remove_rows, "label_states", "valid_to", oldest),
            partial(_remove_rows, "vector_states", "valid_to", oldest),
            partial(_remove_rows, "index_versions", "version", oldest - 1),
            partial(_settle, oldest),
        )
        for step in steps:
            more: bool | None = True
            while more:
                more = await self._batch(tenant, step)
            if more is None:
                return

    async def _batch(self, tenant: str, step: _Step) -> bool | None:
        """Whether there may be more; None where somebody else is removing, who comes after."""
        async with self._database.transaction(tenant) as (connection, tenant_key):
            await connection.exec_driver_sql(_PLAN_BY_KEY)
            locked = await connection.exec_driver_sql(_TRY_LOCK, (tenant_key,))
            return await step(connection, tenant_key) if locked.scalar_one() else None


class _EndedSources:
    """Source versions that ended after one version and up to another, oldest first."""

    def __init__(self, after: int, upto: int) -> None:
        self._place = (after, _LAST)
        self._upto = upto

    async def remove_some(self, connection: AsyncConnection, tenant_key: int) -> bool:
        found = await connection.exec_driver_sql(
            _ENDED_SOURCES, (tenant_key, self._upto, *self._place, _SOURCES_PER_BATCH)
        )
        rows = _some(found.all())
        if not rows:
            return False
        ended = [chunks_of(row, row.valid_to) for row in rows]
        await remove_chunks(connection, tenant_key, ended)
        names = [(tenant_key, row.project, row.source_id, row.valid_to) for row in rows]
        await connection.exec_driver_sql(_REMOVE_SOURCES, names)
        self._place = (rows[-1].valid_to, rows[-1].source_key)
        return True


def _some(rows: Sequence[sa.Row[Any]]) -> Sequence[sa.Row[Any]]:
    """The first ones, up to that with which there are chunks enough for one transaction."""
    sums = list(accumulate(row.chunks for row in rows))
    return rows[: bisect_left(sums, _CHUNKS_PER_BATCH) + 1]


async def _remove_rows(
    table: str, column: str, upto: int, connection: AsyncConnection, tenant_key: int
) -> bool:
    """Rows of a table whose version in the column is `upto` at most."""
    if not (await connection.exec_driver_sql(_HAS_TABLE, (table,))).scalar_one():
        return False
    statement = _REMOVE_ROWS.format(table=table, column=column)
    done = await connection.exec_driver_sql(statement, (tenant_key, upto, _ROWS_PER_BATCH))
    return done.rowcount > _ROWS_PER_BATCH


async def _settle(oldest: int, connection: AsyncConnection, tenant_key: int) -> bool:
    await connection.exec_driver_sql(_SETTLE, (tenant_key, oldest))
    return False
