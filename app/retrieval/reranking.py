"""Re-ranking: the best of the fused ranking in the order that a cross-encoder gives them.

The model is outside, behind the port `Reranker`; what it answers is stored with the snapshot,
and a replay takes it from there.

Guarantees: only candidates are shown to it, which the scope admits; each keeps its chunk, and
what was not re-ranked stays behind what was. Relevance is in whole millionths, rounded to the
nearest, ties to even; chunks of equal relevance keep their fused order. The answer of a
re-ranker is whole or a failure, never a ranking of some.

Not handled: the query's language, and texts longer than the model reads. It cuts them itself.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from app.canonical import JsonObject, JsonValue
from app.retrieval.candidate import InvalidAnswerError
from app.retrieval.fan_out import LegOutcome
from app.retrieval.fusion import FusedCandidate

RERANK = "rerank"
"""The stage's name, and what a snapshot that goes on without it names as degraded."""

_MILLION = 1_000_000
_MOST = (1 << 53) - 1
"""Beyond it JSON holds no whole number exactly."""

ChunkName = tuple[str, str, str]


class Reranker(Protocol):
    @property
    def model(self) -> str:
        """What the relevance comes from; it stands in the report."""

    async def relevance(self, query: str, texts: Sequence[str]) -> tuple[int, ...]:
        """In millionths, one for each text, in their order.

        Raises UnavailableError when no right answer comes in time.
        """


@dataclass(frozen=True, slots=True)
class Reranking:
    """What became of the stage: the relevance of each chunk that was re-ranked, best fused first.

    `model` is None where none was asked. `failed` stands beside the legs that gave no answer.
    """

    model: str | None = None
    relevance: Mapping[ChunkName, int] = field(default_factory=dict)
    failed: LegOutcome | None = None

    @property
    def status(self) -> str:
        if self.failed is not None:
            return self.failed.status
        return "ok" if self.model is not None else "not-configured"

    def trace(self) -> list[JsonValue]:
        return [[*name, score] for name, score in self.relevance.items()]

    def recorded(self) -> JsonObject:
        """As it is stored with a snapshot; `recall` reads it."""
        return {"model": self.model, "scores": self.trace()}


def recall(recorded: Mapping[str, Any]) -> Reranking:
    """What an earlier assembly was answered."""
    scores = {(one[0], one[1], one[2]): one[3] for one in recorded["scores"]}
    return Reranking(recorded["model"], scores)


def failure(status: str, error: Exception | None = None, seconds: float = 0.0) -> Reranking:
    return Reranking(failed=LegOutcome(RERANK, 1, status, None, 0, seconds, error))


async def ask(
    reranker: Reranker,
    query: str,
    candidates: Sequence[FusedCandidate],
    deadline_s: float,
    clock: Callable[[], float],
) -> Reranking:
    """The relevance of these candidates. A failure, whatever it is, is in the answer."""
    if not candidates:
        return Reranking(reranker.model)
    started = clock()
    try:
        async with asyncio.timeout(deadline_s):
            scores = await reranker.relevance(query, [one.chunk.text for one in candidates])
        relevance = _by_name(candidates, scores)
    except TimeoutError as error:
        return failure("timeout", error, clock() - started)
    except Exception as error:
        # A fault in the re-ranker is this stage's failure, not the request's.
        return failure("error", error, clock() - started)
    return Reranking(reranker.model, relevance)


def millionths(score: float) -> int:
    """To the nearest, ties to even; ValueError for what is no number or beyond 2^53."""
    if not math.isfinite(score) or abs(score) > _MOST / _MILLION:
        raise ValueError("a score is no number, or too large")
    return round(score * _MILLION)


def reorder(
    ranked: Sequence[FusedCandidate], relevance: Mapping[ChunkName, int]
) -> tuple[FusedCandidate, ...]:
    """The chunks that have a relevance by it, and then the others as they stood.

    Scores go on falling, and stay comparable with those of the others: relevance is spread
    linearly over what the fused scores of the re-ranked span, and each place adds a unit, so
    that no two are equal. Where that span has less than a unit for each of the n re-ranked,
    the best exceeds it by at most n.
    """
    first = [one for one in ranked if one.chunk.identity in relevance]
    if not first:
        return tuple(ranked)
    rest = [one for one in ranked if one.chunk.identity not in relevance]
    best_first = sorted(first, key=lambda one: -relevance[one.chunk.identity])
    scores = [one.score for one in first]
    low, count = min(scores), len(first)
    room = max(max(scores) - low - count, 0)
    greatest = relevance[best_first[0].chunk.identity]
    least = relevance[best_first[-1].chunk.identity]
    span = max(greatest - least, 1)
    moved = (
        replace(
            one,
            score=low + room * (relevance[one.chunk.identity] - least) // span + count - place,
        )
        for place, one in enumerate(best_first)
    )
    return (*moved, *rest)


def _by_name(candidates: Sequence[FusedCandidate], scores: Sequence[int]) -> dict[ChunkName, int]:
    """Adapters make scores from what others sent, whatever the types here say."""
    exact = all(type(score) is int and abs(score) <= _MOST for score in scores)
    if not exact or len(scores) != len(candidates):
        raise InvalidAnswerError("not one whole number for each text")
    names = (one.chunk.identity for one in candidates)
    return dict(zip(names, scores, strict=True))
