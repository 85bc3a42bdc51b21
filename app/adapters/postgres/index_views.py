"""Views of the built-in index: a scope's labels and sums at a version, and pinned sources."""

from collections.abc import Sequence

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.lexical import (
    CHUNK_ANSWER,
    CHUNK_COLUMNS,
    CHUNK_JOINS,
    chunk_from_row,
)
from app.adapters.postgres.scope_filter import label_filter, scope_arguments, source_filter
from app.adapters.postgres.source_index import LIVE, SUM_ANSWER, SUM_COLUMNS, sum_from_row
from app.indexing.source import LiveSum
from app.retrieval.candidate import Chunk
from app.retrieval.retriever import IndexView, Pin
from app.scope.access import AccessScope

_PINNED_SQL = f"""
    WITH pins AS (
        SELECT project, "sourceId" AS source_id, "chunkId" AS chunk_id
        FROM jsonb_to_recordset($2->'pins')
        AS pin (project text, "sourceId" text, "chunkId" text)
    )
    SELECT {CHUNK_COLUMNS} FROM (
        SELECT DISTINCT held.* FROM pins CROSS JOIN LATERAL (
            SELECT * FROM source_versions s WHERE s.tenant_key = $1
                AND s.project = pins.project AND s.source_id = pins.source_id
                AND s.valid_from <= ($2->>'version')::bigint
                AND s.valid_to > ($2->>'version')::bigint AND s.label_key = ANY($3::integer[])
                AND {{source_filter}}
            LIMIT 1
        ) v CROSS JOIN LATERAL (
            SELECT * FROM chunks WHERE tenant_key = $1 AND chunk_key >= v.first_chunk_key
                AND chunk_key < v.first_chunk_key + v.chunks
                AND (pins.chunk_id IS NULL OR chunk_id = pins.chunk_id)
            OFFSET 0
        ) held
    ) c {CHUNK_JOINS}
    ORDER BY s.source_id, s.project, c.ordinal
"""  # noqa: S608 - fragments are constants


class PostgresIndexViews:
    """Implements `retrieval.retriever.IndexViews`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, scope: AccessScope) -> IndexView:
        statement = Statement(
            f"""
            WITH admitted AS MATERIALIZED (
                SELECT s.* FROM labels l JOIN label_states s
                ON s.tenant_key = $1 AND s.label_key = l.label_key AND s.valid_to = {LIVE}
                WHERE {label_filter(scope.predicate)}
            )
            SELECT t.index_version, t.last_chunk_key, visible.*, ARRAY(
                SELECT DISTINCT jsonb_object_keys(one.languages)
                FROM (SELECT DISTINCT languages FROM admitted) one
            )
            FROM tenants t CROSS JOIN LATERAL (
                SELECT array_agg(s.label_key ORDER BY s.label_key), {SUM_COLUMNS} FROM admitted s
            ) visible WHERE t.tenant_key = $1
            """,  # noqa: S608 - fragments are constants
            f"index_version bigint, last_chunk_key bigint, label_keys integer[], {SUM_ANSWER}, "
            "languages text[]",
        )
        rows = await self._database.run(scope.tenant, statement, scope_arguments(scope.predicate))
        if not rows:
            return IndexView(0, 0, (), (), 0, 0, LiveSum().visible_version())
        row = rows[0]
        visible = sum_from_row(row)
        return IndexView(
            index_version=row.index_version,
            last_chunk_key=row.last_chunk_key,
            label_keys=tuple(row.label_keys or ()),
            languages=tuple(sorted(row.languages)),
            chunks=visible.chunks,
            terms=visible.terms,
            visible_version=visible.visible_version(),
        )

    async def pinned(
        self, scope: AccessScope, view: IndexView, pins: Sequence[Pin]
    ) -> tuple[Chunk, ...]:
        patterns = scope.predicate.sources
        arguments = {
            **scope_arguments(scope.predicate),
            "pins": [
                {"project": pin.project, "sourceId": pin.source_id, "chunkId": pin.chunk_id}
                for pin in pins
            ],
            "version": view.index_version,
        }
        statement = Statement(
            _PINNED_SQL.format(source_filter=source_filter(patterns)), CHUNK_ANSWER
        )
        rows = await self._database.run(scope.tenant, statement, arguments, numbers=view.label_keys)
        return tuple(chunk_from_row(row) for row in rows)
