"""Changing a tenant's index: one open transaction, one new version, or nothing.

Guarantees: writers of one tenant queue on its row (other tenants and all readers go on);
keys are given out under that lock, so that `last_chunk_key` of a version tells which
chunks it knew; sending what is there already changes nothing.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.ended_chunks import EndedChunks, chunks_of, end_postings
from app.adapters.postgres.label_keys import intern_labels, label_digest
from app.adapters.postgres.originals import add_originals, original_digest, remove_originals
from app.adapters.postgres.posting_rows import Postings, in_index_order, posting_rows
from app.adapters.postgres.vector_states import HAS_VECTORS
from app.adapters.postgres.vector_writer import AddedChunk, VectorWriter
from app.canonical import Digest, digest_to_bytes
from app.errors import ScopeExceedsGrantError
from app.indexing.index import IndexChange, SourceChange
from app.indexing.source import (
    LiveSum,
    PreparedSource,
    head_sum,
    lanes_from_signed,
    lanes_to_signed,
    live_sum,
)
from app.scope.grant import Grant

_POSTINGS_PER_INSERT = 100_000
_CHUNKS_PER_INSERT = 1_000

# Every statement here looks rows up by key. Right after a load the planner does not know
# the tables' sizes yet, and would rather read them whole.
_LOCK = """
    SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
        set_config('enable_seqscan', 'off', true), index_version, last_label_key,
        last_source_key, last_chunk_key
    FROM tenants WHERE tenant_key = $1 FOR NO KEY UPDATE
"""
_LIVE_SOURCES = """
    SELECT s.project, s.source_id, s.revision, s.source_key, s.digest, s.label_key, s.chunks,
        s.terms, s.lanes, s.language, s.first_chunk_key,
        l.class AS knowledge_class, l.classification, l.trust_tier
    FROM unnest($2::text[], $3::text[]) AS named (project, source_id) CROSS JOIN LATERAL (
        SELECT * FROM source_versions WHERE tenant_key = $1 AND project = named.project
        AND source_id = named.source_id AND valid_to = 9223372036854775807 LIMIT 1
    ) s CROSS JOIN LATERAL (
        SELECT * FROM labels WHERE tenant_key = $1 AND label_key = s.label_key LIMIT 1
    ) l
"""
_PRESENT_HEADS = """
    SELECT h.project, h.source_id, h.revision
    FROM unnest($2::text[], $3::text[]) AS named (project, source_id) CROSS JOIN LATERAL (
        SELECT * FROM source_heads WHERE tenant_key = $1 AND project = named.project
        AND source_id = named.source_id AND valid_to = 9223372036854775807 LIMIT 1
    ) h
"""
_END_SOURCES = """
    UPDATE source_versions SET valid_to = $3 WHERE tenant_key = $1 AND source_key = ANY($2)
"""
_ADD_SOURCE = """
    INSERT INTO source_versions (tenant_key, source_key, project, source_id, revision, label_key,
        digest, media_type, language, provenance, expires_at, links, first_chunk_key, chunks,
        terms, lanes, valid_from, original, engine)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::jsonb, $13, $14, $15, $16, $17,
        $18, $19)
"""
_ADD_CHUNK = """
    INSERT INTO chunks (tenant_key, chunk_key, source_key, ordinal, chunk_id, content_digest,
        cl100k_tokens, o200k_tokens, terms, length, signature)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
_ADD_CONTENT = """
    INSERT INTO source_contents (tenant_key, project, source_id, digest, text)
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING
"""
_ADD_POSTINGS = """
    INSERT INTO postings (tenant_key, label_key, term, chunk_key, weight)
    SELECT $1, * FROM unnest($2::integer[], $3::bigint[], $4::bigint[], $5::bigint[])
"""
_LIVE_STATES = """
    SELECT label_key, sources, chunks, terms, lane_0, lane_1, lane_2, lane_3, languages
    FROM label_states
    WHERE tenant_key = $1 AND label_key = ANY($2) AND valid_to = 9223372036854775807
"""
_END_STATES = """
    UPDATE label_states SET valid_to = $3
    WHERE tenant_key = $1 AND label_key = ANY($2) AND valid_to = 9223372036854775807
"""
_ADD_STATE = """
    INSERT INTO label_states (tenant_key, label_key, valid_from, sources, chunks, terms,
        lane_0, lane_1, lane_2, lane_3, languages)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::jsonb)
"""
_ADVANCE = """
    UPDATE tenants SET index_version = $2, last_label_key = $3, last_source_key = $4,
        last_chunk_key = $5 WHERE tenant_key = $1
"""
_ADD_VERSION = """
    INSERT INTO index_versions (tenant_key, version, last_chunk_key, engine)
    VALUES ($1, $2, $3, $4)
"""


@dataclass(frozen=True, slots=True)
class _Rows:
    sources: list[tuple[object, ...]]
    chunks: list[tuple[object, ...]]
    contents: list[tuple[object, ...]]
    added: list[AddedChunk]
    postings: Postings


class IndexWriter:
    """One change of one tenant's index, within a transaction that the caller commits.

    Without a grant it may replace no source.
    """

    def __init__(
        self, connection: AsyncConnection, tenant_key: int, grant: Grant | None = None
    ) -> None:
        self._connection = connection
        self._tenant_key = tenant_key
        self._grant = grant
        self._deltas: defaultdict[int, LiveSum] = defaultdict(LiveSum)
        self._languages: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._vectors: VectorWriter | None = None

    async def put(self, sources: Sequence[PreparedSource]) -> IndexChange:
        """Add or replace sources; see `SourceIndex.put_sources`."""
        await self._lock()
        live = await self._live([source.key for source in sources])
        self._refuse_above_ceilings(sources, live)
        changed = [
            source
            for source in sources
            if source.key not in live or live[source.key].digest != digest_to_bytes(source.digest())
        ]
        if changed:
            self._version += 1
            await self._end([live[source.key] for source in changed if source.key in live])
            await self._add(changed)
            await self._finish(changed[0].engine)
        unchanged = {source.key for source in sources} - {source.key for source in changed}
        return IndexChange(
            self._version,
            tuple(
                SourceChange(*source.key, len(source.chunks), source.key in unchanged)
                for source in sources
            ),
        )

    async def end(self, project: str, source_id: str) -> int | None:
        """End a source within the writer's ceilings; None where there is none."""
        await self._lock()
        found = (await self._live([(project, source_id)])).get((project, source_id))
        if found is None or not self._may_replace(found):
            return None
        self._version += 1
        await self._end([found])
        await self._finish("none")
        return self._version

    async def _lock(self) -> None:
        row = (await self._run(_LOCK)).one()
        self._version: int = row.index_version
        self._last_label: int = row.last_label_key
        self._last_source: int = row.last_source_key
        self._last_chunk: int = row.last_chunk_key

    async def _live(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], sa.Row[Any]]:
        rows = await self._run(
            _LIVE_SOURCES, [project for project, _ in keys], [name for _, name in keys]
        )
        return {(row.project, row.source_id): row for row in rows}

    async def _heads(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The present head of each source that has one."""
        rows = await self._run(
            _PRESENT_HEADS, [project for project, _ in keys], [name for _, name in keys]
        )
        return {(row.project, row.source_id): row.revision for row in rows}

    def _refuse_above_ceilings(
        self, sources: Sequence[PreparedSource], live: dict[tuple[str, str], sa.Row[Any]]
    ) -> None:
        beyond = tuple(
            f"/sources/{at}/sourceId"
            for at, source in enumerate(sources)
            if source.key in live and not self._may_replace(live[source.key])
        )
        if beyond:
            raise ScopeExceedsGrantError(
                "A source of this id lies above what this token may write: " + ", ".join(beyond),
                pointers=beyond,
            )

    def _may_replace(self, row: sa.Row[Any]) -> bool:
        return self._grant is not None and (
            row.classification <= self._grant.max_classification.rank
            and row.trust_tier >= self._grant.max_trust_tier.rank
            and row.knowledge_class in self._grant.classes
        )

    async def _end(self, rows: Sequence[sa.Row[Any]]) -> None:
        if not rows:
            return
        heads = await self._heads([(row.project, row.source_id) for row in rows])
        for row in rows:
            key = row.project, row.source_id
            gone = LiveSum(1, row.chunks, row.terms, lanes_from_signed(row.lanes))
            gone = gone.plus(head_sum(*key, row.revision, heads.get(key)))
            self._deltas[row.label_key] = self._deltas[row.label_key].minus(gone)
            self._languages[row.label_key][row.language or ""] -= 1
        source_keys = [row.source_key for row in rows]
        ended = [chunks_of(row, self._version) for row in rows]
        await self._end_postings(ended)
        names = [(row.project, row.source_id) for row in rows]
        if (await self._connection.exec_driver_sql(HAS_VECTORS)).scalar_one():
            self._vectors = VectorWriter(self._connection, self._tenant_key, self._version)
            await self._vectors.end(dict(zip(names, ended, strict=True)))
        await remove_originals(self._connection, self._tenant_key, names)
        await self._run(_END_SOURCES, source_keys, self._version)

    async def _end_postings(self, ended: Sequence[EndedChunks]) -> None:
        await end_postings(self._connection, self._tenant_key, ended)

    async def _add(self, sources: Sequence[PreparedSource]) -> None:
        labels = [source.draft.label for source in sources]
        last = self._last_label
        label_keys = await intern_labels(self._connection, self._tenant_key, labels, last)
        self._last_label = max(last, *label_keys.values())
        heads = await self._heads([source.key for source in sources])
        for source in (source for source in sources if source.key in heads):
            label_key = label_keys[label_digest(source.draft.label)]
            stale = head_sum(*source.key, source.draft.revision, heads[source.key])
            self._deltas[label_key] = self._deltas[label_key].plus(stale)
        # In a thread: a large load has millions of postings, and others are served meanwhile.
        rows = await asyncio.to_thread(self._lay_out, sources, label_keys)
        await self._connection.exec_driver_sql(_ADD_SOURCE, rows.sources)
        await add_originals(self._connection, self._tenant_key, sources)
        for start in range(0, len(rows.chunks), _CHUNKS_PER_INSERT):
            some = slice(start, start + _CHUNKS_PER_INSERT)
            await self._connection.exec_driver_sql(_ADD_CHUNK, rows.chunks[some])
            await self._connection.exec_driver_sql(_ADD_CONTENT, rows.contents[some])
        for start in range(0, len(rows.postings), _POSTINGS_PER_INSERT):
            columns = rows.postings[start : start + _POSTINGS_PER_INSERT].T
            await self._run(_ADD_POSTINGS, *columns.tolist())
        if self._vectors is not None:
            await self._vectors.carry_over(rows.added)

    def _lay_out(
        self, sources: Sequence[PreparedSource], label_keys: Mapping[Digest, int]
    ) -> _Rows:
        source_rows: list[tuple[object, ...]] = []
        chunk_rows: list[tuple[object, ...]] = []
        content_rows: list[tuple[object, ...]] = []
        added_chunks: list[AddedChunk] = []
        postings: list[Postings] = []
        for source in sources:
            draft, label_key = source.draft, label_keys[label_digest(source.draft.label)]
            added = live_sum(source)
            self._deltas[label_key] = self._deltas[label_key].plus(added)
            self._languages[label_key][draft.language or ""] += 1
            self._last_source += 1
            source_rows.append(
                self._source_row(source, label_key, added, first_chunk_key=self._last_chunk + 1)
            )
            for ordinal, chunk in enumerate(source.chunks):
                self._last_chunk += 1
                digest = digest_to_bytes(chunk.content_hash)
                chunk_rows.append(
                    (
                        self._tenant_key,
                        self._last_chunk,
                        self._last_source,
                        ordinal,
                        chunk.chunk_id,
                        digest,
                        chunk.body_tokens["cl100k_base"],
                        chunk.body_tokens["o200k_base"],
                        [term for term, _ in chunk.terms],
                        chunk.length,
                        chunk.signature,
                    )
                )
                content_rows.append(
                    (self._tenant_key, draft.label.project, draft.source_id, digest, chunk.text)
                )
                added_chunks.append(AddedChunk(source.key, label_key, self._last_chunk, digest))
                postings.append(posting_rows(chunk, label_key, self._last_chunk))
        return _Rows(source_rows, chunk_rows, content_rows, added_chunks, in_index_order(postings))

    def _source_row(
        self, source: PreparedSource, label_key: int, added: LiveSum, *, first_chunk_key: int
    ) -> tuple[object, ...]:
        draft = source.draft
        return (
            self._tenant_key,
            self._last_source,
            draft.label.project,
            draft.source_id,
            draft.revision,
            label_key,
            digest_to_bytes(source.digest()),
            draft.media_type,
            draft.language,
            draft.provenance,
            draft.expires_at,
            json.dumps(list(draft.links)),
            first_chunk_key,
            added.chunks,
            added.terms,
            lanes_to_signed(added.lanes),
            self._version,
            original_digest(source),
            source.engine,
        )

    async def _finish(self, engine: str) -> None:
        """Store the labels' new sums and the new version."""
        if self._vectors is not None:
            await self._vectors.finish()
        rows = {row.label_key: row for row in await self._run(_LIVE_STATES, list(self._deltas))}
        await self._run(_END_STATES, list(rows), self._version)
        new = []
        for key, delta in self._deltas.items():
            before = _state(rows[key]) if key in rows else LiveSum()
            languages = Counter(rows[key].languages if key in rows else {})
            languages.update(self._languages[key])
            after = before.plus(delta)
            if not after.is_empty:
                new.append(self._state_row(key, after, languages))
        if new:
            await self._connection.exec_driver_sql(_ADD_STATE, new)
        await self._run(
            _ADVANCE, self._version, self._last_label, self._last_source, self._last_chunk
        )
        await self._run(_ADD_VERSION, self._version, self._last_chunk, engine)

    def _state_row(
        self, label_key: int, state: LiveSum, languages: Counter[str]
    ) -> tuple[object, ...]:
        live = {name: sources for name, sources in languages.items() if sources > 0}
        return (
            self._tenant_key,
            label_key,
            self._version,
            state.sources,
            state.chunks,
            state.terms,
            *lanes_to_signed(state.lanes),
            json.dumps(live, sort_keys=True),
        )

    async def _run(self, sql: str, *values: object) -> sa.CursorResult[Any]:
        return await self._connection.exec_driver_sql(sql, (self._tenant_key, *values))


def _state(row: sa.Row[Any]) -> LiveSum:
    lanes = (row.lane_0, row.lane_1, row.lane_2, row.lane_3)
    return LiveSum(row.sources, row.chunks, row.terms, lanes_from_signed(lanes))
