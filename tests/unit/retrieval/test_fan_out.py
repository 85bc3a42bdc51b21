"""Legs are asked at once; each has a deadline, fails by itself, and is checked for scope."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.canonical import digest_text
from app.errors import RetrieverUnavailableError, ServiceError, UnavailableError
from app.retrieval.candidate import Candidate, Chunk, Retrieval
from app.retrieval.external import ExternalRetriever
from app.retrieval.fan_out import Leg, LegOutcome, checked, fan_out
from app.retrieval.retriever import ScopedQuery
from app.scope.vocabulary import Classification, TrustTier
from tests.unit.retrieval.chunks import LABEL, SCOPE, VIEW, chunk, retrieval

QUERY = ScopedQuery(SCOPE, VIEW, "cancel", "en", 50)
A, B, C = chunk("a"), chunk("b"), chunk("c")
ANSWER = retrieval((A, 2), (B, 1))
SHORT_S = 0.02


@dataclass
class ScriptedRetriever:
    """Answers what the test says, after a pause or with an error; notes what it was asked."""

    name: str
    answer: Retrieval = ANSWER
    pause_s: float = 0.0
    error: BaseException | None = None
    asked: list[ScopedQuery] = field(default_factory=list)
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: bool = False
    was_finished: bool = False

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        self.asked.append(query)
        self.was_asked.set()
        try:
            await asyncio.sleep(self.pause_s)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.error is not None:
            raise self.error
        self.was_finished = True
        return self.answer


def leg(
    retriever: ScriptedRetriever, *, deadline_s: float = 5.0, may_fail: bool = False, limit: int = 9
) -> Leg:
    return Leg(retriever, limit, 2, deadline_s, may_fail)


def ticks() -> Callable[[], float]:
    numbers = count()
    return lambda: float(next(numbers))


async def ask(*legs: Leg) -> tuple[LegOutcome, ...]:
    before = asyncio.all_tasks()
    outcomes = await fan_out(legs, QUERY, ticks())
    assert asyncio.all_tasks() == before
    return outcomes


async def test_an_answer_is_given_with_its_leg_and_time() -> None:
    (outcome,) = await ask(leg(ScriptedRetriever("x")))
    assert outcome == LegOutcome("x", 2, "ok", ANSWER)
    assert outcome.seconds == 1.0


async def test_each_leg_is_asked_with_the_scope_and_its_own_limit() -> None:
    first, second = ScriptedRetriever("x"), ScriptedRetriever("y")
    await ask(leg(first, limit=3), leg(second, limit=100))
    assert first.asked == [replace(QUERY, limit=3)]
    assert second.asked == [replace(QUERY, limit=100)]


async def test_outcomes_stand_in_the_order_of_the_legs_whatever_answers_first() -> None:
    slow, quick = ScriptedRetriever("slow", pause_s=SHORT_S), ScriptedRetriever("quick")
    outcomes = await ask(leg(slow), leg(quick))
    assert [outcome.name for outcome in outcomes] == ["slow", "quick"]


async def test_legs_run_at_once() -> None:
    both_asked = asyncio.Barrier(2)

    class Waiting(ScriptedRetriever):
        async def retrieve(self, query: ScopedQuery) -> Retrieval:
            await both_asked.wait()
            return await super().retrieve(query)

    outcomes = await ask(leg(Waiting("x")), leg(Waiting("y")))
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]


async def test_no_legs_give_no_outcomes() -> None:
    assert await ask() == ()


async def test_a_leg_beyond_its_deadline_is_a_timeout_and_is_cancelled() -> None:
    hanging, quick = ScriptedRetriever("hanging", pause_s=60), ScriptedRetriever("quick")
    late, well = await ask(leg(hanging, deadline_s=SHORT_S, may_fail=True), leg(quick))
    assert (late.status, late.retrieval) == ("timeout", None)
    assert well.status == "ok"
    assert hanging.was_cancelled


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("down"),
        ServiceError("refused"),
        ValueError("an invalid body"),
        RuntimeError("a fault of the adapter"),
        MemoryError(),
    ],
)
async def test_whatever_a_leg_raises_is_its_error_and_never_an_empty_list(error: Exception) -> None:
    failed, well = await ask(
        leg(ScriptedRetriever("x", error=error), may_fail=True), leg(ScriptedRetriever("y"))
    )
    assert (failed.status, failed.retrieval) == ("error", None)
    assert failed.failure is error
    assert (well.status, well.failure) == ("ok", None)


async def test_a_time_out_within_the_backend_is_a_timeout() -> None:
    (outcome,) = await ask(leg(ScriptedRetriever("x", error=TimeoutError()), may_fail=True))
    assert outcome.status == "timeout"


async def test_an_empty_answer_is_not_a_failure() -> None:
    (outcome,) = await ask(leg(ScriptedRetriever("x", answer=retrieval())))
    assert (outcome.status, outcome.retrieval) == ("ok", retrieval())


@pytest.mark.parametrize(
    ("retriever", "status"),
    [
        (ScriptedRetriever("lexical", pause_s=60), "timeout"),
        (ScriptedRetriever("lexical", error=UnavailableError("down")), "error"),
        (ScriptedRetriever("lexical", error=ValueError("secret")), "error"),
    ],
)
async def test_a_required_leg_that_fails_fails_the_request(
    retriever: ScriptedRetriever, status: str
) -> None:
    other = ScriptedRetriever("other", pause_s=SHORT_S)
    before = asyncio.all_tasks()
    with pytest.raises(RetrieverUnavailableError) as caught:
        await fan_out([leg(retriever, deadline_s=SHORT_S), leg(other)], QUERY, ticks())
    assert asyncio.all_tasks() == before
    assert caught.value.code == "retriever-unavailable"
    assert caught.value.retry_after_s >= 1
    assert "lexical" in caught.value.detail
    assert status in caught.value.detail
    assert "secret" not in caught.value.detail
    assert caught.value.__cause__ is not None


async def test_a_call_that_is_cancelled_leaves_no_task_behind() -> None:
    retrievers = [ScriptedRetriever(f"leg-{at}", pause_s=60) for at in range(3)]
    before = asyncio.all_tasks()
    call = asyncio.create_task(fan_out([leg(one) for one in retrievers], QUERY, ticks()))
    await asyncio.gather(*(one.was_asked.wait() for one in retrievers))
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert call.cancelled()
    assert asyncio.all_tasks() == before
    assert all(one.was_cancelled for one in retrievers)


async def test_a_leg_that_raises_leaves_the_others_to_finish() -> None:
    other = ScriptedRetriever("other", pause_s=SHORT_S)
    await ask(leg(ScriptedRetriever("x", error=KeyError("x")), may_fail=True), leg(other))
    assert other.was_finished


OUT_OF_SCOPE = (
    chunk("a", project="billing"),
    chunk("a", label=replace(LABEL, classification=Classification.RESTRICTED)),
    chunk("a", label=replace(LABEL, allow=("user:bob",))),
    chunk("a", label=replace(LABEL, allow=())),
    chunk("a", label=replace(LABEL, deny=("user:ana",))),
    chunk("drafts/a"),
)


@pytest.mark.parametrize("hidden", OUT_OF_SCOPE, ids=range(len(OUT_OF_SCOPE)))
async def test_what_a_lying_retriever_returns_out_of_scope_is_dropped_and_counted(
    hidden: Chunk,
) -> None:
    answer = retrieval((hidden, 9), (A, 8), (hidden, 7), (B, 6))
    (outcome,) = await ask(leg(ScriptedRetriever("x", answer=answer), limit=2))
    assert outcome.retrieval == retrieval((A, 8), (B, 6))
    assert outcome.dropped == 2


async def test_a_hundred_hidden_candidates_do_not_crowd_out_five_admitted_ones() -> None:
    hidden = [(chunk(f"h{at}", project="billing"), 1000 - at) for at in range(100)]
    admitted = [(chunk(f"a{at}"), 5 - at) for at in range(5)]
    answer = retrieval(*hidden, *admitted)
    (outcome,) = await ask(leg(ScriptedRetriever("x", answer=answer), limit=5))
    assert outcome.retrieval == retrieval(*admitted)
    assert outcome.dropped == 100


def test_an_over_long_answer_is_cut_to_its_best() -> None:
    answer = retrieval((A, 1), (B, 3), (C, 2))
    assert checked(answer, SCOPE.predicate, 2) == (retrieval((B, 3), (C, 2)), 0)


def test_wrong_ranks_and_a_wrong_order_are_set_right() -> None:
    answer = Retrieval(
        (Candidate(C, 5, 1), Candidate(B, 5, 1), Candidate(A, 9, 77)), visible_version="v1"
    )
    assert checked(answer, SCOPE.predicate, 9) == (retrieval((A, 9), (B, 5), (C, 5)), 0)


def test_a_chunk_that_is_returned_twice_stands_once_at_its_best() -> None:
    answer = retrieval((A, 3), (B, 4), (A, 5), (A, 3))
    assert checked(answer, SCOPE.predicate, 2) == (retrieval((A, 5), (B, 4)), 0)


found = st.lists(
    st.tuples(st.sampled_from([A, B, C, *OUT_OF_SCOPE]), st.integers(0, 5)), max_size=12
)


@given(found=found, limit=st.integers(1, 6), data=st.data())
def test_the_order_of_an_answer_has_no_influence(
    found: list[tuple[Chunk, int]], limit: int, data: st.DataObject
) -> None:
    first, dropped = checked(retrieval(*found), SCOPE.predicate, limit)
    stirred = data.draw(st.permutations(found))
    assert checked(retrieval(*stirred), SCOPE.predicate, limit) == (first, dropped)
    assert dropped == sum(one in OUT_OF_SCOPE for one, _ in found)
    assert [one.rank for one in first.candidates] == list(range(1, len(first.candidates) + 1))
    assert len(first.candidates) <= limit
    assert len({one.chunk.identity for one in first.candidates}) == len(first.candidates)


@given(st.permutations(["one", "another", "a third"]))
async def test_texts_that_another_index_gives_under_one_name_come_in_no_order_of_its_own(
    texts: list[str],
) -> None:
    told = retrieval(*((chunk("a", text=text), 5) for text in texts))
    retriever = ExternalRetriever(ScriptedRetriever("kb", told), TrustTier.TRUSTED_KNOWLEDGE)
    found, _ = checked(await retriever.retrieve(QUERY), SCOPE.predicate, 10)
    (kept,) = found.candidates
    assert kept.chunk.text == min(texts, key=digest_text)
