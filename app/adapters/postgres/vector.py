"""The vector leg: exact search within the labels of a scope, at a version, scored in integers.

Guarantees: only vectors of one embedding profile, of admitted labels (and, where the scope has
patterns, of admitted sources) are read. PostgreSQL's own distances are sums of floats, whose
last bits depend on the CPU: they only choose whom to look at, with a margin that is wider than
their error; the ranking comes from exact dot products. Three round trips and one question to
the embedding endpoint: which profile serves the scope, the nearest vectors, the chosen chunks.
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.lexical import chosen_candidates
from app.adapters.postgres.scope_filter import scope_arguments, source_filter
from app.adapters.postgres.vector_states import (
    VectorSum,
    numbers_of,
    profile_key,
    vector_sums,
    vectors_of_source,
)
from app.canonical import JsonObject, digest_to_bytes, digest_value
from app.indexing.embedding import (
    Embedder,
    HalfVector,
    as_text,
    exact_products,
    greatest_float_error,
)
from app.retrieval import bm25
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import IndexView, ScopedQuery

MARGIN = 32
"""Vectors looked at beyond the limit, so that one question nearly always is enough."""

# Ended vectors are looked at only when the index has moved on since the view was opened.
_NEAREST_SQL = """
    SELECT chunk_key, halfvec_send(embedding), distance FROM (
        SELECT v.chunk_key, v.embedding, v.embedding <#> ($2->>'vector')::halfvec AS distance
        FROM ({vectors}) v
        ORDER BY distance LIMIT ($2->>'places')::integer
    ) nearest
"""
_IN_LABELS = """
    SELECT chunk_key, embedding FROM vectors
    WHERE tenant_key = $1 AND profile = ($2->>'profile')::bigint
        AND label_key = ANY($3::integer[]) AND valid_from <= ($2->>'version')::bigint
        AND chunk_key <= ($2->>'lastChunkKey')::bigint
    UNION ALL
    SELECT chunk_key, embedding FROM ended_vectors
    WHERE tenant_key = $1 AND profile = ($2->>'profile')::bigint
        AND label_key = ANY($3::integer[]) AND valid_from <= ($2->>'version')::bigint
        AND valid_to > ($2->>'version')::bigint
        AND (SELECT index_version FROM tenants WHERE tenant_key = $1)
            <> ($2->>'version')::bigint
"""
_OF_SOURCE = vectors_of_source(
    "chunk_key >= s.first_chunk_key AND chunk_key < s.first_chunk_key + s.chunks"
)
_OF_SELECTED = f"""
    SELECT v.chunk_key, v.embedding FROM source_versions s CROSS JOIN LATERAL ({_OF_SOURCE}) v
    WHERE s.tenant_key = $1 AND s.label_key = ANY($3::integer[])
        AND s.valid_from <= ($2->>'version')::bigint
        AND s.valid_to > ($2->>'version')::bigint AND {{source_filter}}
        AND s.source_key <> ALL(ARRAY(
            SELECT jsonb_array_elements_text($2->'hidden')::bigint))
"""  # noqa: S608 - a fragment of this package
_NEAREST_ANSWER = "chunk_key bigint, embedding bytea, distance double precision"


@dataclass(frozen=True, slots=True)
class Question:
    """The query's vector under the profile that serves the scope; `recorded` is for a replay."""

    profile: int
    vector: HalfVector
    normalised: bool
    sums: VectorSum
    recorded: JsonObject


class PostgresVectorRetriever:
    """Implements `retrieval.retriever.Retriever`.

    `embedders` are those of the profiles in service, the one that is to serve first: a
    scope is served by the one that has the most vectors in it, of several by the first.
    """

    name = "vector"

    def __init__(self, database: Database, embedders: Sequence[Embedder]) -> None:
        self._database = database
        self._embedders = {profile_key(one.profile.id): one for one in embedders}

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        question = await self.question(query)
        return await self.answer(query, question, await self.nearest(query, question))

    async def question(self, query: ScopedQuery) -> Question:
        if query.recorded is None:
            return await self._ask(query)
        return await self._recall(query, query.recorded)

    async def answer(self, query: ScopedQuery, question: Question, best: bm25.Cut) -> Retrieval:
        return Retrieval(
            await chosen_candidates(self._database, query, best),
            _visible_version(query.view, question),
            inputs=question.recorded,
            facts={"vectors": question.sums.vectors, "chunks": query.view.chunks},
        )

    async def _ask(self, query: ScopedQuery) -> Question:
        sums = await vector_sums(self._database, query.scope, query.view, list(self._embedders))
        # The first of several: none has more vectors than one that is complete.
        profile = max(self._embedders, key=lambda key: sums[key].vectors)
        embedder = self._embedders[profile]
        vector = await embedder.embed_query(query.text)
        recorded: JsonObject = {
            "profile": embedder.profile.id,
            "vector": base64.b64encode(vector).decode("ascii"),
            "normalised": embedder.profile.normalise,
        }
        normalised = embedder.profile.normalise
        return Question(profile, vector, normalised, sums[profile], recorded)

    async def _recall(self, query: ScopedQuery, recorded: JsonObject) -> Question:
        profile = profile_key(str(recorded["profile"]))
        sums = await vector_sums(self._database, query.scope, query.view, [profile])
        vector = HalfVector(base64.b64decode(str(recorded["vector"])))
        normalised = bool(recorded["normalised"])
        return Question(profile, vector, normalised, sums[profile], recorded)

    async def nearest(self, query: ScopedQuery, question: Question) -> bm25.Cut:
        """The best of all that is in scope."""
        if not query.view.label_keys or question.sums.vectors == 0:
            return bm25.Cut((), (), 0, {})
        places = query.limit + MARGIN
        while True:
            keys, vectors, farthest = await self._look_up(query, question, places)
            best = await best_of(question, keys, vectors, query.limit)
            if len(keys) < places:
                return best
            # Whoever was not looked at is no nearer than the farthest that was.
            beyond = -farthest + greatest_float_error(
                question.vector, normalised=question.normalised
            )
            if min(best.scores.values()) > int(np.ceil(beyond * 2**32)):
                return best
            places *= 4

    async def _look_up(
        self, query: ScopedQuery, question: Question, places: int
    ) -> tuple[list[int], bytes, float]:
        """Keys, vectors one after the other, and the greatest distance among them."""
        view, predicate = query.view, query.scope.predicate
        vectors = _IN_LABELS
        if not predicate.sources.is_open or view.hidden_source_keys:
            vectors = _OF_SELECTED.format(source_filter=source_filter(predicate.sources))
        rows = await self._database.run(
            query.scope.tenant,
            Statement(_NEAREST_SQL.format(vectors=vectors), _NEAREST_ANSWER),
            {**scope_arguments(predicate), **look_up_arguments(query, question, places)},
            numbers=view.label_keys,
        )
        packed = b"".join(numbers_of(row.embedding) for row in rows)
        return (
            [row.chunk_key for row in rows],
            packed,
            max((row.distance for row in rows), default=0),
        )


def look_up_arguments(query: ScopedQuery, question: Question, places: int) -> JsonObject:
    view = query.view
    return {
        "profile": str(question.profile),
        "vector": as_text(question.vector),
        "version": view.index_version,
        "lastChunkKey": view.last_chunk_key,
        "hidden": [str(key) for key in view.hidden_source_keys],
        "places": places,
    }


async def best_of(question: Question, keys: Sequence[int], vectors: bytes, limit: int) -> bm25.Cut:
    """The best of these vectors, which stand one after the other, by exact products."""
    products = await asyncio.to_thread(exact_products, question.vector, vectors)
    return bm25.cut(np.array(keys, np.int64), np.array(products, np.int64), limit)


def _visible_version(view: IndexView, question: Question) -> str:
    """What the scope sees of chunks, and of their vectors under this profile."""
    digest = digest_value(
        {
            "chunks": view.visible_version,
            "profile": str(question.profile),
            "vectors": question.sums.vectors,
            "lanes": [str(lane) for lane in question.sums.lanes],
        }
    )
    return digest_to_bytes(digest)[:16].hex()
