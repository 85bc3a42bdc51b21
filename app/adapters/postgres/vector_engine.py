"""The vector leg with an engine outside: it finds chunks, the index says what they are.

Guarantees: the engine is given the admitted labels as a filter; what it finds is looked up under
the same labels at the view's version, so that its word adds nothing to the scope, and scored by
exact products. What it cannot answer whole goes to the exact search, as in the approximate leg:
few vectors in scope, patterns, the past, a copy that is behind the view, and fewer finds than
there must be. What was found is recorded: a replay does not ask it.

Not handled: non-interference, as in the approximate leg.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.vector import Question
from app.adapters.postgres.vector_approximate import (
    FEWEST_VECTORS,
    PostgresApproximateVectorRetriever,
)
from app.adapters.postgres.vector_states import numbers_of, profile_key
from app.errors import UnavailableError
from app.indexing.embedding import Embedder, EmbeddingProfile
from app.retrieval.retriever import SCOPE_PARTS, ScopedQuery
from app.retrieval.vector_engine import EngineVector, VectorEngine, VectorExport

_VECTORS_PER_STATEMENT = 500

_LIVE = Statement(
    """
    SELECT t.index_version, v.keys FROM tenants t CROSS JOIN LATERAL (
        SELECT string_agg(int8send(chunk_key), '') AS keys FROM vectors
        WHERE tenant_key = $1 AND profile = ($2->>'profile')::bigint
    ) v WHERE t.tenant_key = $1
    """,
    "index_version bigint, keys bytea",
)
_VECTORS = Statement(
    """
    SELECT chunk_key, label_key, halfvec_send(embedding) FROM vectors
    WHERE tenant_key = $1 AND profile = ($2->>'profile')::bigint AND chunk_key = ANY($3)
    """,
    "chunk_key bigint, label_key integer, embedding bytea",
)
_ROUNDS = 10


class PostgresEngineRetriever(PostgresApproximateVectorRetriever):
    """Implements `retrieval.retriever.ExternalBackend`."""

    def __init__(
        self,
        database: Database,
        embedders: Sequence[Embedder],
        engine: VectorEngine,
        *,
        fewest_vectors: int = FEWEST_VECTORS,
    ) -> None:
        super().__init__(database, embedders, fewest_vectors=fewest_vectors)
        self._engine = engine
        self.name = engine.name

    async def filters(self) -> frozenset[str]:
        """By label, and of sources by the exact search."""
        await self._engine.ping()
        return frozenset(SCOPE_PARTS)

    async def _search(
        self, query: ScopedQuery, question: Question, places: int
    ) -> tuple[list[int], bytes] | None:
        """None also where the engine's copy is of another version."""
        view = query.view
        collection = collection_of(query.scope.tenant, question.profile)
        if await self._engine.version(collection) != view.index_version:
            return None
        keys = await self._engine.nearest(collection, question.vector, view.label_keys, places)
        told = {"chunks": [str(key) for key in sorted(set(keys))]}
        return await self._recalled(replace(query, recorded=told), question)


def collection_of(tenant: str, profile: int) -> str:
    """A name that any engine takes, of one tenant and one profile's key."""
    digest = hashlib.sha256(tenant.encode()).hexdigest()[:32]
    return f"ctxsnap_{digest}_{profile % (1 << 64):016x}"


class PostgresVectorExporter:
    """Brings an engine's collections to what is live in the index: by difference, so that a
    round that was stopped is made up for, and what was erased goes.
    """

    def __init__(self, database: Database, engine: VectorEngine) -> None:
        self._database = database
        self._engine = engine

    async def export(self, tenant: str, profile: EmbeddingProfile) -> VectorExport:
        """Raises UnavailableError where the index changes faster than it is copied."""
        key = profile_key(profile.id)
        collection = collection_of(tenant, key)
        await self._engine.create(collection, profile.dimensions)
        held = set(await self._engine.keys(collection))
        added = removed = 0
        for _ in range(_ROUNDS):
            version, live = await self._live(tenant, key)
            if held == live and await self._engine.version(collection) == version:
                return VectorExport(added, removed, len(live))
            # Whole up to no version meanwhile: what has ended is missing for older views.
            await self._engine.mark(collection, 0)
            gone = held - live
            await self._engine.remove(collection, gone)
            new = await self._add(tenant, key, collection, sorted(live - held))
            held = (held - gone) | new
            added, removed = added + len(new), removed + len(gone)
            if held == live:
                await self._engine.mark(collection, version)
        raise UnavailableError("The index changes faster than its vectors are copied.")

    async def _live(self, tenant: str, profile: int) -> tuple[int, set[int]]:
        rows = await self._database.run(tenant, _LIVE, {"profile": str(profile)})
        if not rows:
            return 0, set()
        keys = np.frombuffer(rows[0].keys or b"", ">i8")
        return rows[0].index_version, set(keys.tolist())

    async def _add(
        self, tenant: str, profile: int, collection: str, keys: Sequence[int]
    ) -> set[int]:
        """Those that were still live."""
        added = set[int]()
        for start in range(0, len(keys), _VECTORS_PER_STATEMENT):
            some = keys[start : start + _VECTORS_PER_STATEMENT]
            rows = await self._database.run(
                tenant, _VECTORS, {"profile": str(profile)}, numbers=some
            )
            vectors = [
                EngineVector(row.chunk_key, row.label_key, numbers_of(row.embedding))
                for row in rows
            ]
            if vectors:
                await self._engine.add(collection, vectors)
            added |= {one.chunk_key for one in vectors}
        return added
