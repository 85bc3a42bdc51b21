"""Sums over the vectors of labels: how many there are, and a fingerprint of them.

As `label_states` has them for chunks: what a scope can see of an embedding profile is told by
adding up the sums of its labels, without a look at the vectors.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.adapters.postgres.database import Database, Statement
from app.indexing.embedding import HalfVector
from app.indexing.source import LANES, add_lanes, lanes_from_signed, lanes_of, lanes_to_signed
from app.retrieval.retriever import IndexView
from app.scope.access import AccessScope

_HALFVEC_HEADER = 4
"""Bytes before the numbers in what `halfvec_send` gives: dimensions, and nothing."""

HAS_VECTORS = "SELECT to_regclass('vectors') IS NOT NULL"

_SUMS = Statement(
    """
    SELECT profile, sum(vectors)::bigint, sum(lane_0)::text, sum(lane_1)::text,
        sum(lane_2)::text, sum(lane_3)::text
    FROM jsonb_array_elements_text($2->'profiles') AS wanted (key)
    JOIN vector_states s ON s.tenant_key = $1 AND s.profile = wanted.key::bigint
        AND s.label_key = ANY($3::integer[])
        AND s.valid_from <= ($2->>'version')::bigint AND s.valid_to > ($2->>'version')::bigint
    GROUP BY profile
    """,
    "profile bigint, vectors bigint, lane_0 text, lane_1 text, lane_2 text, lane_3 text",
)
_HIDDEN = Statement(
    """
    SELECT c.content_digest, halfvec_send(v.embedding)
    FROM source_versions s CROSS JOIN LATERAL (
        SELECT chunk_key, content_digest FROM chunks WHERE tenant_key = $1
        AND chunk_key >= s.first_chunk_key AND chunk_key < s.first_chunk_key + s.chunks OFFSET 0
    ) c CROSS JOIN LATERAL (
        SELECT embedding FROM vectors WHERE tenant_key = $1
            AND profile = ($2->>'profile')::bigint AND label_key = s.label_key
            AND chunk_key = c.chunk_key AND valid_from <= ($2->>'version')::bigint
        UNION ALL
        SELECT embedding FROM ended_vectors WHERE tenant_key = $1
            AND profile = ($2->>'profile')::bigint AND label_key = s.label_key
            AND chunk_key = c.chunk_key AND valid_from <= ($2->>'version')::bigint
            AND valid_to > ($2->>'version')::bigint
        OFFSET 0
    ) v
    WHERE s.tenant_key = $1 AND s.source_key = ANY($3)
    """,
    "content_digest bytea, embedding bytea",
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


def total(sums: Iterable[VectorSum]) -> VectorSum:
    found = VectorSum()
    for one in sums:
        found = found.plus(one)
    return found


async def vector_sums(
    database: Database, scope: AccessScope, view: IndexView, profiles: Sequence[int]
) -> dict[int, VectorSum]:
    """The sums of a view's labels for each of these profiles, without its hidden sources."""
    found = await sums_of_labels(
        database, scope.tenant, view.label_keys, view.index_version, profiles
    )
    if view.hidden_source_keys:
        for profile in profiles:
            hidden = await _hidden_sum(database, scope, view, profile)
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
    for row in rows:
        lanes = [int(lane) for lane in (row.lane_0, row.lane_1, row.lane_2, row.lane_3)]
        found[row.profile] = VectorSum(row.vectors, lanes_from_signed(lanes))
    return found


async def _hidden_sum(
    database: Database, scope: AccessScope, view: IndexView, profile: int
) -> VectorSum:
    rows = await database.run(
        scope.tenant,
        _HIDDEN,
        {"profile": str(profile), "version": view.index_version},
        numbers=view.hidden_source_keys,
    )
    return total(vector_sum(row.content_digest, numbers_of(row.embedding)) for row in rows)
