"""The approximate vector leg: pgvector's HNSW index, filtered by the scope while it searches.

Guarantees: an iterative scan goes on past what the scope does not admit, so that what comes
back is in scope; whatever it cannot answer whole goes to the exact search: few vectors in scope,
or so few of all that are indexed that to walk past the others takes longer, patterns, the past,
no index, and fewer finds than there must be. Scores are exact products, as
in the exact leg. What was found is recorded: a replay does not search again.

Not handled: non-interference. The index's graph is made of all vectors of a profile, hidden
ones among them, and which of the nearest it misses depends on them. Only strategies whose id
contains `approximate` may use it.

Source: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs" (2018); pgvector's iterative scans (0.8).
"""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from app.adapters.postgres.database import (
    Database,
    Statement,
    connection_url,
    translated_errors,
)
from app.adapters.postgres.vector import (
    MARGIN,
    PostgresVectorRetriever,
    Question,
    best_of,
    look_up_arguments,
)
from app.adapters.postgres.vector_states import (
    HAS_VECTORS,
    numbers_of,
    profile_key,
    vectors_of_source,
)
from app.errors import ConfigurationError
from app.indexing.embedding import Embedder, EmbeddingProfile
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import ScopedQuery

FEWEST_VECTORS = 10_000
"""In scope: below it the exact search is at least as fast (measured, docs/adr/0014)."""

VISIT_COST = 10
"""How many vectors are read one after the other in the time in which one is met in the graph,
as measured: an index of N vectors is walked past N / n of them for each find in a scope of n,
and so reading all n is faster while n^2 is below this times N times the finds."""

_MOST_SCANNED = 20_000
_GREATEST_EF_SEARCH = 1000

# Constants, not parameters: the planner takes a partial index only where it can prove that it
# covers the question. An index which has moved on, and one that would take longer than reading all,
# finds nothing: both are asked here, in the one round trip, before anything is searched.
_NEAREST_SQL = """
    SELECT chunk_key, halfvec_send(embedding)
    FROM vectors
    WHERE tenant_key = $1 AND profile = {profile} AND label_key = ANY($3::integer[])
        AND valid_from <= ($2->>'version')::bigint
        AND chunk_key <= ($2->>'lastChunkKey')::bigint
        AND (SELECT index_version FROM tenants WHERE tenant_key = $1)
            = ($2->>'version')::bigint
        AND (SELECT greatest(reltuples, 0) FROM pg_class WHERE oid = to_regclass('{index}'))
            * {visit_cost} * ($2->>'places')::float8 <= ($2->>'vectors')::float8 ^ 2
    ORDER BY (embedding::halfvec({dimensions})) <#> ($2->>'vector')::halfvec({dimensions})
    LIMIT ($2->>'places')::integer
"""
_RECALLED = Statement(
    f"""
    WITH wanted AS (SELECT jsonb_array_elements_text($2->'chunks')::bigint AS key)
    SELECT v.chunk_key, halfvec_send(v.embedding)
    FROM wanted CROSS JOIN LATERAL (
        SELECT source_key FROM chunks WHERE tenant_key = $1 AND chunk_key = wanted.key LIMIT 1
    ) c CROSS JOIN LATERAL (
        SELECT label_key, valid_to FROM source_versions
        WHERE tenant_key = $1 AND source_key = c.source_key LIMIT 1
    ) s CROSS JOIN LATERAL (
        {vectors_of_source("chunk_key = wanted.key")}
    ) v
    WHERE s.label_key = ANY($3::integer[]) AND s.valid_to > ($2->>'version')::bigint
    """,  # noqa: S608 - a fragment of this package
    "chunk_key bigint, embedding bytea",
)
_ANSWER = "chunk_key bigint, embedding bytea"


class PostgresApproximateVectorRetriever(PostgresVectorRetriever):
    """Implements `retrieval.retriever.Retriever`.

    `fewest_vectors` is the number of vectors in scope from which on the index is asked, if by
    `visit_cost` it is faster.
    """

    name = "vector-approximate"

    def __init__(
        self,
        database: Database,
        embedders: Sequence[Embedder],
        *,
        fewest_vectors: int = FEWEST_VECTORS,
        visit_cost: int = VISIT_COST,
    ) -> None:
        super().__init__(database, embedders)
        self._fewest_vectors = fewest_vectors
        self._visit_cost = visit_cost

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        question = await self.question(query)
        found = await self._recalled(query, question)
        if found is None and query.recorded is None:
            found = await self._approximate(query, question)
        if found is None:
            best = await self.nearest(query, question)
            return _told(await self.answer(query, question, best), "exact")
        best = await best_of(question, *found, query.limit)
        keys = sorted(best.scores)
        question = replace(
            question, recorded={**question.recorded, "chunks": [str(key) for key in keys]}
        )
        return _told(await self.answer(query, question, best), "approximate")

    async def _recalled(
        self, query: ScopedQuery, question: Question
    ) -> tuple[list[int], bytes] | None:
        """What a search found the first time, as it was at the view's version."""
        recorded = (query.recorded or {}).get("chunks")
        if recorded is None:
            return None
        return _unpacked(
            await self._database.run(
                query.scope.tenant,
                _RECALLED,
                {
                    "chunks": recorded,
                    "profile": str(question.profile),
                    "version": query.view.index_version,
                },
                numbers=query.view.label_keys,
            )
        )

    async def _approximate(
        self, query: ScopedQuery, question: Question
    ) -> tuple[list[int], bytes] | None:
        """What the search finds; None where it is not to be asked, or did not find enough."""
        view, vectors = query.view, question.sums.vectors
        selected = not query.scope.predicate.sources.is_open or view.hidden_source_keys
        if vectors < self._fewest_vectors or selected or not view.label_keys:
            return None
        places = query.limit + MARGIN
        found = await self._search(query, question, places)
        return found if found and len(found[0]) == min(places, vectors) else None

    async def _search(
        self, query: ScopedQuery, question: Question, places: int
    ) -> tuple[list[int], bytes] | None:
        """Up to so many of the nearest; None where there is nothing to search in."""
        dimensions = len(question.vector) // 2
        sql = _NEAREST_SQL.format(
            profile=question.profile,
            dimensions=dimensions,
            index=_index_name(str(question.recorded["profile"])),
            visit_cost=self._visit_cost,
        )
        rows = await self._database.run(
            query.scope.tenant,
            Statement(sql, _ANSWER),
            {
                **look_up_arguments(query, question, places),
                "vectors": question.sums.vectors,
            },
            numbers=query.view.label_keys,
            settings=_settings(places),
        )
        return _unpacked(rows)


def _settings(places: int) -> dict[str, str]:
    return {
        "hnsw.iterative_scan": "strict_order",
        "hnsw.ef_search": str(min(2 * places, _GREATEST_EF_SEARCH)),
        "hnsw.max_scan_tuples": str(_MOST_SCANNED),
        # The planner knows no number of rows of a label: by itself it may sort all of them.
        "enable_sort": "off",
    }


def _told(answer: Retrieval, search: str) -> Retrieval:
    return replace(answer, facts={**answer.facts, "search": search})


def _unpacked(rows: Sequence[sa.Row[tuple[int, bytes]]]) -> tuple[list[int], bytes]:
    """Keys, and the vectors one after the other."""
    return [row.chunk_key for row in rows], b"".join(numbers_of(row.embedding) for row in rows)


async def build_approximate_index(owner_url: str, profile: EmbeddingProfile) -> str:
    """Build a profile's index under the owner's role, unless it is there; return its name.

    Reading and writing go on meanwhile; an index that was left unfinished is built anew.
    Raises ConfigurationError where the tables of vectors are not there.
    """
    name = _index_name(profile.id)
    engine = create_async_engine(
        connection_url(owner_url), poolclass=NullPool, isolation_level="AUTOCOMMIT"
    )
    try:
        with translated_errors():
            async with engine.connect() as connection:
                if not (await connection.exec_driver_sql(HAS_VECTORS)).scalar_one():
                    raise ConfigurationError(
                        "The database has no tables for vectors: let a superuser run CREATE "
                        "EXTENSION vector in it, and then `ctxsnap migrate` again."
                    )
                if not await _is_valid(connection, name):
                    await connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
                    await connection.exec_driver_sql(
                        f"CREATE INDEX CONCURRENTLY {name} ON vectors USING hnsw "
                        f"((embedding::halfvec({profile.dimensions})) halfvec_ip_ops) "
                        f"WHERE profile = {profile_key(profile.id)}"
                    )
    finally:
        await engine.dispose()
    return name


def _index_name(profile_id: str) -> str:
    return f"vectors_hnsw_{profile_id}"


async def _is_valid(connection: AsyncConnection, name: str) -> bool:
    found = await connection.exec_driver_sql(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", (name,)
    )
    return bool(found.scalar_one_or_none())
