"""How the legs and the whole grow with the index and with what is in scope.

Loads real text of this machine, cut into short chunks so that there are many, in steps into one
tenant, with vectors made from words (`bench.word_vectors`), and measures after each step: the
legs as the retrievers run them, the whole POST, and the common way over the same rows: full text
with `ts_rank_cd` in a table of its own without row-level security, and HNSW with pgvector's
iterative scan, both with the scope in WHERE.
"""

import argparse
import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import httpx
import numpy as np
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from app.adapters.postgres.database import Database, Statement, connection_url
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.lexical import PostgresLexicalRetriever
from app.adapters.postgres.scope_filter import label_filter, scope_arguments
from app.adapters.postgres.source_index import PostgresSourceIndex
from app.adapters.postgres.vector import PostgresVectorRetriever
from app.adapters.postgres.vector_approximate import (
    PostgresApproximateVectorRetriever,
    build_approximate_index,
)
from app.adapters.postgres.vector_index import PostgresVectorIndex
from app.adapters.postgres.vector_states import profile_key
from app.adapters.tokens import TiktokenCounter
from app.bootstrap import source_preparer
from app.indexing.embedding import as_text
from app.retrieval.retriever import ScopedQuery
from app.scope.access import Predicate, RequestedScope, narrow
from bench import full_text
from bench.assembly import SCOPES, queries_from
from bench.corpus import DEFAULT_FOLDERS, Document, read_documents
from bench.loading import EVERYONE, GRANT, drafts_of, load, tidy
from bench.quality import POSTGRES
from bench.scratch import TENANT, Scratch, scratch_service
from bench.vector_server import serve_vectors
from bench.word_vectors import DIMENSIONS, WordVectors

LIMIT = full_text.LIMIT
_TOKENS_PER_CHUNK = 40
_VECTORS_PER_CHANGE = 2000
_QUERIED_DOCUMENTS = 2000
_POSTGRES = {**POSTGRES, "shared_buffers": "2GB", "maintenance_work_mem": "3GB"}
Way = Callable[[str, RequestedScope], Awaitable[int]]
"""Answers a query in a scope, and says how many were found."""

_SETTINGS = {"hnsw.ef_search": "100", "hnsw.iterative_scan": "relaxed_order"}
"""A hundred are wanted: the usual list of 40 would never give them."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="where to look for text")
    parser.add_argument("--chunks", nargs="+", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=20)
    options = parser.parse_args()
    words, tokens = WordVectors(), TiktokenCounter()
    documents = read_documents(
        options.folders or DEFAULT_FOLDERS,
        max(options.chunks),
        max_tokens=_TOKENS_PER_CHUNK,
        count_tokens=partial(tokens.count, encoding="o200k_base"),
    )
    with serve_vectors(lambda text: words.numbers(text).tolist()) as url:
        profile = f'[{{"url": "{url}", "model": "words", "dimensions": {DIMENSIONS}}}]'
        with scratch_service(_POSTGRES, {"CTXSNAP_EMBEDDINGS": profile}) as scratch:
            bench = Bench(scratch, words, tokens)
            asyncio.run(bench.run(documents, sorted(options.chunks), options.queries))


class Bench:
    def __init__(self, scratch: Scratch, words: WordVectors, tokens: TiktokenCounter) -> None:
        self._scratch, self._words, self._tokens = scratch, words, tokens
        self._embedded = 0

    async def run(self, documents: Iterator[Document], sizes: Sequence[int], queries: int) -> None:
        database = self._scratch.database
        self._engine = create_async_engine(connection_url(database.owner_url))
        self._serving = Database(database.serving_url, statement_timeout_s=600)
        self._owner = Database(database.owner_url, statement_timeout_s=600)
        self._client = httpx.AsyncClient(
            base_url=self._scratch.url,
            headers=self._scratch.headers(EVERYONE),
            timeout=600,
            trust_env=False,
        )
        held: list[Document] = []
        loaded = 0
        for size in sizes:
            fresh = _until(documents, size - loaded)
            loaded += sum(len(one.chunks) for one in fresh)
            held += _some_chunks(fresh, random.Random(size))
            await self._load(fresh)
            await self._common_way()
            print(f"\n== {loaded:,} chunks, p50 of {queries} queries, ms", flush=True)
            await self._measure(queries_from(held, queries))
        await self._client.aclose()
        await self._serving.close()
        await self._owner.close()
        await self._engine.dispose()

    async def _load(self, documents: Sequence[Document]) -> None:
        # To build it once is faster than to add to it.
        async with self._engine.begin() as connection:
            name = f"vectors_hnsw_{self._words.profile.id}"
            await connection.execute(sa.text(f"DROP INDEX IF EXISTS {name}"))
        drafts = drafts_of(documents, label_per_source=False)
        preparer = source_preparer(self._tokens, _TOKENS_PER_CHUNK)
        done = await load(PostgresSourceIndex(self._serving), preparer, drafts)
        print(
            f"loaded {done.chunks:,} chunks of {done.sources:,} sources "
            f"in {done.prepare_s + done.store_s:.0f} s",
            flush=True,
        )
        # Before: reading the texts with statistics of an empty table takes minutes a batch.
        print(f"VACUUM ANALYZE in {await tidy(self._engine):.0f} s", flush=True)
        begun = time.perf_counter()
        index = PostgresVectorIndex(self._serving)
        while True:
            page = await index.unembedded(
                TENANT, self._words.profile, self._embedded, _VECTORS_PER_CHANGE
            )
            if page.last_key is None:
                break
            vectors = await self._words.embed_passages([chunk.text for chunk in page.chunks])
            keys = [chunk.key for chunk in page.chunks]
            added = dict(zip(keys, vectors, strict=True))
            await index.add_vectors(TENANT, self._words.profile, added)
            self._embedded = page.last_key
        print(f"vectors made and stored in {time.perf_counter() - begun:.0f} s", flush=True)
        print(f"VACUUM ANALYZE in {await tidy(self._engine):.0f} s", flush=True)

    async def _common_way(self) -> None:
        begun = time.perf_counter()
        async with self._engine.begin() as connection:
            await connection.execute(sa.text("DROP TABLE IF EXISTS full_text"))
        await full_text.fill(self._engine)
        filled = time.perf_counter()
        async with self._engine.begin() as connection:
            await connection.execute(sa.text("CREATE INDEX ON full_text (chunk_key)"))
        await build_approximate_index(self._scratch.database.owner_url, self._words.profile)
        print(
            f"the table for full text in {filled - begun:.0f} s, "
            f"the HNSW index in {time.perf_counter() - filled:.0f} s, "
            f"VACUUM ANALYZE in {await tidy(self._engine):.0f} s",
            flush=True,
        )

    async def _measure(self, queries: Sequence[str]) -> None:
        await self._quiet(queries[0])
        ways: dict[str, Way] = {
            "lexical": self._lexical,
            "vector": self._vector,
            "approximate": self._approximate,
            "POST lexical-only": partial(self._post, "lexical-only"),
            "POST default": partial(self._post, "default"),
            "ts_rank_cd": self._ts_rank_cd,
            "HNSW": self._hnsw,
        }
        print(f"{'scope':<8}" + "".join(f"{name:>20}" for name in ways))
        seconds = {(scope, way): list[float]() for scope, _ in SCOPES for way in ways}
        found = {scope: list[int]() for scope, _ in SCOPES}
        for query in (queries[0], *queries):
            for scope, asked in SCOPES:
                for name, way in ways.items():
                    taken, given = await _timed(way, query, asked)
                    seconds[scope, name].append(taken)
                    if name == "HNSW":
                        found[scope].append(given)
        for scope, _ in SCOPES:
            # The first round warmed up.
            cells = (np.median(seconds[scope, name][1:]) * 1000 for name in ways)
            line = f"{scope:<8}" + "".join(f"{cell:>20.1f}" for cell in cells)
            print(f"{line}   (HNSW found {np.mean(found[scope]):.0f} of {LIMIT})", flush=True)

    async def _quiet(self, query: str) -> None:
        """Until the service has seen that every chunk has its vector."""
        await self._post("lexical-only", query, RequestedScope())
        before = -1
        while (now := await self._chunk_scans()) != before:
            before = now
            await asyncio.sleep(3)

    async def _chunk_scans(self) -> int:
        async with self._engine.connect() as connection:
            scans = sa.text("SELECT idx_scan FROM pg_stat_user_tables WHERE relname = 'chunks'")
            return int((await connection.execute(scans)).scalar_one())

    async def _lexical(self, query: str, asked: RequestedScope) -> int:
        retriever = PostgresLexicalRetriever(self._serving)
        return len((await retriever.retrieve(await self._question(query, asked))).candidates)

    async def _vector(self, query: str, asked: RequestedScope) -> int:
        retriever = PostgresVectorRetriever(self._serving, (self._words,))
        return len((await retriever.retrieve(await self._question(query, asked))).candidates)

    async def _approximate(self, query: str, asked: RequestedScope) -> int:
        retriever = PostgresApproximateVectorRetriever(self._serving, (self._words,))
        return len((await retriever.retrieve(await self._question(query, asked))).candidates)

    async def _question(self, query: str, asked: RequestedScope) -> ScopedQuery:
        scope = narrow(GRANT, asked)
        view = await PostgresIndexViews(self._serving).open(scope)
        return ScopedQuery(scope, view, query, "en", LIMIT)

    async def _post(self, strategy: str, query: str, asked: RequestedScope) -> int:
        request = {
            "runId": str(uuid.uuid4()),
            "attemptId": str(uuid.uuid4()),
            "strategy": strategy,
            "query": query,
            "language": "en",
            "scope": {} if asked.projects is None else {"projects": list(asked.projects)},
        }
        answer = await self._client.post("/snapshots", json=request)
        if answer.status_code != httpx.codes.CREATED or "snapshot-degraded" in answer.headers:
            raise RuntimeError(f"{answer.status_code} {answer.headers}: {answer.text[:200]}")
        return len(answer.json()["items"])

    async def _ts_rank_cd(self, query: str, asked: RequestedScope) -> int:
        predicate = narrow(GRANT, asked).predicate
        return len(await full_text.search(self._owner, predicate, query, "ts_rank_cd"))

    async def _hnsw(self, query: str, asked: RequestedScope) -> int:
        predicate = narrow(GRANT, asked).predicate
        vector = as_text(await self._words.embed_query(query))
        profile = profile_key(self._words.profile.id)
        statement = Statement(_nearest(predicate, profile), "chunk_key bigint, text text")
        arguments = {**scope_arguments(predicate), "vector": vector}
        return len(await self._owner.run(TENANT, statement, arguments, settings=_SETTINGS))


def _nearest(predicate: Predicate, profile: int) -> str:
    return f"""
        SELECT v.chunk_key, f.text FROM (
            SELECT chunk_key FROM vectors
            WHERE tenant_key = $1 AND profile = {profile} AND label_key = ANY(ARRAY(
                SELECT label_key FROM labels l WHERE {label_filter(predicate)}
            ))
            ORDER BY (embedding::halfvec({DIMENSIONS})) <#>
                ($2->>'vector')::halfvec({DIMENSIONS}) LIMIT {LIMIT}
        ) v JOIN full_text f USING (chunk_key)
    """


def _some_chunks(documents: Sequence[Document], drawn: random.Random) -> list[Document]:
    """Documents of one chunk each, to take queries from."""
    return [
        replace(one, chunks=(text,))
        for one in drawn.sample(documents, min(len(documents), _QUERIED_DOCUMENTS))
        for text in drawn.sample(one.chunks, min(len(one.chunks), 5))
    ]


def _until(documents: Iterator[Document], chunks: int) -> list[Document]:
    """The next documents, until there are so many chunks."""
    held: list[Document] = []
    while chunks > 0 and (some := list(islice(documents, 1))):
        held += some
        chunks -= len(some[0].chunks)
    return held


async def _timed(call: Way, query: str, asked: RequestedScope) -> tuple[float, int]:
    begun = time.perf_counter()
    found = await call(query, asked)
    return time.perf_counter() - begun, found


if __name__ == "__main__":
    main()
