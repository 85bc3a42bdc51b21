"""Erasing a source: its texts and all that was made of them are removed, in every revision.

Guarantees: one open transaction, one new version, or nothing; afterwards no row holds a text
of the source, a term of one, or a vector. What stays of it are its rows in `source_versions`:
names, labels, versions and sums, by which snapshots are still authorised and checked.

Not handled: what a snapshot holds itself (its document, inline texts), and dead rows, which
stay in the database's files until they are vacuumed.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from app.adapters.postgres.ended_chunks import (
    REMOVAL_LOCK,
    EndedChunks,
    chunks_of,
    remove_chunks,
    remove_postings,
)
from app.adapters.postgres.index_writer import IndexWriter

_TEXTS_PER_STATEMENT = 10_000

_WAIT = f"SELECT pg_advisory_xact_lock({REMOVAL_LOCK}, $1)"
_HISTORY = """
    SELECT s.label_key, s.first_chunk_key, s.chunks, s.valid_to, s.erased,
        l.class AS knowledge_class, l.classification, l.trust_tier
    FROM source_versions s CROSS JOIN LATERAL (
        SELECT * FROM labels WHERE tenant_key = $1 AND label_key = s.label_key LIMIT 1
    ) l
    WHERE s.tenant_key = $1 AND s.project = $2 AND s.source_id = $3 ORDER BY s.valid_to
"""
# Up to the digest after so many, or up to what is beyond every digest.
_REMOVE_TEXTS = """
    DELETE FROM source_contents WHERE tenant_key = $1 AND project = $2 AND source_id = $3
        AND digest <= COALESCE((
            SELECT digest FROM source_contents
            WHERE tenant_key = $1 AND project = $2 AND source_id = $3
            ORDER BY digest OFFSET $4 LIMIT 1
        ), decode(repeat('ff', 33), 'hex'))
"""
_MARK = """
    UPDATE source_versions SET erased = true, original = NULL, provenance = NULL, links = '[]'
    WHERE tenant_key = $1 AND project = $2 AND source_id = $3 AND NOT erased
"""


class Eraser(IndexWriter):
    """One erasure, within a transaction that the caller commits."""

    async def erase(self, project: str, source_id: str) -> int | None:
        """The index version after it; None where there is no such source within the ceilings.

        Nothing changes where a source was erased before and not put again since.
        """
        await self._run(_WAIT)
        await self._lock()
        history = (await self._run(_HISTORY, project, source_id)).all()
        if not history or not self._may_replace(history[-1]):
            return None
        if not all(row.erased for row in history):
            self._version += 1
            live = await self._live([(project, source_id)])
            await self._end(list(live.values()))
            await self._remove(project, source_id, history)
            await self._finish("none")
        return self._version

    async def _end_postings(self, ended: Sequence[EndedChunks]) -> None:
        await remove_postings(self._connection, self._tenant_key, ended)

    async def _remove(self, project: str, source_id: str, history: Sequence[sa.Row[Any]]) -> None:
        ended = [chunks_of(row, min(row.valid_to, self._version)) for row in history]
        await remove_chunks(self._connection, self._tenant_key, ended)
        removed = _TEXTS_PER_STATEMENT + 1
        while removed > _TEXTS_PER_STATEMENT:
            done = await self._run(_REMOVE_TEXTS, project, source_id, _TEXTS_PER_STATEMENT)
            removed = done.rowcount
        await self._run(_MARK, project, source_id)
