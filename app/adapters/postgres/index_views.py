"""Views of the built-in index: a scope's labels and sums at a version, and pinned sources."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.lexical import (
    CHUNK_ANSWER,
    CHUNK_COLUMNS,
    CHUNK_JOINS,
    chunk_from_row,
)
from app.adapters.postgres.scope_filter import label_filter, scope_arguments, source_filter
from app.adapters.postgres.source_index import LIVE, SUM_ANSWER, SUM_COLUMNS, sum_from_row
from app.errors import VersionNotKeptError
from app.indexing.source import LiveSum, head_sum, lanes_from_signed
from app.retrieval.candidate import Chunk
from app.retrieval.retriever import IndexView, Pin
from app.scope.access import AccessScope
from app.storage.labels import IndexVersion

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
                AND {{source_filter}} AND s.source_key <> ALL(ARRAY(
                    SELECT jsonb_array_elements_text($2->'hidden')::bigint))
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

# A version of the past is known by its row; before the first change nothing was there.
_AT_VERSION = """
    CASE WHEN ($2->>'version')::bigint >= t.oldest_version
        AND ($2->>'version')::bigint <= t.index_version THEN ($2->>'version')::bigint END,
    COALESCE((SELECT last_chunk_key FROM index_versions v WHERE v.tenant_key = $1
        AND v.version = ($2->>'version')::bigint), 0)
"""
_STATES_NOW = f"""
    JOIN label_states s ON s.tenant_key = $1 AND s.label_key = l.label_key
    WHERE s.valid_to = {LIVE}
"""
# One look-up for each label, however many states it had: only the last that had begun counts.
_STATES_THEN = """
    CROSS JOIN LATERAL (
        SELECT * FROM label_states WHERE tenant_key = $1 AND label_key = l.label_key
        AND valid_from <= ($2->>'version')::bigint ORDER BY valid_from DESC LIMIT 1
    ) s
    WHERE s.valid_to > ($2->>'version')::bigint
"""
_LIVE_THEN = "s.valid_from <= ($2->>'version')::bigint AND s.valid_to > ($2->>'version')::bigint"
_SOURCES_THEN_SQL = f"""
    SELECT s.source_key, s.project, s.source_id, s.revision, s.chunks, s.terms, s.lanes,
        COALESCE(s.language, ''), h.revision, EXISTS (
            SELECT FROM labels l WHERE l.label_key = present.label_key AND {{admitted}}
        )
    FROM source_versions s CROSS JOIN LATERAL (
        SELECT label_key FROM source_versions WHERE tenant_key = $1 AND project = s.project
        AND source_id = s.source_id ORDER BY valid_to DESC LIMIT 1
    ) present LEFT JOIN LATERAL (
        SELECT revision FROM source_heads WHERE tenant_key = $1 AND project = s.project
        AND source_id = s.source_id AND valid_from <= ($2->>'version')::bigint
        AND valid_to > ($2->>'version')::bigint LIMIT 1
    ) h ON true
    WHERE s.tenant_key = $1 AND s.label_key = ANY($3::integer[]) AND {_LIVE_THEN}
    ORDER BY s.source_key
"""  # noqa: S608 - fragments are constants
_SOURCES_THEN_ANSWER = (
    "source_key bigint, project text, source_id text, revision text, chunks integer, "
    "terms bigint, lanes bigint[], language text, head_revision text, admitted boolean"
)
_HAS_ERASED = Statement(
    f"""
    SELECT EXISTS (
        SELECT FROM source_versions s WHERE s.tenant_key = $1 AND s.erased
        AND s.label_key = ANY($3::integer[]) AND {_LIVE_THEN}
    )
    """,  # noqa: S608 - fragments are constants
    "erased boolean",
)


class PostgresIndexViews:
    """Implements `retrieval.retriever.IndexViews`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(
        self,
        scope: AccessScope,
        at: IndexVersion | None = None,
        *,
        admitted_now: AccessScope | None = None,
        hidden: tuple[int, ...] = (),
    ) -> IndexView:
        states, known = _STATES_NOW, "t.index_version, t.last_chunk_key"
        if at is not None:
            states, known = _STATES_THEN, _AT_VERSION
        statement = Statement(
            f"""
            WITH admitted AS MATERIALIZED (
                SELECT s.* FROM labels l {states} AND {label_filter(scope.predicate)}
            )
            SELECT {known}, visible.*, ARRAY(
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
        arguments = {**scope_arguments(scope.predicate), "version": at}
        rows = await self._database.run(scope.tenant, statement, arguments)
        if not rows or (at is not None and rows[0].index_version is None):
            if at:
                raise VersionNotKeptError(
                    "The index does not have this version any more, or not yet.",
                    pointers=("/asOf",),
                )
            return IndexView(0, 0, (), (), 0, 0, LiveSum().visible_version())
        row = rows[0]
        visible = sum_from_row(row)
        view = IndexView(
            index_version=row.index_version,
            last_chunk_key=row.last_chunk_key,
            label_keys=tuple(row.label_keys or ()),
            languages=tuple(sorted(row.languages)),
            chunks=visible.chunks,
            terms=visible.terms,
            visible_version=visible.visible_version(),
        )
        if not view.label_keys or (admitted_now is None and not hidden):
            return view
        return await self._without_hidden(view, visible, admitted_now or scope, hidden)

    async def _without_hidden(
        self, view: IndexView, visible: LiveSum, now: AccessScope, named: tuple[int, ...]
    ) -> IndexView:
        """The view without the named sources or, where there are none, without those whose
        present label the scope does not admit.

        Their part is taken from its sums and languages as if they had not been there.
        """
        statement = Statement(
            _SOURCES_THEN_SQL.format(admitted=label_filter(now.predicate)), _SOURCES_THEN_ANSWER
        )
        rows = await self._database.run(
            now.tenant,
            statement,
            {**scope_arguments(now.predicate), "version": view.index_version},
            numbers=view.label_keys,
        )
        hidden: list[sa.Row[Any]] = []
        kept: list[sa.Row[Any]] = []
        for row in rows:
            out = row.source_key in named if named else not row.admitted
            (hidden if out else kept).append(row)
        for row in hidden:
            visible = visible.minus(_sum_of_source(row))
        return replace(
            view,
            languages=tuple(sorted({row.language for row in kept})),
            chunks=visible.chunks,
            terms=visible.terms,
            visible_version=visible.visible_version(),
            hidden_source_keys=tuple(row.source_key for row in hidden),
        )

    async def has_erased(self, scope: AccessScope, view: IndexView) -> bool:
        rows = await self._database.run(
            scope.tenant, _HAS_ERASED, {"version": view.index_version}, numbers=view.label_keys
        )
        return bool(rows[0].erased)

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
            "hidden": [str(key) for key in view.hidden_source_keys],
        }
        statement = Statement(
            _PINNED_SQL.format(source_filter=source_filter(patterns)), CHUNK_ANSWER
        )
        rows = await self._database.run(scope.tenant, statement, arguments, numbers=view.label_keys)
        return tuple(chunk_from_row(row) for row in rows)


def _sum_of_source(row: sa.Row[Any]) -> LiveSum:
    """What a source added to its label's sums, with the newer revision that was known of it."""
    own = LiveSum(1, row.chunks, row.terms, lanes_from_signed(row.lanes))
    return own.plus(head_sum(row.project, row.source_id, row.revision, row.head_revision))
