"""The built-in index in PostgreSQL: reading what is live. Writing is in `index_writer`."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.audit_log import append_event
from app.adapters.postgres.database import Database, Statement, stored_time
from app.adapters.postgres.eraser import Eraser
from app.adapters.postgres.head_writer import HeadWriter
from app.adapters.postgres.index_writer import IndexWriter
from app.adapters.postgres.reindexer import Reindexer, read_outdated
from app.adapters.postgres.scope_filter import (
    LABEL_ANSWER,
    LABEL_COLUMNS,
    label_filter,
    label_from_row,
    scope_arguments,
)
from app.audit.event import AuditEvent
from app.canonical import JsonValue
from app.errors import NotFoundError
from app.indexing.index import (
    Head,
    HeadsChange,
    IndexChange,
    IndexDescription,
    IndexedSource,
    Outdated,
    OutdatedSource,
    Reindexed,
    SourceFilter,
)
from app.indexing.source import LiveSum, PreparedSource, lanes_from_signed
from app.scope.access import Predicate
from app.scope.grant import Grant

LIVE = 2**63 - 1
"""`valid_to` of what has not ended."""

SUM_COLUMNS = """
    COALESCE(sum(s.sources), 0)::bigint, COALESCE(sum(s.chunks), 0)::bigint,
    COALESCE(sum(s.terms), 0)::bigint, sum(s.lane_0)::text, sum(s.lane_1)::text,
    sum(s.lane_2)::text, sum(s.lane_3)::text
"""
SUM_ANSWER = (
    "sources bigint, chunks bigint, terms bigint, "
    "lane_0 text, lane_1 text, lane_2 text, lane_3 text"
)


def sum_from_row(row: sa.Row[Any]) -> LiveSum:
    """Sums of many labels from a row that has SUM_ANSWER."""
    lanes = [int(lane or 0) for lane in (row.lane_0, row.lane_1, row.lane_2, row.lane_3)]
    return LiveSum(row.sources, row.chunks, row.terms, lanes_from_signed(lanes))


class PostgresSourceIndex:
    """Implements `indexing.index.SourceIndex`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_sources(
        self, grant: Grant, sources: Sequence[PreparedSource], event: AuditEvent | None = None
    ) -> IndexChange:
        async with self._database.transaction(grant.tenant) as (connection, tenant_key):
            change = await IndexWriter(connection, tenant_key, grant).put(sources)
            if change.changed:
                await append_event(connection, tenant_key, event)
            return change

    async def delete_source(
        self, grant: Grant, project: str, source_id: str, event: AuditEvent | None = None
    ) -> int:
        async with self._database.transaction(grant.tenant) as (connection, tenant_key):
            version = await IndexWriter(connection, tenant_key, grant).end(project, source_id)
            return await _told(version, connection, tenant_key, event)

    async def erase_source(
        self, grant: Grant, project: str, source_id: str, event: AuditEvent | None = None
    ) -> int:
        async with self._database.transaction(grant.tenant) as (connection, tenant_key):
            version = await Eraser(connection, tenant_key, grant).erase(project, source_id)
            return await _told(version, connection, tenant_key, event)

    async def outdated_sources(self, grant: Grant, engine: str, limit: int) -> Outdated:
        return await read_outdated(self._database, grant, engine, limit)

    async def reindex(
        self,
        grant: Grant,
        prepared: Sequence[tuple[OutdatedSource, PreparedSource]],
        event: AuditEvent | None = None,
    ) -> Reindexed:
        async with self._database.transaction(grant.tenant) as (connection, tenant_key):
            change = await Reindexer(connection, tenant_key, grant).replace(prepared)
            if change.sources:
                await append_event(connection, tenant_key, event)
            return change

    async def put_heads(
        self, grant: Grant, heads: Sequence[Head], event: AuditEvent | None = None
    ) -> HeadsChange:
        async with self._database.transaction(grant.tenant) as (connection, tenant_key):
            change = await HeadWriter(connection, tenant_key, grant).put_heads(heads)
            if len(change.unchanged) < len(heads):
                await append_event(connection, tenant_key, event)
            return change

    async def list_sources(
        self, predicate: Predicate, wanted: SourceFilter
    ) -> tuple[IndexedSource, ...]:
        # The tie-break columns are unique together, so that a cursor never skips a row.
        statement = Statement(
            f"""
            SELECT s.source_id, s.revision, s.chunks, s.media_type, s.language, s.provenance,
                s.expires_at, h.revision, {LABEL_COLUMNS}
            FROM source_versions s JOIN labels l USING (tenant_key, label_key)
            LEFT JOIN LATERAL (
                SELECT revision FROM source_heads WHERE tenant_key = $1 AND project = s.project
                AND source_id = s.source_id AND valid_to = {LIVE} LIMIT 1
            ) h ON true
            WHERE s.tenant_key = $1 AND s.valid_to = {LIVE} AND {label_filter(predicate)}
                AND ($2->>'project' IS NULL OR s.project = $2->>'project')
                AND ($2->>'sourceId' IS NULL OR s.source_id = $2->>'sourceId')
                AND ($2->>'prefix' IS NULL OR starts_with(s.source_id, $2->>'prefix'))
                AND ($2->>'afterId' IS NULL OR (s.source_id, s.project)
                    > (($2->>'afterId') COLLATE "C", ($2->>'afterProject') COLLATE "C"))
            ORDER BY s.source_id, s.project LIMIT ($2->>'limit')::integer
            """,  # noqa: S608 - fragments are constants
            "source_id text, revision text, chunks integer, media_type text, language text, "
            f"provenance text, expires_at timestamptz, head_revision text, {LABEL_ANSWER}",
        )
        after_id, after_project = wanted.after or (None, None)
        arguments: dict[str, JsonValue] = {
            **scope_arguments(predicate),
            "project": wanted.project,
            "sourceId": wanted.source_id,
            "prefix": wanted.prefix,
            "afterId": after_id,
            "afterProject": after_project,
            "limit": wanted.limit,
        }
        rows = await self._database.run(predicate.tenant, statement, arguments)
        return tuple(
            IndexedSource(
                source_id=row.source_id,
                revision=row.revision,
                label=label_from_row(row),
                chunks=row.chunks,
                media_type=row.media_type,
                language=row.language,
                provenance=row.provenance,
                expires_at=stored_time(row.expires_at),
                head_revision=row.head_revision,
            )
            for row in rows
        )

    async def describe(self, predicate: Predicate) -> IndexDescription:
        statement = Statement(
            f"""
            SELECT t.index_version, visible.* FROM tenants t CROSS JOIN LATERAL (
                SELECT {SUM_COLUMNS} FROM labels l JOIN label_states s
                ON s.tenant_key = $1 AND s.label_key = l.label_key AND s.valid_to = {LIVE}
                WHERE {label_filter(predicate)}
            ) visible WHERE t.tenant_key = $1
            """,  # noqa: S608 - fragments are constants
            f"index_version bigint, {SUM_ANSWER}",
        )
        rows = await self._database.run(predicate.tenant, statement, scope_arguments(predicate))
        if not rows:
            return IndexDescription(0, LiveSum())
        return IndexDescription(rows[0].index_version, sum_from_row(rows[0]))


async def _told(
    version: int | None, connection: AsyncConnection, tenant_key: int, event: AuditEvent | None
) -> int:
    """The version of a removal, with its event stored; without one there was no such source."""
    if version is None:
        raise NotFoundError("No such source.")
    await append_event(connection, tenant_key, event)
    return version
