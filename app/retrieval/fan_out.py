"""Asking several retrievers at once, each with a deadline, and checking their answers.

Guarantees: a leg that fails is recorded as failed, never as an empty list; whether that
fails the request is the strategy's word. Every answer is checked against the scope once
more: what fails the check is dropped and counted. No task outlives the call.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.errors import RetrieverUnavailableError, ServiceError
from app.retrieval.candidate import Candidate, Retrieval
from app.retrieval.retriever import Retriever, ScopedQuery
from app.scope.access import Predicate


@dataclass(frozen=True, slots=True)
class Leg:
    """A retriever with what the strategy says about it."""

    retriever: Retriever
    limit: int
    weight: int
    deadline_s: float
    may_fail: bool


@dataclass(frozen=True, slots=True)
class LegOutcome:
    """What became of a leg: `status` is ok, timeout or error; `seconds` is outside of hashes."""

    name: str
    weight: int
    status: str
    retrieval: Retrieval | None
    dropped: int = 0
    seconds: float = field(default=0.0, compare=False)


async def fan_out(
    legs: Sequence[Leg], query: ScopedQuery, clock: Callable[[], float]
) -> tuple[LegOutcome, ...]:
    """Outcomes in the order of the legs; `clock` gives seconds for the timings.

    Raises RetrieverUnavailableError when a leg fails that the strategy requires.
    """
    outcomes = await asyncio.gather(*(_ask(leg, query, clock) for leg in legs))
    for leg, outcome in zip(legs, outcomes, strict=True):
        if outcome.retrieval is None and not leg.may_fail:
            raise RetrieverUnavailableError(
                f"The retriever {outcome.name}, which the strategy requires, gave no answer "
                f"({outcome.status}); try again shortly."
            )
    return tuple(outcomes)


async def _ask(leg: Leg, query: ScopedQuery, clock: Callable[[], float]) -> LegOutcome:
    started = clock()
    status, retrieval, dropped = "ok", None, 0
    try:
        async with asyncio.timeout(leg.deadline_s):
            answer = await leg.retriever.retrieve(
                ScopedQuery(query.scope, query.view, query.text, query.language, leg.limit)
            )
        retrieval, dropped = checked(answer, query.scope.predicate, leg.limit)
    except TimeoutError:
        status = "timeout"
    except ServiceError:
        status = "error"
    seconds = clock() - started
    return LegOutcome(leg.retriever.name, leg.weight, status, retrieval, dropped, seconds)


def checked(answer: Retrieval, predicate: Predicate, limit: int) -> tuple[Retrieval, int]:
    """The answer without what the scope does not admit, ranked anew, and how much that was."""
    admitted = [
        candidate
        for candidate in answer.candidates
        if predicate.admits(candidate.chunk.label, candidate.chunk.source_id)
    ]
    ordered = sorted(admitted, key=lambda one: (-one.score, one.chunk.tie_break))[:limit]
    ranked = tuple(
        Candidate(one.chunk, one.score, rank) for rank, one in enumerate(ordered, start=1)
    )
    return Retrieval(ranked, answer.visible_version), len(answer.candidates) - len(admitted)
