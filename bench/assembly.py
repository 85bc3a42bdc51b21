"""What assembling a snapshot takes, part by part, beside the common way to search.

Every query is asked in every scope in all the ways before the next one comes, so that whatever
else the machine does falls on all of them alike.
"""

import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import regex
import sqlalchemy as sa

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.lexical import PostgresLexicalRetriever
from app.canonical import JsonValue
from app.indexing.analysis import analyze
from app.retrieval import bm25
from app.retrieval.retriever import IndexView, ScopedQuery
from app.scope.access import AccessScope, RequestedScope, narrow
from bench import full_text
from bench.corpus import Document
from bench.loading import GRANT, PROJECTS

SCOPES: tuple[tuple[str, RequestedScope], ...] = (
    ("100 %", RequestedScope()),
    ("20 %", RequestedScope(projects=PROJECTS[:10])),
    ("2 %", RequestedScope(projects=PROJECTS[:1])),
)
TERMS_PER_QUERY = 9
LIMIT = full_text.LIMIT
_SENTENCE = regex.compile(r"\p{Lu}[\p{L}\p{N} ,'-]{30,200}[.?!]")


@dataclass(frozen=True, slots=True)
class Call:
    """One statement as the retriever waited for it."""

    seconds: float
    rows: Sequence[sa.Row[Any]]


class TimedDatabase(Database):
    """A Database that keeps what its statements took."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.calls: list[Call] = []

    async def run(
        self,
        tenant: str,
        statement: Statement,
        arguments: JsonValue = None,
        *,
        numbers: Sequence[int] = (),
        blobs: Sequence[bytes] = (),
        settings: Mapping[str, str] | None = None,
    ) -> Sequence[sa.Row[Any]]:
        begun = time.perf_counter()
        rows = await super().run(
            tenant, statement, arguments, numbers=numbers, blobs=blobs, settings=settings
        )
        self.calls.append(Call(time.perf_counter() - begun, rows))
        return rows


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds per way of one query in one scope."""

    scope: str
    view: IndexView
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """The parts under measurement; `owner` asks the table that has no row security."""

    client: httpx.AsyncClient
    serving: TimedDatabase
    owner: Database | None

    async def measure(self, queries: Sequence[str]) -> list[Measured]:
        """All queries in all scopes; the first one is asked once before, unmeasured."""
        for _, asked in SCOPES:
            await self._one(queries[0], asked, "")
        return [await self._one(query, asked, name) for query in queries for name, asked in SCOPES]

    async def _one(self, query: str, asked: RequestedScope, name: str) -> Measured:
        scope = narrow(GRANT, asked)
        seconds = {"POST /snapshots": await _timed(self._post, query, asked)}
        view, parts = await self._retrieve(query, scope)
        seconds |= parts
        if self.owner is not None:
            for ranking in full_text.RANKINGS:
                seconds[ranking] = await _timed(
                    full_text.search, self.owner, scope.predicate, query, ranking
                )
        return Measured(name, view, seconds)

    async def _post(self, query: str, asked: RequestedScope) -> None:
        scope = {} if asked.projects is None else {"projects": list(asked.projects)}
        request = {
            "runId": str(uuid.uuid4()),
            "attemptId": str(uuid.uuid4()),
            "query": query,
            "language": "en",
            "scope": scope,
        }
        answer = await self.client.post("/snapshots", json=request)
        if answer.status_code != httpx.codes.CREATED:
            raise RuntimeError(f"{answer.status_code}: {answer.text}")

    async def _retrieve(self, query: str, scope: AccessScope) -> tuple[IndexView, dict[str, float]]:
        self.serving.calls.clear()
        view = await PostgresIndexViews(self.serving).open(scope)
        await PostgresLexicalRetriever(self.serving).retrieve(
            ScopedQuery(scope, view, query, "en", LIMIT)
        )
        opening, postings, chosen = self.serving.calls
        lists = [bm25.PostingList(row.keys, row.weights, 1) for row in postings.rows]
        begun = time.perf_counter()
        bm25.cut(*bm25.score(lists, bm25.Corpus(view.chunks, view.terms)), LIMIT)
        scoring_s = time.perf_counter() - begun
        sql_s = opening.seconds + postings.seconds + chosen.seconds
        return view, {
            "open": opening.seconds,
            "postings": postings.seconds,
            "chosen": chosen.seconds,
            "scoring": scoring_s,
            "retrieval": sql_s + scoring_s,
        }


def queries_from(documents: Sequence[Document], count: int) -> list[str]:
    """Sentences of nine distinct terms, one from each of some documents, the same every time."""
    shuffled = list(documents)
    random.Random(count).shuffle(shuffled)
    queries: list[str] = []
    for document in shuffled:
        sentences: list[str] = _SENTENCE.findall(document.chunks[0])
        fitting = [one for one in sentences if len(set(analyze(one, "en"))) == TERMS_PER_QUERY]
        queries += fitting[:1]
        if len(queries) == count:
            break
    return queries


def table(measured: Sequence[Measured]) -> list[str]:
    """Lines of p50 and p95 in milliseconds, a column for each way."""
    ways = list(measured[0].seconds)
    lines = [f"{'scope':<7}{'chunks':>8}{'labels':>8}  {'ms':<4}" + _cells(ways)]
    for name, _ in SCOPES:
        mine = [one for one in measured if one.scope == name]
        view = mine[0].view
        quantiles = {
            q: [float(np.percentile([one.seconds[way] for one in mine], q)) for way in ways]
            for q in (50, 95)
        }
        for q, values in quantiles.items():
            figures = [f"{value * 1000:.1f}" for value in values]
            labels = len(view.label_keys)
            lines.append(f"{name:<7}{view.chunks:>8}{labels:>8}  {f'p{q}':<4}" + _cells(figures))
        p50 = dict(zip(ways, quantiles[50], strict=True))
        lines += [
            f"{'':<25}{ranking} takes {p50[ranking] / p50['retrieval']:.1f} times the retrieval, "
            f"{p50[ranking] / p50['POST /snapshots']:.1f} times the whole POST"
            for ranking in full_text.RANKINGS
            if ranking in p50
        ]
    return lines


def _cells(values: Sequence[str]) -> str:
    return "".join(f"{value:>16}" for value in values)


async def _timed(call: Callable[..., Awaitable[object]], *arguments: object) -> float:
    begun = time.perf_counter()
    await call(*arguments)
    return time.perf_counter() - begun
