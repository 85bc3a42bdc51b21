"""Asking several retrievers at once, each with a deadline, and checking their answers.

Guarantees: a leg that fails, whatever it raises, is recorded as failed, never as an empty
list; whether that fails the request is the strategy's word. Every answer is checked against
the scope once more: what fails the check is dropped and counted. No task outlives the call.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from app.canonical import digest_text
from app.errors import RetrieverUnavailableError, ServiceError
from app.retrieval.candidate import Candidate, Chunk, Retrieval
from app.retrieval.retriever import Retriever, ScopedQuery
from app.scope.access import Predicate


class InvalidAnswerError(ServiceError):
    """A retriever returned what cannot be right."""

    code = "invalid-answer"


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
    """What became of a leg: `status` is ok, timeout or error; `seconds` is outside of hashes.

    `failure` is what a failed leg raised, for the log.
    """

    name: str
    weight: int
    status: str
    retrieval: Retrieval | None
    dropped: int = 0
    seconds: float = field(default=0.0, compare=False)
    failure: Exception | None = field(default=None, compare=False)


async def fan_out(
    legs: Sequence[Leg], query: ScopedQuery, clock: Callable[[], float]
) -> tuple[LegOutcome, ...]:
    """Outcomes in the order of the legs; `clock` gives seconds for the timings.

    Raises RetrieverUnavailableError when a leg fails that the strategy requires.
    """
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_ask(leg, query, clock)) for leg in legs]
    outcomes = tuple(task.result() for task in asked)
    for leg, outcome in zip(legs, outcomes, strict=True):
        if outcome.retrieval is None and not leg.may_fail:
            raise RetrieverUnavailableError(
                f"The retriever {outcome.name}, which the strategy requires, gave no answer "
                f"({outcome.status}); try again shortly."
            ) from outcome.failure
    return outcomes


async def _ask(leg: Leg, query: ScopedQuery, clock: Callable[[], float]) -> LegOutcome:
    started = clock()
    status, retrieval, dropped = "ok", None, 0
    failure: Exception | None = None
    try:
        async with asyncio.timeout(leg.deadline_s):
            answer = await leg.retriever.retrieve(
                ScopedQuery(query.scope, query.view, query.text, query.language, leg.limit)
            )
        retrieval, dropped = checked(answer, query.scope.predicate, leg.limit)
    except TimeoutError as error:
        status, failure = "timeout", error
    except Exception as error:
        # A fault in one retriever is that leg's failure, not the request's.
        status, failure = "error", error
    seconds = clock() - started
    return LegOutcome(leg.retriever.name, leg.weight, status, retrieval, dropped, seconds, failure)


def checked(answer: Retrieval, predicate: Predicate, limit: int) -> tuple[Retrieval, int]:
    """The answer without what the scope does not admit, ranked anew, and how much that was.

    Each chunk stands once, at its best score. Raises InvalidAnswerError when a score is no
    whole number or a text does not match its digest: then nothing of it can be believed.
    """
    for candidate in answer.candidates:
        if type(candidate.score) is not int:
            raise InvalidAnswerError("a score is no whole number")
        if digest_text(candidate.chunk.text) != candidate.chunk.content_hash:
            raise InvalidAnswerError("a text does not match its digest")
    admitted = [one for one in answer.candidates if admits(predicate, one.chunk)]
    best: dict[tuple[str, str, str], Candidate] = {}
    for one in sorted(admitted, key=lambda one: (-one.score, one.chunk.tie_break)):
        best.setdefault(one.chunk.identity, one)
    ranked = tuple(
        Candidate(one.chunk, one.score, rank)
        for rank, one in enumerate(islice(best.values(), limit), start=1)
    )
    return Retrieval(ranked, answer.visible_version), len(answer.candidates) - len(admitted)


def admits(predicate: Predicate, chunk: Chunk) -> bool:
    """The check in the process of what a backend returned."""
    return (
        chunk.tenant == predicate.tenant
        and chunk.project == chunk.label.project
        and predicate.admits(chunk.label, chunk.source_id)
    )
