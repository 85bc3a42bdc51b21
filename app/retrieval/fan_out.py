"""Asking several retrievers at once, each with a deadline, and checking their answers.

Guarantees: a leg that fails, whatever it raises, is recorded as failed, never as an empty
list; whether that fails the request is the strategy's word. Every answer is checked against
the scope once more: what fails the check is dropped and counted; an answer that no later
stage could hold is that leg's failure. No task outlives the call.

Not handled: a label or a token count that is well-formed and untrue. Those are the adapter's
word here; reading back and `verify` compare them with what is stored.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from app.canonical import JsonObject, canonical_bytes, digest_text
from app.errors import RetrieverUnavailableError
from app.retrieval.candidate import Candidate, Chunk, InvalidAnswerError, Retrieval
from app.retrieval.external import EXTERNAL, record
from app.retrieval.retriever import Retriever, ScopedQuery
from app.scope.access import Predicate
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier
from app.tracing import span

MAX_TEXT_CHARS = 64 * 1024 * 1024
"""More than any source may have; nobody counts the tokens of a longer text."""
_MAX_NAME_CHARS = 2048


@dataclass(frozen=True, slots=True)
class Leg:
    """A retriever with what the strategy says about it.

    In a replay, `recorded` is what it was answered from outside the first time, and `failed`
    the status that it had then: such a leg is not asked.
    """

    retriever: Retriever
    limit: int
    weight: int
    deadline_s: float
    may_fail: bool
    recorded: JsonObject | None = None
    failed: str | None = None


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
    if leg.failed is not None:
        return LegOutcome(leg.retriever.name, leg.weight, leg.failed, None)
    started = clock()
    status, retrieval, dropped = "ok", None, 0
    failure: Exception | None = None
    try:
        with span("retriever", retriever=leg.retriever.name):
            async with asyncio.timeout(leg.deadline_s) as bound:
                when = bound.when()
                asked = replace(query, limit=leg.limit, recorded=leg.recorded, deadline=when)
                answer = await leg.retriever.retrieve(asked)
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

    Each chunk stands once, at its best score. Raises InvalidAnswerError when a member is
    not of its kind or a text does not match its digest: then nothing of it can be believed.
    """
    if not _is_name(answer.visible_version):
        raise InvalidAnswerError("the visible version is no name")
    # Both are hashed or stored later on: what has no canonical form raises here.
    canonical_bytes([answer.inputs, answer.facts])
    for candidate in answer.candidates:
        _check_form(candidate)
    admitted = [one for one in answer.candidates if admits(predicate, one.chunk)]
    best: dict[tuple[str, str, str], Candidate] = {}
    for one in sorted(admitted, key=lambda one: (-one.score, one.chunk.tie_break)):
        best.setdefault(one.chunk.identity, one)
    ranked = tuple(
        Candidate(one.chunk, one.score, rank)
        for rank, one in enumerate(islice(best.values(), limit), start=1)
    )
    dropped = len(answer.candidates) - len(admitted)
    found = replace(answer, candidates=ranked)
    if answer.external:
        # What the scope does not admit is not recorded either.
        facts = {**answer.facts, EXTERNAL: True}
        found = replace(found, inputs=record(found), facts=facts)
    return found, dropped


def _check_form(candidate: Candidate) -> None:
    """Adapters make candidates from what others sent, whatever the types here say."""
    chunk, label = candidate.chunk, candidate.chunk.label
    names: tuple[str, ...] = (chunk.project, chunk.source_id, chunk.revision, chunk.chunk_id)
    names += tuple(name for name in (chunk.provenance, chunk.head_revision) if name is not None)
    if not all(map(_is_name, (*names, *(label.allow or ()), *label.deny))):
        raise InvalidAnswerError("a name is empty, too long or no text")
    numbers = (candidate.score, chunk.ordinal, *chunk.body_tokens.values())
    if not all(type(number) is int and abs(number) < 1 << 53 for number in numbers):
        raise InvalidAnswerError("a number is not whole or beyond what JSON holds exactly")
    if not all(count > 0 for count in chunk.body_tokens.values()):
        raise InvalidAnswerError("a number of tokens is not above 0")
    if type(chunk.signature or 0) is not int or type(chunk.external) is not bool:
        raise InvalidAnswerError("a signature is no whole number")
    if not (
        isinstance(label.knowledge_class, KnowledgeClass)
        and isinstance(label.classification, Classification)
        and isinstance(label.trust_tier, TrustTier)
        and (chunk.expires_at is None or chunk.expires_at.tzinfo is not None)
    ):
        raise InvalidAnswerError("a word of a label or a time is not of its kind")
    if len(chunk.text) > MAX_TEXT_CHARS or "\0" in chunk.text:
        raise InvalidAnswerError("a text is too long, or has a NUL, which PostgreSQL cannot hold")
    if digest_text(chunk.text) != chunk.content_hash:
        raise InvalidAnswerError("a text does not match its digest")


def _is_name(value: object) -> bool:
    """Whether a snapshot and PostgreSQL can hold it; UnicodeError for half of a surrogate pair."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= _MAX_NAME_CHARS
        and "\0" not in value
        and bool(value.encode())
    )


def admits(predicate: Predicate, chunk: Chunk) -> bool:
    """The check in the process of what a backend returned."""
    return (
        chunk.tenant == predicate.tenant
        and chunk.project == chunk.label.project
        and predicate.admits(chunk.label, chunk.source_id)
    )
