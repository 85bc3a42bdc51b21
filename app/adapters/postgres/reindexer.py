"""Sources that another engine prepared: finding them, and putting them anew in their place.

Guarantees: a source is replaced only while it is the one that was read, and only within the
writer's ceilings; those of one call become one new version, or none.
"""

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from app.adapters.postgres.database import Database, Statement, stored_time
from app.adapters.postgres.index_writer import IndexWriter
from app.adapters.postgres.scope_filter import (
    LABEL_ANSWER,
    LABEL_COLUMNS,
    label_from_row,
    text_array,
)
from app.canonical import JsonValue
from app.indexing.index import Outdated, OutdatedSource, Reindexed
from app.indexing.source import ChunkDraft, PreparedSource, SourceDraft
from app.scope.grant import Grant
from app.scope.vocabulary import ALL_PROJECTS

# A batch ends with the source that reaches one of them.
_CHUNKS_PER_BATCH = 1_000
_BYTES_PER_BATCH = 4 * 1024 * 1024

_OUTDATED_SQL = f"""
    WITH outdated AS MATERIALIZED (
        SELECT s.source_key, sum(s.chunks) OVER (ORDER BY s.source_key) - s.chunks AS before
        FROM labels l JOIN source_versions s ON s.tenant_key = $1 AND s.label_key = l.label_key
        WHERE s.valid_to = 9223372036854775807 AND s.engine IS DISTINCT FROM $2->>'engine'
            AND {{writable}}
    ), first AS MATERIALIZED (
        SELECT source_key FROM outdated WHERE before < ($2->>'chunks')::bigint
        ORDER BY source_key LIMIT ($2->>'limit')::integer
    ), batch AS MATERIALIZED (
        SELECT s.*, o.text AS original_text,
            sum(octet_length(o.text)) OVER (ORDER BY s.source_key) - octet_length(o.text) AS before
        FROM first CROSS JOIN LATERAL (
            SELECT * FROM source_versions WHERE tenant_key = $1 AND source_key = first.source_key
            LIMIT 1
        ) s LEFT JOIN LATERAL (
            SELECT text FROM source_originals WHERE tenant_key = $1 AND project = s.project
            AND source_id = s.source_id AND digest = s.original LIMIT 1
        ) o ON true
    )
    SELECT (SELECT count(*) FROM outdated), s.source_key, s.source_id, s.revision, s.media_type,
        s.language, s.provenance, s.expires_at, s.links::text, s.original_text, CASE
            WHEN s.original_text IS NULL THEN (
                SELECT json_agg(json_build_array(c.chunk_id, x.text) ORDER BY c.ordinal)::text
                FROM (
                    SELECT * FROM chunks WHERE tenant_key = $1 AND chunk_key >= s.first_chunk_key
                    AND chunk_key < s.first_chunk_key + s.chunks OFFSET 0
                ) c CROSS JOIN LATERAL (
                    SELECT text FROM source_contents WHERE tenant_key = $1
                    AND project = s.project AND source_id = s.source_id
                    AND digest = c.content_digest LIMIT 1
                ) x
            )
        END, {LABEL_COLUMNS}
    FROM batch s CROSS JOIN LATERAL (
        SELECT * FROM labels WHERE tenant_key = $1 AND label_key = s.label_key LIMIT 1
    ) l
    WHERE s.before IS NULL OR s.before < ($2->>'bytes')::bigint
    ORDER BY s.source_key
"""  # noqa: S608 - fragments are constants
_OUTDATED_ANSWER = (
    "outdated bigint, source_key bigint, source_id text, revision text, media_type text, "
    "language text, provenance text, expires_at timestamptz, links text, original text, "
    f"chunks text, {LABEL_ANSWER}"
)


async def read_outdated(database: Database, grant: Grant, engine: str, limit: int) -> Outdated:
    """See `SourceIndex.outdated_sources`."""
    arguments: dict[str, JsonValue] = {
        "engine": engine,
        "limit": limit,
        "chunks": _CHUNKS_PER_BATCH,
        "bytes": _BYTES_PER_BATCH,
        "projects": list(grant.projects),
        "classes": [name.value for name in grant.classes],
        "classificationRank": grant.max_classification.rank,
        "trustTierRank": grant.max_trust_tier.rank,
    }
    statement = Statement(_OUTDATED_SQL.format(writable=_writable(grant)), _OUTDATED_ANSWER)
    rows = await database.run(grant.tenant, statement, arguments)
    if not rows:
        return Outdated(0, ())
    return Outdated(
        rows[0].outdated, tuple(OutdatedSource(row.source_key, _draft(row)) for row in rows)
    )


def _writable(grant: Grant) -> str:
    """A condition on `labels l`: the grant may replace what is under them."""
    conditions = [
        "l.tenant_key = $1",
        "l.classification <= ($2->>'classificationRank')::smallint",
        "l.trust_tier >= ($2->>'trustTierRank')::smallint",
        f"l.class = ANY({text_array('classes')})",
    ]
    if grant.projects != (ALL_PROJECTS,):
        conditions.append(f"l.project = ANY({text_array('projects')})")
    return " AND ".join(conditions)


def _draft(row: sa.Row[Any]) -> SourceDraft:
    chunks = None
    if row.original is None:
        chunks = tuple(ChunkDraft(*pair) for pair in json.loads(row.chunks or "[]"))
    return SourceDraft(
        source_id=row.source_id,
        revision=row.revision,
        label=label_from_row(row),
        text=row.original,
        chunks=chunks,
        media_type=row.media_type,
        language=row.language,
        provenance=row.provenance,
        expires_at=stored_time(row.expires_at),
        links=tuple(json.loads(row.links)),
    )


class Reindexer(IndexWriter):
    """One batch of sources put anew, within a transaction that the caller commits."""

    async def replace(self, prepared: Sequence[tuple[OutdatedSource, PreparedSource]]) -> Reindexed:
        """Put the sources that are still as they were read; see `SourceIndex.reindex`."""
        await self._lock()
        live = await self._live([source.key for _, source in prepared])
        still = [
            source
            for read, source in prepared
            if source.key in live
            and live[source.key].source_key == read.source_key
            and self._may_replace(live[source.key])
        ]
        if still:
            self._version += 1
            await self._end([live[source.key] for source in still])
            await self._add(still)
            await self._finish(still[0].engine)
        return Reindexed(self._version, len(still))
