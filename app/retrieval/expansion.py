"""The graph leg: sources that are linked to what was found. Pure, but for the port.

Links lead one way, from a source to others of its project. Those of the best candidates and
of the pinned sources are followed for a number of hops. A source that is reached so is worth
its seed's score, damped hop by hop, and its first chunks become candidates.

Guarantees: of several paths the one that is worth most counts; scores are whole numbers,
rounded down once; the result does not depend on the order of seeds, links or answers. A chunk
that was found already keeps its score and does not come in again.

Not handled: links against their direction, and the words of the query: a neighbour is worth
what leads to it. Of each hop at most FOLLOWED sources are followed, those worth most.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.retrieval.candidate import Chunk, Retrieval
from app.retrieval.fusion import UNIT, FusedCandidate, ranked
from app.retrieval.retriever import ScopedQuery

GRAPH = "graph"
"""The leg's name, and what stands before the visible version in an item's `indexVersion`."""

CHUNKS_PER_NEIGHBOUR = 2
FOLLOWED = 1000

_WHOLE = 1000

SourceName = tuple[str, str]
ChunkName = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ExpansionRules:
    """How many links are followed, and what each one leaves of a score, in per mille."""

    hops: int
    damping_permille: int


@dataclass(frozen=True, slots=True)
class Seeds:
    """Sources, by project and source id, that links are followed from, with their scores.

    `known` are the chunks that are candidates or pinned already.
    """

    scores: Mapping[SourceName, int]
    known: frozenset[ChunkName]


@dataclass(frozen=True, slots=True)
class Reached:
    """A chunk of a source at the end of a path of `hops` links.

    `score` is that of the best seed from which so many links lead to the source; `key` is
    the index's own name of the chunk.
    """

    key: int
    name: ChunkName
    ordinal: int
    hops: int
    score: int


class SourceGraph(Protocol):
    async def neighbours(
        self, query: ScopedQuery, seeds: Seeds, rules: ExpansionRules
    ) -> Retrieval:
        """At most `query.limit` chunks that links lead to, none of them known, best first.

        The scope holds at every step: a source outside of it, and outside of the query's
        view, is no end and no middle of a path. Raises UnavailableError when it cannot.
        """


@dataclass(frozen=True, slots=True)
class GraphRetriever:
    """Implements `Retriever` for one request: the question is where its seeds lead."""

    graph: SourceGraph
    seeds: Seeds
    rules: ExpansionRules
    name: str = GRAPH

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        if not self.seeds.scores:
            return Retrieval((), query.view.visible_version)
        return await self.graph.neighbours(query, self.seeds, self.rules)


def choose_seeds(
    candidates: Sequence[FusedCandidate], pinned: Iterable[Chunk], count: int
) -> Seeds:
    """The sources of the best `count` candidates and those that are pinned.

    A source counts with its best candidate. What is pinned counts like the best candidate
    of all, because the request asks for it by name; without candidates it counts one unit.
    """
    pinned = tuple(pinned)
    scores: dict[SourceName, int] = {}
    for one in candidates[:count]:
        scores.setdefault((one.chunk.project, one.chunk.source_id), one.score)
    best = candidates[0].score if candidates else UNIT
    scores |= {(chunk.project, chunk.source_id): best for chunk in pinned}
    known = (*(one.chunk for one in candidates), *pinned)
    return Seeds(scores, frozenset(chunk.identity for chunk in known))


def best_reached(
    reached: Iterable[Reached], known: Collection[ChunkName], rules: ExpansionRules, limit: int
) -> dict[int, int]:
    """Damped scores by key of at most `limit` chunks, none of them known, best first.

    Ties in the order of source id, project and ordinal.
    """
    best: dict[ChunkName, tuple[int, Reached]] = {}
    for one in reached:
        score = damped(one.score, one.hops, rules.damping_permille)
        if one.name not in known and (one.name not in best or best[one.name][0] < score):
            best[one.name] = score, one
    chosen = sorted(
        best.values(),
        key=lambda pair: (-pair[0], pair[1].name[1], pair[1].name[0], pair[1].ordinal),
    )
    return {one.key: score for score, one in chosen[:limit]}


def damped(score: int, hops: int, damping_permille: int) -> int:
    """What is left of a score after so many hops, rounded down."""
    kept: int = damping_permille**hops
    whole: int = _WHOLE**hops
    return score * kept // whole


def with_neighbours(
    candidates: Sequence[FusedCandidate], answer: Retrieval
) -> tuple[FusedCandidate, ...]:
    """The ranking with the neighbours in it, each at its own score."""
    known = {one.chunk.identity for one in candidates}
    found = (
        FusedCandidate(one.chunk, one.score, GRAPH, answer.visible_version)
        for one in answer.candidates
        if one.chunk.identity not in known
    )
    return ranked((*candidates, *found))
