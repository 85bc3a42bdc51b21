"""The lexical leg: exact BM25 over postings, within the labels of a scope, at a version.

Guarantees: only postings of admitted labels (and, where the scope has patterns, of
admitted sources) are read; document frequency, count and mean length are taken within
the scope. Two round trips: postings, then the chosen chunks.
"""

import asyncio
from collections import Counter
from typing import Any

import sqlalchemy as sa

from app.adapters.postgres.database import Database, Statement, stored_time
from app.adapters.postgres.scope_filter import (
    LABEL_ANSWER,
    LABEL_COLUMNS,
    label_from_row,
    scope_arguments,
    source_filter,
)
from app.canonical import JsonValue, digest_from_bytes
from app.indexing.analysis import analyze, term_key
from app.retrieval import bm25
from app.retrieval.candidate import Candidate, Chunk, Retrieval
from app.retrieval.retriever import ScopedQuery

# Ended postings are looked at only when the index has moved on since the view was opened.
POSTINGS_SQL = """
    WITH terms AS (
        SELECT value::bigint AS term, ordinality FROM
        jsonb_array_elements_text($2->'terms') WITH ORDINALITY
    )
    SELECT t.ordinality::integer, found.keys, found.weights
    FROM terms t CROSS JOIN LATERAL (
        SELECT string_agg(int8send(p.chunk_key), '') AS keys,
            string_agg(int8send(p.weight), '') AS weights
        FROM (
            SELECT chunk_key, weight FROM postings
            WHERE tenant_key = $1 AND term = t.term AND label_key = ANY($3::integer[])
                AND chunk_key <= ($2->>'lastChunkKey')::bigint
            UNION ALL
            SELECT chunk_key, weight FROM ended_postings
            WHERE tenant_key = $1 AND term = t.term AND label_key = ANY($3::integer[])
                AND valid_to > ($2->>'version')::bigint
                AND chunk_key <= ($2->>'lastChunkKey')::bigint
                AND (SELECT index_version FROM tenants WHERE tenant_key = $1)
                    <> ($2->>'version')::bigint
        ) p
    ) found WHERE found.keys IS NOT NULL
"""
POSTINGS_ANSWER = "ordinality integer, keys bytea, weights bytea"

# The patterns of a scope select chunks; their count and length come along in row 0.
# OFFSET 0 keeps a term from being joined to all postings of the labels. IS TRUE keeps IN a
# look-up in a hash: as a join, expected to be of one row, it read every posting once for each
# selected chunk (measured right after a load, 378 chunks: 5 s instead of 0.03 s).
SELECTED_POSTINGS_SQL = """
    WITH selected AS MATERIALIZED (
        SELECT c.chunk_key, c.length FROM source_versions s CROSS JOIN LATERAL (
            SELECT chunk_key, length FROM chunks WHERE tenant_key = $1
            AND chunk_key >= s.first_chunk_key AND chunk_key < s.first_chunk_key + s.chunks
            OFFSET 0
        ) c
        WHERE s.tenant_key = $1 AND s.label_key = ANY($3::integer[])
            AND s.valid_from <= ($2->>'version')::bigint
            AND s.valid_to > ($2->>'version')::bigint AND {source_filter}
            AND s.source_key <> ALL(ARRAY(
                SELECT jsonb_array_elements_text($2->'hidden')::bigint))
    ), terms AS (
        SELECT value::bigint AS term, ordinality FROM
        jsonb_array_elements_text($2->'terms') WITH ORDINALITY
    ), hits AS (
        SELECT t.ordinality, p.chunk_key, p.weight FROM terms t CROSS JOIN LATERAL (
            SELECT chunk_key, weight FROM postings
            WHERE tenant_key = $1 AND term = t.term AND label_key = ANY($3::integer[])
            OFFSET 0
        ) p
        UNION ALL
        SELECT t.ordinality, p.chunk_key, p.weight FROM terms t CROSS JOIN LATERAL (
            SELECT chunk_key, weight FROM ended_postings
            WHERE tenant_key = $1 AND term = t.term AND label_key = ANY($3::integer[])
                AND valid_to > ($2->>'version')::bigint
            OFFSET 0
        ) p
    )
    SELECT 0, int8send(count(*)), int8send(COALESCE(sum(length), 0)::bigint) FROM selected
    UNION ALL
    SELECT h.ordinality::integer, string_agg(int8send(h.chunk_key), ''),
        string_agg(int8send(h.weight), '')
    FROM hits h WHERE (h.chunk_key IN (SELECT chunk_key FROM selected)) IS TRUE
    GROUP BY h.ordinality
"""

CHUNK_COLUMNS = f"""
    c.chunk_key, t.name AS tenant, s.source_id, s.revision, s.provenance, c.ordinal, c.chunk_id,
    c.content_digest, x.text, c.cl100k_tokens, c.o200k_tokens, s.expires_at, h.revision,
    c.signature, s.media_type, s.language, {LABEL_COLUMNS}
"""
CHUNK_ANSWER = (
    "chunk_key bigint, tenant text, source_id text, revision text, provenance text, "
    "ordinal integer, chunk_id text, content_digest bytea, text text, cl100k_tokens integer, "
    "o200k_tokens integer, expires_at timestamptz, head_revision text, signature bigint, "
    f"media_type text, language text, {LABEL_ANSWER}"
)
# LIMIT 1 keeps each step a look-up by key, whatever the planner thinks of the tables'
# sizes: right after a load it knows nothing, and joined them the other way round.
CHUNK_JOINS = """
    CROSS JOIN LATERAL (
        SELECT name FROM tenants WHERE tenant_key = c.tenant_key LIMIT 1
    ) t
    CROSS JOIN LATERAL (
        SELECT * FROM source_versions WHERE tenant_key = $1 AND source_key = c.source_key LIMIT 1
    ) s CROSS JOIN LATERAL (
        SELECT * FROM labels WHERE tenant_key = $1 AND label_key = s.label_key LIMIT 1
    ) l CROSS JOIN LATERAL (
        SELECT text FROM source_contents WHERE tenant_key = $1 AND project = s.project
        AND source_id = s.source_id AND digest = c.content_digest LIMIT 1
    ) x LEFT JOIN LATERAL (
        SELECT revision FROM source_heads WHERE tenant_key = $1 AND project = s.project
        AND source_id = s.source_id AND valid_from <= ($2->>'version')::bigint
        AND valid_to > ($2->>'version')::bigint LIMIT 1
    ) h ON true
"""
CHOSEN = Statement(
    f"""
    WITH tied AS (
        SELECT c.chunk_key, s.source_id, s.project, c.ordinal
        FROM jsonb_array_elements_text($2->'tied') AS one (key) CROSS JOIN LATERAL (
            SELECT * FROM chunks WHERE tenant_key = $1 AND chunk_key = one.key::bigint LIMIT 1
        ) c CROSS JOIN LATERAL (
            SELECT source_id, project FROM source_versions
            WHERE tenant_key = $1 AND source_key = c.source_key LIMIT 1
        ) s
        ORDER BY s.source_id, s.project, c.ordinal LIMIT ($2->>'places')::integer
    ), chosen AS (
        SELECT key FROM unnest($3) AS certain (key) UNION ALL SELECT chunk_key FROM tied
    )
    SELECT {CHUNK_COLUMNS} FROM chosen CROSS JOIN LATERAL (
        SELECT * FROM chunks WHERE tenant_key = $1 AND chunk_key = chosen.key LIMIT 1
    ) c {CHUNK_JOINS}
    """,  # noqa: S608 - fragments are constants
    CHUNK_ANSWER,
)

_SCORE_INLINE_BYTES = 1 << 16
"""Postings beyond this size are scored in a thread, so that the event loop goes on."""


class PostgresLexicalRetriever:
    """Implements `retrieval.retriever.Retriever`."""

    name = "lexical"

    def __init__(self, database: Database) -> None:
        self._database = database

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        terms = await asyncio.to_thread(_terms, query)
        lists, corpus = await self._postings(query, terms)
        size = sum(len(postings.keys) for postings in lists)
        if size > _SCORE_INLINE_BYTES:
            best = await asyncio.to_thread(_best, lists, corpus, query.limit)
        else:
            best = _best(lists, corpus, query.limit)
        candidates = await chosen_candidates(self._database, query, best)
        return Retrieval(candidates, query.view.visible_version)

    async def _postings(
        self, query: ScopedQuery, terms: Counter[int]
    ) -> tuple[list[bm25.PostingList], bm25.Corpus]:
        view, predicate = query.view, query.scope.predicate
        corpus = bm25.Corpus(view.chunks, view.terms)
        if not terms or not view.label_keys:
            return [], corpus
        ordered = list(terms)
        arguments = {
            **scope_arguments(predicate),
            "terms": [str(term) for term in ordered],
            "version": view.index_version,
            "lastChunkKey": view.last_chunk_key,
            "hidden": [str(key) for key in view.hidden_source_keys],
        }
        if predicate.sources.is_open and not view.hidden_source_keys:
            sql = POSTINGS_SQL
        else:
            sql = SELECTED_POSTINGS_SQL.format(source_filter=source_filter(predicate.sources))
        rows = await self._database.run(
            query.scope.tenant,
            Statement(sql, POSTINGS_ANSWER),
            arguments,
            numbers=view.label_keys,
        )
        lists = []
        for row in rows:
            if row.ordinality == 0:
                corpus = bm25.Corpus(
                    int.from_bytes(row.keys, "big"), int.from_bytes(row.weights, "big")
                )
            else:
                frequency = terms[ordered[row.ordinality - 1]]
                lists.append(bm25.PostingList(row.keys, row.weights, frequency))
        return lists, corpus


async def chosen_candidates(
    database: Database, query: ScopedQuery, best: bm25.Cut
) -> tuple[Candidate, ...]:
    """The chunks of a cut, ranked: its ties are settled by the database, in one round trip."""
    if not best.scores:
        return ()
    arguments: JsonValue = {
        "tied": [str(key) for key in best.tied],
        "places": best.places,
        "version": query.view.index_version,
    }
    rows = await database.run(query.scope.tenant, CHOSEN, arguments, numbers=best.certain)
    found = [(chunk_from_row(row), best.scores[row.chunk_key]) for row in rows]
    found.sort(key=lambda pair: (-pair[1], pair[0].tie_break))
    return tuple(
        Candidate(chunk, score, rank) for rank, (chunk, score) in enumerate(found, start=1)
    )


def _terms(query: ScopedQuery) -> Counter[int]:
    """The query's terms by key, as often as the query has them.

    Without a language of its own, the query is read in each language of the sources in
    scope: a term then counts as often as in the language that has it most.
    """
    languages = query.view.languages if query.language is None else (query.language,)
    terms: Counter[int] = Counter()
    for language in languages:
        terms |= Counter(map(term_key, analyze(query.text, language or None)))
    return terms


def _best(lists: list[bm25.PostingList], corpus: bm25.Corpus, limit: int) -> bm25.Cut:
    return bm25.cut(*bm25.score(lists, corpus), limit)


def chunk_from_row(row: sa.Row[Any]) -> Chunk:
    """A chunk from a row that has CHUNK_ANSWER."""
    label = label_from_row(row)
    return Chunk(
        tenant=row.tenant,
        project=label.project,
        source_id=row.source_id,
        revision=row.revision,
        chunk_id=row.chunk_id,
        ordinal=row.ordinal,
        label=label,
        content_hash=digest_from_bytes(row.content_digest),
        text=row.text,
        provenance=row.provenance,
        body_tokens={"cl100k_base": row.cl100k_tokens, "o200k_base": row.o200k_tokens},
        expires_at=stored_time(row.expires_at),
        head_revision=row.head_revision,
        signature=row.signature,
        media_type=row.media_type,
        language=row.language,
    )
