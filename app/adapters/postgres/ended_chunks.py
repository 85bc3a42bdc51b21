"""Ending the postings of chunks, and removing chunks that have ended for good.

Guarantees: chunks are reached by their keys, postings and vectors by theirs, and many chunks
in several steps: how long one takes depends on what it ends or removes, not on what else the
tenant has.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.vector_states import HAS_VECTORS

REMOVAL_LOCK = 0x656E6465
"""`ende` in ASCII: the first of the two keys of the lock under which chunks of a tenant are
removed; the other is the tenant's. Whoever locks the tenant's row too, takes this one first.
"""

_CHUNKS_AT_A_TIME = 1_000

# $2 to $5 are a range of chunks, its label, and the version with which they ended. One look
# into the index for each term finds the postings of the whole range, side by side.
_TERMS = """
    ARRAY(
        SELECT DISTINCT unnest(terms) FROM chunks
        WHERE tenant_key = $1 AND chunk_key >= $2 AND chunk_key < $3
    )
"""
_END_POSTINGS = f"""
    WITH moved AS (
        DELETE FROM postings WHERE tenant_key = $1 AND term = ANY({_TERMS}) AND label_key = $4
            AND chunk_key >= $2 AND chunk_key < $3
        RETURNING label_key, term, chunk_key, weight
    )
    INSERT INTO ended_postings (tenant_key, label_key, term, chunk_key, weight, valid_to)
    SELECT $1, label_key, term, chunk_key, weight, $5 FROM moved
"""  # noqa: S608 - the fragment is a constant
_REMOVE_LIVE_POSTINGS = f"""
    DELETE FROM postings WHERE tenant_key = $1 AND term = ANY({_TERMS}) AND label_key = $4
        AND chunk_key >= $2 AND chunk_key < $3
"""  # noqa: S608 - the fragment is a constant
_REMOVE_POSTINGS = f"""
    DELETE FROM ended_postings WHERE tenant_key = $1 AND term = ANY({_TERMS}) AND label_key = $4
        AND valid_to = $5 AND chunk_key >= $2 AND chunk_key < $3
"""  # noqa: S608 - the fragment is a constant
# From one profile to the next by the index: a profile has as many rows as there are chunks.
PROFILES = """
    WITH RECURSIVE found (profile) AS (
        (SELECT profile FROM {table} WHERE tenant_key = $1 ORDER BY profile LIMIT 1)
        UNION ALL
        SELECT next.profile FROM found CROSS JOIN LATERAL (
            SELECT profile FROM {table}
            WHERE tenant_key = $1 AND profile > found.profile ORDER BY profile LIMIT 1
        ) next
    )
    SELECT profile FROM found
"""
_ALL_PROFILES = " UNION ".join(
    f"({PROFILES.format(table=table)})" for table in ("vectors", "ended_vectors")
)
_REMOVE_ENDED_VECTORS = """
    DELETE FROM ended_vectors WHERE tenant_key = $1 AND profile = $6 AND label_key = $4
        AND valid_to = $5 AND chunk_key >= $2 AND chunk_key < $3
"""
# Whoever made a vector may have come after the chunk's end.
_REMOVE_LATE_VECTORS = """
    DELETE FROM vectors WHERE tenant_key = $1 AND profile = $5 AND label_key = $4
        AND chunk_key >= $2 AND chunk_key < $3
"""
_REMOVE_CHUNKS = "DELETE FROM chunks WHERE tenant_key = $1 AND chunk_key >= $2 AND chunk_key < $3"

_Range = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class EndedChunks:
    """The chunks of one version of a source: `count` keys from `first` on, under a label.

    `ended` is the version of the index from which they are no longer there.
    """

    first: int
    count: int
    label_key: int
    ended: int


def chunks_of(row: sa.Row[Any], ended: int) -> EndedChunks:
    """From a row of `source_versions`."""
    return EndedChunks(row.first_chunk_key, row.chunks, row.label_key, ended)


async def end_postings(
    connection: AsyncConnection, tenant_key: int, sources: Iterable[EndedChunks]
) -> None:
    """Move the postings of chunks that end aside."""
    for ranges in _slices(sources):
        await connection.exec_driver_sql(_END_POSTINGS, [(tenant_key, *one) for one in ranges])


async def remove_postings(
    connection: AsyncConnection, tenant_key: int, sources: Iterable[EndedChunks]
) -> None:
    """Remove the postings of chunks that end, in place of moving them aside."""
    for ranges in _slices(sources):
        keys = [(tenant_key, *one[:3]) for one in ranges]
        await connection.exec_driver_sql(_REMOVE_LIVE_POSTINGS, keys)


async def remove_chunks(
    connection: AsyncConnection, tenant_key: int, sources: Iterable[EndedChunks]
) -> None:
    """Remove chunks that have ended, with their postings and vectors."""
    profiles: Sequence[int] = ()
    if (await connection.exec_driver_sql(HAS_VECTORS)).scalar_one():
        found = await connection.exec_driver_sql(_ALL_PROFILES, (tenant_key,))
        profiles = found.scalars().all()
    for ranges in _slices(sources):
        keys = [(tenant_key, *one) for one in ranges]
        await connection.exec_driver_sql(_REMOVE_POSTINGS, keys)
        for profile in profiles:
            ended = [(*one, profile) for one in keys]
            await connection.exec_driver_sql(_REMOVE_ENDED_VECTORS, ended)
            late = [(*one[:4], profile) for one in keys]
            await connection.exec_driver_sql(_REMOVE_LATE_VECTORS, late)
        await connection.exec_driver_sql(_REMOVE_CHUNKS, [one[:3] for one in keys])


def _slices(sources: Iterable[EndedChunks]) -> Iterator[list[_Range]]:
    """Ranges of keys, the second one excluded, as many as are ended or removed at a time."""
    slice_, room = list[_Range](), _CHUNKS_AT_A_TIME
    for source in sources:
        start, end = source.first, source.first + source.count
        while start < end:
            past = min(start + room, end)
            _append(slice_, (start, past, source.label_key, source.ended))
            start, room = past, room - (past - start)
            if not room:
                yield slice_
                slice_, room = [], _CHUNKS_AT_A_TIME
    if slice_:
        yield slice_


def _append(ranges: list[_Range], new: _Range) -> None:
    """Sources that were put together stand side by side, and make one range."""
    if ranges and ranges[-1][1:] == (new[0], *new[2:]):
        new = (ranges.pop()[0], *new[1:])
    ranges.append(new)
