"""The graph of sources: following links within the labels of a scope, at a version.

Guarantees: each source on a path is looked up under the scope, so that one outside of it
leads nowhere and is no end; paths are worth what `retrieval.expansion` says. Two round
trips: paths, then the chosen chunks.
"""

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.lexical import CHOSEN, chunk_from_row
from app.adapters.postgres.scope_filter import scope_arguments, source_filter
from app.canonical import JsonValue
from app.retrieval.candidate import Candidate, Retrieval
from app.retrieval.expansion import (
    CHUNKS_PER_NEIGHBOUR,
    FOLLOWED,
    ExpansionRules,
    Reached,
    Seeds,
    best_reached,
)
from app.retrieval.retriever import ScopedQuery

# What `named` holds, looked up by key: LIMIT 1 keeps the planner from joining by the labels.
_LOOK_UP = """
    SELECT s.source_key, s.project, s.source_id, s.links, s.first_chunk_key, s.chunks, named.score
    FROM named CROSS JOIN LATERAL (
        SELECT * FROM source_versions s WHERE s.tenant_key = $1
            AND s.project = named.project AND s.source_id = named.source_id
            AND s.valid_from <= ($2->>'version')::bigint
            AND s.valid_to > ($2->>'version')::bigint AND s.label_key = ANY($3::integer[])
            AND {source_filter} AND s.source_key <> ALL(ARRAY(
                SELECT jsonb_array_elements_text($2->'hidden')::bigint))
        LIMIT 1
    ) s
"""
_SEEDS = """
    hop_0 AS MATERIALIZED (
        WITH named AS (
            SELECT project, "sourceId" AS source_id, score FROM jsonb_to_recordset($2->'seeds')
            AS seed (project text, "sourceId" text, score bigint)
        )
        {look_up}
    )
"""
# A hop's sources are worth what the best path of so many links is worth: damping comes later,
# because it is the same for all of one hop.
_HOP = """
    hop_{hop} AS MATERIALIZED (
        WITH named AS (
            SELECT h.project, link.source_id, max(h.score) AS score
            FROM hop_{before} h CROSS JOIN LATERAL jsonb_array_elements_text(h.links)
                AS link (source_id)
            WHERE link.source_id <> h.source_id GROUP BY h.project, link.source_id
        )
        {look_up}
        ORDER BY named.score DESC, s.source_id, s.project LIMIT {followed}
    )
"""
_REACHED = """
    SELECT h.hop, h.score, h.project, h.source_id, c.chunk_key, c.ordinal, c.chunk_id
    FROM ({hops}) h CROSS JOIN LATERAL (
        SELECT chunk_key, ordinal, chunk_id FROM chunks WHERE tenant_key = $1
            AND chunk_key >= h.first_chunk_key
            AND chunk_key < h.first_chunk_key + LEAST(h.chunks, {per_neighbour})
        OFFSET 0
    ) c
"""
_REACHED_ANSWER = (
    "hop integer, score bigint, project text, source_id text, chunk_key bigint, "
    "ordinal integer, chunk_id text"
)


class PostgresSourceGraph:
    """Implements `retrieval.expansion.SourceGraph`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def neighbours(
        self, query: ScopedQuery, seeds: Seeds, rules: ExpansionRules
    ) -> Retrieval:
        reached = await self._reached(query, seeds, rules.hops)
        scores = best_reached(reached, seeds.known, rules, query.limit)
        rows = []
        if scores:
            version = query.view.index_version
            rows = list(
                await self._database.run(
                    query.scope.tenant,
                    CHOSEN,
                    {"tied": [], "places": 0, "version": version},
                    numbers=list(scores),
                )
            )
        chunks = {row.chunk_key: chunk_from_row(row) for row in rows}
        found = [(chunks[key], score) for key, score in scores.items() if key in chunks]
        return Retrieval(
            tuple(
                Candidate(chunk, score, rank) for rank, (chunk, score) in enumerate(found, start=1)
            ),
            query.view.visible_version,
        )

    async def _reached(self, query: ScopedQuery, seeds: Seeds, hops: int) -> list[Reached]:
        view, predicate = query.view, query.scope.predicate
        if not view.label_keys:
            return []
        arguments: dict[str, JsonValue] = {
            **scope_arguments(predicate),
            "seeds": [
                {"project": project, "sourceId": source_id, "score": score}
                for (project, source_id), score in sorted(seeds.scores.items())
            ],
            "version": view.index_version,
            "hidden": [str(key) for key in view.hidden_source_keys],
        }
        statement = Statement(_paths_sql(hops, source_filter(predicate.sources)), _REACHED_ANSWER)
        rows = await self._database.run(
            query.scope.tenant, statement, arguments, numbers=view.label_keys
        )
        return [
            Reached(
                row.chunk_key,
                (row.project, row.source_id, row.chunk_id),
                row.ordinal,
                row.hop,
                row.score,
            )
            for row in rows
        ]


def _paths_sql(hops: int, filter_: str) -> str:
    """One statement for all hops: a query of its own for each, over the sources of the last."""
    look_up = _LOOK_UP.format(source_filter=filter_)
    steps = [_SEEDS.format(look_up=look_up)]
    for hop in range(1, hops + 1):
        steps.append(_HOP.format(hop=hop, before=hop - 1, look_up=look_up, followed=FOLLOWED))
    every = " UNION ALL ".join(
        f"SELECT {hop} AS hop, * FROM hop_{hop}"  # noqa: S608 - a number
        for hop in range(1, hops + 1)
    )
    return f"WITH {', '.join(steps)}" + _REACHED.format(
        hops=every, per_neighbour=CHUNKS_PER_NEIGHBOUR
    )
