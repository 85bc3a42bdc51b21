"""Telling a tenant's index of newer revisions: one call, one new version, or nothing.

Guarantees: the sums of a label hold a head exactly while it makes a live source of that
label stale; whether a source is indexed, and under which label, changes nothing of the
answer.
"""

from collections.abc import Mapping, Sequence

from app.adapters.postgres.index_writer import IndexWriter
from app.indexing.index import Head, HeadsChange
from app.indexing.source import head_sum

_END_HEADS = """
    UPDATE source_heads h SET valid_to = $4
    FROM unnest($2::text[], $3::text[]) AS named (project, source_id)
    WHERE h.tenant_key = $1 AND h.project = named.project AND h.source_id = named.source_id
        AND h.valid_to = 9223372036854775807
"""
_ADD_HEADS = """
    INSERT INTO source_heads (tenant_key, project, source_id, revision, valid_from)
    SELECT $1, project, source_id, revision, $5
    FROM unnest($2::text[], $3::text[], $4::text[]) AS new (project, source_id, revision)
"""


class HeadWriter(IndexWriter):
    """One change of heads, within a transaction that the caller commits."""

    async def put_heads(self, heads: Sequence[Head]) -> HeadsChange:
        """Take note of heads; see `SourceIndex.put_heads`."""
        await self._lock()
        before = await self._heads([head.key for head in heads])
        changed = [head for head in heads if before.get(head.key) != head.revision]
        if changed:
            self._version += 1
            await self._count(changed, before)
            await self._replace(changed)
            await self._finish("none")
        return HeadsChange(self._version, frozenset(heads) - frozenset(changed))

    async def _count(self, heads: Sequence[Head], before: Mapping[tuple[str, str], str]) -> None:
        live = await self._live([head.key for head in heads])
        for head in (head for head in heads if head.key in live):
            row = live[head.key]
            old = head_sum(*head.key, row.revision, before.get(head.key))
            new = head_sum(*head.key, row.revision, head.revision)
            self._deltas[row.label_key] = self._deltas[row.label_key].minus(old).plus(new)

    async def _replace(self, heads: Sequence[Head]) -> None:
        names = [head.project for head in heads], [head.source_id for head in heads]
        await self._run(_END_HEADS, *names, self._version)
        revisions = [head.revision for head in heads]
        await self._run(_ADD_HEADS, *names, revisions, self._version)
