"""Vectors of a tenant's index: adding them, ending them with their chunks, and their sums.

Guarantees: what is written belongs to the index version of the transaction it is part of, and
the sums of each label change with it. A source that is replaced keeps the vectors of the texts
that it keeps: nobody is asked for them again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.ended_chunks import PROFILES, EndedChunks
from app.adapters.postgres.vector_states import VectorSum, numbers_of, sum_from, vector_sum
from app.indexing.embedding import HalfVector, as_text
from app.indexing.source import lanes_to_signed
from app.storage.labels import SourceName

_VECTORS_PER_STATEMENT = 500

_LIVE = 9223372036854775807
_PROFILES = PROFILES.format(table="vectors")
_ADD = """
    INSERT INTO vectors (tenant_key, profile, label_key, chunk_key, valid_from, embedding)
    SELECT $1, $2, given.label_key, given.chunk_key, $3, given.embedding::halfvec
    FROM unnest($4::integer[], $5::bigint[], $6::text[])
        AS given (label_key, chunk_key, embedding)
    ON CONFLICT DO NOTHING RETURNING label_key, chunk_key
"""
# All that the key has is given: a join with the table may go through all of the tenant's.
_END = """
    WITH moved AS (
        DELETE FROM vectors WHERE tenant_key = $1 AND profile = $2 AND label_key = $3
            AND chunk_key = ANY($4)
        RETURNING label_key, chunk_key, valid_from, embedding
    ), kept AS (
        INSERT INTO ended_vectors
            (tenant_key, profile, label_key, chunk_key, valid_from, valid_to, embedding)
        SELECT $1, $2, label_key, chunk_key, valid_from, $5, embedding FROM moved
    )
    SELECT moved.label_key, moved.chunk_key, c.content_digest,
        halfvec_send(moved.embedding) AS embedding
    FROM moved CROSS JOIN LATERAL (
        SELECT content_digest FROM chunks
        WHERE tenant_key = $1 AND chunk_key = moved.chunk_key LIMIT 1
    ) c
"""
_LIVE_STATES = f"""
    SELECT label_key, vectors, lane_0, lane_1, lane_2, lane_3 FROM vector_states
    WHERE tenant_key = $1 AND profile = $2 AND label_key = ANY($3) AND valid_to = {_LIVE}
"""  # noqa: S608 - a number
_END_STATES = f"""
    UPDATE vector_states SET valid_to = $4
    WHERE tenant_key = $1 AND profile = $2 AND label_key = ANY($3) AND valid_to = {_LIVE}
"""  # noqa: S608 - a number
_ADD_STATE = """
    INSERT INTO vector_states (tenant_key, profile, label_key, valid_from, vectors,
        lane_0, lane_1, lane_2, lane_3)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""


@dataclass(frozen=True, slots=True)
class ChunkVector:
    """The vector of one chunk: where the chunk stands, and the digest of its text."""

    label_key: int
    chunk_key: int
    content_digest: bytes
    vector: HalfVector


@dataclass(frozen=True, slots=True)
class AddedChunk:
    """A chunk that this change adds."""

    source: SourceName
    label_key: int
    chunk_key: int
    content_digest: bytes


class VectorWriter:
    """The vectors' part of one change; `finish` stores the sums that have changed."""

    def __init__(self, connection: AsyncConnection, tenant_key: int, version: int) -> None:
        self._connection = connection
        self._tenant_key = tenant_key
        self._version = version
        self._deltas: defaultdict[tuple[int, int], VectorSum] = defaultdict(VectorSum)
        # By source and text, what ended under each profile.
        self._ended: defaultdict[tuple[SourceName, bytes], dict[int, HalfVector]] = defaultdict(
            dict
        )

    async def add(self, profile: int, vectors: Sequence[ChunkVector]) -> int:
        """Add those that are not there yet, and return how many that were."""
        added = 0
        for start in range(0, len(vectors), _VECTORS_PER_STATEMENT):
            some = {one.chunk_key: one for one in vectors[start : start + _VECTORS_PER_STATEMENT]}
            # In a thread: a large source that keeps its texts has many numbers to write.
            written = await asyncio.to_thread(_written, some.values())
            rows = await self._run(
                _ADD,
                profile,
                self._version,
                [one.label_key for one in some.values()],
                list(some),
                written,
            )
            for row in rows:
                one = some[row.chunk_key]
                self._change(profile, row.label_key, vector_sum(one.content_digest, one.vector), 1)
                added += 1
        return added

    async def end(self, chunks: Mapping[SourceName, EndedChunks]) -> None:
        """Move the vectors of each source's chunks, which end with this version, aside."""
        keys = defaultdict[int, list[int]](list)
        sources = dict[int, SourceName]()
        for name, one in chunks.items():
            own = range(one.first, one.first + one.count)
            keys[one.label_key].extend(own)
            sources.update(dict.fromkeys(own, name))
        profiles = (await self._run(_PROFILES)).scalars().all()
        for profile, label_key in product(profiles, keys):
            for start in range(0, len(keys[label_key]), _VECTORS_PER_STATEMENT):
                some = keys[label_key][start : start + _VECTORS_PER_STATEMENT]
                for row in await self._run(_END, profile, label_key, some, self._version):
                    vector = numbers_of(row.embedding)
                    gone = vector_sum(row.content_digest, vector)
                    self._change(profile, row.label_key, gone, -1)
                    self._ended[sources[row.chunk_key], row.content_digest][profile] = vector

    async def carry_over(self, chunks: Iterable[AddedChunk]) -> None:
        """Give new chunks the vectors that their sources' equal texts had until now."""
        carried = defaultdict[int, list[ChunkVector]](list)
        for one in chunks:
            for profile, vector in self._ended.get((one.source, one.content_digest), {}).items():
                carried[profile].append(
                    ChunkVector(one.label_key, one.chunk_key, one.content_digest, vector)
                )
        for profile, vectors in sorted(carried.items()):
            await self.add(profile, vectors)

    async def finish(self) -> None:
        for profile in sorted({profile for profile, _ in self._deltas}):
            deltas = {key: delta for (one, key), delta in self._deltas.items() if one == profile}
            found = await self._run(_LIVE_STATES, profile, list(deltas))
            before = {row.label_key: sum_from(row) for row in found}
            await self._run(_END_STATES, profile, list(before), self._version)
            after = {key: before.get(key, VectorSum()).plus(delta) for key, delta in deltas.items()}
            new = [
                (
                    self._tenant_key,
                    profile,
                    key,
                    self._version,
                    one.vectors,
                    *lanes_to_signed(one.lanes),
                )
                for key, one in sorted(after.items())
                if one.vectors
            ]
            if new:
                await self._connection.exec_driver_sql(_ADD_STATE, new)

    def _change(self, profile: int, label_key: int, by: VectorSum, sign: int) -> None:
        key = profile, label_key
        self._deltas[key] = self._deltas[key].plus(by, sign)

    async def _run(self, sql: str, *values: object) -> sa.CursorResult[Any]:
        return await self._connection.exec_driver_sql(sql, (self._tenant_key, *values))


def _written(vectors: Iterable[ChunkVector]) -> list[str]:
    return [as_text(one.vector) for one in vectors]
