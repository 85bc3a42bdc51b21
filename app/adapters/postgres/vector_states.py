"""Sums over the vectors of labels: how many there are, and a fingerprint of them.

As `label_states` has them for chunks: what a scope can see of an embedding profile is told by
adding up the sums of its labels, without a look at the vectors.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.adapters.postgres.database import Database, Statement
from app.canonical import JsonObject
from app.indexing.embedding import HalfVector
from app.indexing.source import LANES, add_lanes, lanes_from_signed, lanes_of, lanes_to_signed
from app.retrieval.retriever import IndexView
from app.scope.access import AccessScope

_HALFVEC_HEADER = 4
"""Bytes before the numbers in what `halfvec_send` gives: dimensions, and nothing."""

HAS_VECTORS = "SELECT to_regclass('vectors') IS NOT NULL"


def vectors_of_source(keys: str) -> str:
    """SQL for the vectors of a row `s` of `source_versions` that were there at $2's version.

    `keys` says of which chunks. Vectors end with their source, so that each is one look-up by key.
    OFFSET 0 keeps it one for each source.
    """
    common = f"""
        tenant_key = $1 AND profile = ($2->>'profile')::bigint AND label_key = s.label_key
        AND {keys} AND valid_from <= ($2->>'version')::bigint
    """
    return f"""
        SELECT chunk_key, embedding FROM vectors WHERE {common}
        UNION ALL
        SELECT chunk_key, embedding FROM ended_vectors WHERE {common} AND valid_to = s.valid_to
        OFFSET 0
    """  # noqa: S608 - conditions of this package


def _sum_of_lane(lane: int) -> str:
    """SQL for the sum of one lane of `digest`, as `lanes_of` reads it, in signed numbers."""
    eighth = f"encode(substring(digest FROM {8 * lane + 1} FOR 8), 'hex')"
    return f"COALESCE(sum(('x' || {eighth})::bit(64)::bigint), 0)::text"


# One look-up for each label, however many states it had: only the last that had begun counts.
_SUMS = Statement(
    """
    SELECT s.profile, sum(s.vectors)::bigint, sum(s.lane_0)::text, sum(s.lane_1)::text,
        sum(s.lane_2)::text, sum(s.lane_3)::text
    FROM jsonb_array_elements_text($2->'profiles') AS wanted (key)
    CROSS JOIN unnest($3::integer[]) AS label (key) CROSS JOIN LATERAL (
        SELECT * FROM vector_states
        WHERE tenant_key = $1 AND profile = wanted.key::bigint AND label_key = label.key
            AND valid_from <= ($2->>'version')::bigint
        ORDER BY valid_from DESC LIMIT 1
    ) s
    WHERE s.valid_to > ($2->>'version')::bigint
    GROUP BY s.profile
    """,
    "profile bigint, vectors bigint, lane_0 text, lane_1 text, lane_2 text, lane_3 text",
)
_OF_SOURCES = f"""
    WITH listed AS MATERIALIZED (
        SELECT sha256(
            c.content_digest || substring(halfvec_send(v.embedding) FROM {_HALFVEC_HEADER + 1})
        ) AS digest
        FROM source_versions s CROSS JOIN LATERAL (
            SELECT chunk_key, content_digest FROM chunks WHERE tenant_key = $1
            AND chunk_key >= s.first_chunk_key AND chunk_key < s.first_chunk_key + s.chunks OFFSET 0
        ) c CROSS JOIN LATERAL (
            {vectors_of_source("chunk_key = c.chunk_key")}
        ) v
        WHERE s.tenant_key = $1 AND {{which}}
    )
    SELECT count(*), {", ".join(map(_sum_of_lane, range(LANES)))} FROM listed
"""  # noqa: S608 - numbers
_OF_SOURCES_ANSWER = "vectors bigint, lane_0 text, lane_1 text, lane_2 text, lane_3 text"
_HIDDEN = Statement(_OF_SOURCES.format(which="s.source_key = ANY($3)"), _OF_SOURCES_ANSWER)
_SHOWN = Statement(
    _OF_SOURCES.format(
        which="""s.label_key = ANY($3::integer[])
            AND s.valid_from <= ($2->>'version')::bigint
            AND s.valid_to > ($2->>'version')::bigint
            AND s.source_key <> ALL(ARRAY(
                SELECT jsonb_array_elements_text($2->'hidden')::bigint))"""
    ),
    _OF_SOURCES_ANSWER,
)
_ANY_ERASED = Statement(
    """
    SELECT EXISTS (
        SELECT FROM source_versions WHERE tenant_key = $1 AND source_key = ANY($3) AND erased
    )
    """,
    "erased boolean",
)


@dataclass(frozen=True, slots=True)
class VectorSum:
    """A number of vectors, and four sums modulo 2^64 of their fingerprints."""

    vectors: int = 0
    lanes: tuple[int, ...] = (0,) * LANES

    def plus(self, other: "VectorSum", sign: int = 1) -> "VectorSum":
        return VectorSum(
            self.vectors + sign * other.vectors,
            add_lanes(self.lanes, other.lanes, sign),
        )


def profile_key(profile_id: str) -> int:
    """The 64 bits of a profile's id as PostgreSQL's signed bigint."""
    (key,) = lanes_to_signed((int(profile_id, 16),))
    return key


def numbers_of(sent: bytes) -> HalfVector:
    """The numbers of what `halfvec_send` gives."""
    return HalfVector(sent[_HALFVEC_HEADER:])


def vector_sum(content_digest: bytes, vector: HalfVector) -> VectorSum:
    """What one vector adds: it is told by the text that it stands for, and its numbers."""
    lanes = lanes_of(hashlib.sha256(content_digest + vector).digest())
    return VectorSum(1, lanes)


async def vector_sums(
    database: Database, scope: AccessScope, view: IndexView, profiles: Sequence[int]
) -> dict[int, VectorSum]:
    """The sums of a view's labels for each of these profiles, without its hidden sources."""
    found = await sums_of_labels(
        database, scope.tenant, view.label_keys, view.index_version, profiles
    )
    if view.hidden_source_keys:
        # What a hidden source had cannot be taken away once it is erased: what is shown is
        # added up then, which is far more.
        erased = await database.run(scope.tenant, _ANY_ERASED, numbers=view.hidden_source_keys)
        for profile in profiles:
            if erased[0].erased:
                found[profile] = await _sum_of_sources(database, scope, view, profile, shown=True)
            else:
                hidden = await _sum_of_sources(database, scope, view, profile, shown=False)
                found[profile] = found[profile].plus(hidden, -1)
    return found


async def sums_of_labels(
    database: Database,
    tenant: str,
    label_keys: Sequence[int],
    version: int,
    profiles: Sequence[int],
) -> dict[int, VectorSum]:
    """The sums over labels at a version, for each of these profiles."""
    found = dict.fromkeys(profiles, VectorSum())
    if not label_keys:
        return found
    rows = await database.run(
        tenant,
        _SUMS,
        {"profiles": [str(one) for one in profiles], "version": version},
        numbers=label_keys,
    )
    found.update({row.profile: sum_from(row) for row in rows})
    return found


async def _sum_of_sources(
    database: Database, scope: AccessScope, view: IndexView, profile: int, *, shown: bool
) -> VectorSum:
    """Of the sources that the view shows, or of those that it hides."""
    arguments: JsonObject = {
        "profile": str(profile),
        "version": view.index_version,
        "hidden": [str(key) for key in view.hidden_source_keys],
    }
    statement, numbers = _HIDDEN, view.hidden_source_keys
    if shown:
        statement, numbers = _SHOWN, view.label_keys
    (row,) = await database.run(scope.tenant, statement, arguments, numbers=numbers)
    return sum_from(row)


def sum_from(row: sa.Row[Any]) -> VectorSum:
    """Of a row with `vectors` and four lanes, as numbers or in decimal digits."""
    lanes = [int(lane) for lane in (row.lane_0, row.lane_1, row.lane_2, row.lane_3)]
    return VectorSum(row.vectors, lanes_from_signed(lanes))
