"""Changing a tenant's index: one open transaction, one new version, or nothing.

Guarantees: writers of one tenant queue on its row (other tenants and all readers go on);
keys are given out under that lock, so that `last_chunk_key` of a version tells which
chunks it knew; sending what is there already changes nothing.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from app.canonical import Digest, digest_from_bytes, digest_to_bytes, digest_value
from app.errors import ScopeExceedsGrantError
from app.indexing.index import IndexChange, SourceChange
from app.indexing.source import (
    LiveSum,
    PreparedSource,
    lanes_from_signed,
    lanes_to_signed,
    live_sum,
)
from app.scope.grant import Grant
from app.scope.label import Label

_POSTINGS_PER_INSERT = 100_000

# Every statement here looks rows up by key. Right after a load the planner does not know
# the tables' sizes yet, and would rather read them whole.
_LOCK = """
    SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
        set_config('enable_seqscan', 'off', true), index_version, last_label_key,
        last_source_key, last_chunk_key
    FROM tenants WHERE tenant_key = $1 FOR NO KEY UPDATE
"""
_LIVE_SOURCES = """
    SELECT s.project, s.source_id, s.source_key, s.digest, s.label_key, s.chunks, s.terms,
        s.lanes, s.language, l.class AS knowledge_class, l.classification, l.trust_tier
    FROM unnest($2::text[], $3::text[]) AS named (project, source_id)
    JOIN source_versions s ON s.tenant_key = $1 AND s.project = named.project
        AND s.source_id = named.source_id AND s.valid_to = 9223372036854775807
    JOIN labels l ON l.tenant_key = $1 AND l.label_key = s.label_key
"""
_KNOWN_LABELS = "SELECT digest, label_key FROM labels WHERE tenant_key = $1 AND digest = ANY($2)"
_ADD_LABELS = """
    INSERT INTO labels
    SELECT $1, n.key, n.project, n.class, n.classification, n.tier,
        CASE WHEN n.allow IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(n.allow)) END,
        ARRAY(SELECT jsonb_array_elements_text(n.deny)), decode(n.digest, 'hex')
    FROM jsonb_to_recordset($2::jsonb) AS n (key integer, project text, class text,
        classification smallint, tier smallint, allow jsonb, deny jsonb, digest text)
"""
_END_SOURCES = """
    UPDATE source_versions SET valid_to = $3 WHERE tenant_key = $1 AND source_key = ANY($2)
"""
_END_POSTINGS = """
    WITH gone AS (
        SELECT c.chunk_key, s.label_key, unnest(c.terms) AS term
        FROM chunks c JOIN source_versions s ON s.tenant_key = $1 AND s.source_key = c.source_key
        WHERE c.tenant_key = $1 AND c.source_key = ANY($2)
    ), moved AS (
        DELETE FROM postings p USING gone g
        WHERE p.tenant_key = $1 AND p.term = g.term AND p.label_key = g.label_key
            AND p.chunk_key = g.chunk_key
        RETURNING p.label_key, p.term, p.chunk_key, p.weight
    )
    INSERT INTO ended_postings (tenant_key, label_key, term, chunk_key, weight, valid_to)
    SELECT $1, label_key, term, chunk_key, weight, $3 FROM moved
"""
_ADD_SOURCE = """
    INSERT INTO source_versions (tenant_key, source_key, project, source_id, revision, label_key,
        digest, media_type, language, provenance, expires_at, links, first_chunk_key, chunks,
        terms, lanes, valid_from)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::jsonb, $13, $14, $15, $16, $17)
"""
_ADD_CHUNK = """
    INSERT INTO chunks (tenant_key, chunk_key, source_key, ordinal, chunk_id, content_digest,
        cl100k_tokens, o200k_tokens, terms, length)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
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


class IndexWriter:
    """One change of one tenant's index, within a transaction that the caller commits."""

    def __init__(self, connection: AsyncConnection, tenant_key: int, grant: Grant) -> None:
        self._connection = connection
        self._tenant_key = tenant_key
        self._grant = grant
        self._deltas: defaultdict[int, LiveSum] = defaultdict(LiveSum)
        self._languages: defaultdict[int, Counter[str]] = defaultdict(Counter)

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
        return (
            row.classification <= self._grant.max_classification.rank
            and row.trust_tier >= self._grant.max_trust_tier.rank
            and row.knowledge_class in self._grant.classes
        )

    async def _end(self, rows: Sequence[sa.Row[Any]]) -> None:
        if not rows:
            return
        for row in rows:
            gone = LiveSum(1, row.chunks, row.terms, lanes_from_signed(row.lanes))
            self._deltas[row.label_key] = self._deltas[row.label_key].minus(gone)
            self._languages[row.label_key][row.language or ""] -= 1
        source_keys = [row.source_key for row in rows]
        # Postings first: their statement reads the labels of the sources that end.
        await self._run(_END_POSTINGS, source_keys, self._version)
        await self._run(_END_SOURCES, source_keys, self._version)

    async def _add(self, sources: Sequence[PreparedSource]) -> None:
        label_keys = await self._intern(source.draft.label for source in sources)
        source_rows, chunk_rows, content_rows = [], [], []
        postings: list[tuple[int, int, int, int]] = []
        for source in sources:
            draft, label_key = source.draft, label_keys[_label_digest(source.draft.label)]
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
                    )
                )
                content_rows.append(
                    (self._tenant_key, draft.label.project, draft.source_id, digest, chunk.text)
                )
                postings.extend(
                    (term, label_key, self._last_chunk, frequency << 32 | chunk.length)
                    for term, frequency in chunk.terms
                )
        await self._connection.exec_driver_sql(_ADD_SOURCE, source_rows)
        if chunk_rows:
            await self._connection.exec_driver_sql(_ADD_CHUNK, chunk_rows)
            await self._connection.exec_driver_sql(_ADD_CONTENT, content_rows)
        await self._add_postings(postings)

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
        )

    async def _add_postings(self, postings: list[tuple[int, int, int, int]]) -> None:
        # In the order of the index: neighbouring entries go to the same pages.
        postings.sort()
        for start in range(0, len(postings), _POSTINGS_PER_INSERT):
            terms, labels, chunks, weights = zip(
                *postings[start : start + _POSTINGS_PER_INSERT], strict=True
            )
            await self._run(_ADD_POSTINGS, labels, terms, chunks, weights)

    async def _intern(self, labels: Iterable[Label]) -> dict[Digest, int]:
        wanted = {_label_digest(label): label for label in labels}
        rows = await self._run(_KNOWN_LABELS, [digest_to_bytes(digest) for digest in wanted])
        keys = {digest_from_bytes(row.digest): int(row.label_key) for row in rows}
        new = []
        for digest, label in wanted.items():
            if digest in keys:
                continue
            self._last_label += 1
            keys[digest] = self._last_label
            new.append(
                {
                    "key": self._last_label,
                    "project": label.project,
                    "class": label.knowledge_class.value,
                    "classification": label.classification.rank,
                    "tier": label.trust_tier.rank,
                    "allow": label.allow,
                    "deny": label.deny,
                    "digest": digest_to_bytes(digest).hex(),
                }
            )
        if new:
            await self._run(_ADD_LABELS, json.dumps(new))
        return keys

    async def _finish(self, engine: str) -> None:
        """Store the labels' new sums and the new version."""
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


def _label_digest(label: Label) -> Digest:
    return digest_value(label.canonical())
