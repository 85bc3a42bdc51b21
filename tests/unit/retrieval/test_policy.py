"""Limits of one retriever: calls at once, the breaker, and no query without its scope."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from app.errors import ConfigurationError, RetrieverUnavailableError, UnavailableError
from app.retrieval.candidate import Retrieval
from app.retrieval.fan_out import Leg, fan_out
from app.retrieval.policy import GuardedRetriever, RetrieverPolicy
from app.retrieval.retriever import SCOPE_PARTS, ScopedQuery
from tests.unit.retrieval.chunks import SCOPE, VIEW, chunk, retrieval

QUERY = ScopedQuery(SCOPE, VIEW, "cancel", "en", 50)
ANSWER = retrieval((chunk("a"), 1))
NEVER_S = 3600.0


@dataclass
class ScriptedBackend:
    """Answers, fails or hangs as the test says, and notes how often it was asked at once."""

    name: str = "kb"
    parts: frozenset[str] = frozenset(SCOPE_PARTS)
    failing: bool = False
    silent: bool = False
    asked: int = 0
    under_way: int = 0
    most: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    arrivals: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def arrived(self, calls: int) -> None:
        """Until so many more have come in."""
        for _ in range(calls):
            await self.arrivals.acquire()

    async def filters(self) -> frozenset[str]:
        if self.silent:
            raise UnavailableError("not now")
        return self.parts

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        self.asked += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.arrivals.release()
        try:
            await self.may_answer.wait()
            if self.failing:
                raise RetrieverUnavailableError("down")
            return ANSWER
        finally:
            self.under_way -= 1


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def guarded(
    backend: ScriptedBackend, clock: Callable[[], float] | None = None, **policy: float
) -> GuardedRetriever:
    usual = RetrieverPolicy(concurrency=2, breaker_failures=3, breaker_reset_s=NEVER_S)
    chosen = replace(usual, **policy)  # type: ignore[arg-type]
    return GuardedRetriever(backend, chosen, clock or Clock())


async def fails(retriever: GuardedRetriever, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(RetrieverUnavailableError):
            await retriever.retrieve(QUERY)


async def test_no_more_calls_are_under_way_than_the_policy_says() -> None:
    backend = ScriptedBackend()
    retriever = guarded(backend, concurrency=3)
    backend.may_answer.clear()
    calls = [asyncio.create_task(retriever.retrieve(QUERY)) for _ in range(10)]
    await backend.arrived(3)
    assert backend.under_way == 3
    backend.may_answer.set()
    assert await asyncio.gather(*calls) == [ANSWER] * 10
    assert (backend.most, backend.asked) == (3, 10)


async def test_it_is_left_alone_after_failures_in_a_row() -> None:
    backend = ScriptedBackend(failing=True)
    retriever = guarded(backend)
    await fails(retriever, 5)
    assert backend.asked == 3
    with pytest.raises(RetrieverUnavailableError, match="left alone") as refused:
        await retriever.retrieve(QUERY)
    assert 0 < refused.value.retry_after_s <= NEVER_S


async def test_an_answer_between_failures_starts_the_count_anew() -> None:
    backend = ScriptedBackend(failing=True)
    retriever = guarded(backend)
    for _ in range(3):
        await fails(retriever, 2)
        backend.failing = False
        assert await retriever.retrieve(QUERY) == ANSWER
        backend.failing = True
    assert backend.asked == 9


async def test_one_call_tries_it_again_and_the_others_are_refused_meanwhile() -> None:
    backend, clock = ScriptedBackend(failing=True), Clock()
    retriever = guarded(backend, clock, breaker_failures=1, breaker_reset_s=30)
    await fails(retriever)
    clock.seconds += 30
    backend.may_answer.clear()
    trial = asyncio.create_task(retriever.retrieve(QUERY))
    await backend.arrived(2)
    await fails(retriever, 2)
    assert backend.asked == 2
    backend.failing = False
    backend.may_answer.set()
    assert await trial == ANSWER
    assert await retriever.retrieve(QUERY) == ANSWER


async def test_a_trial_that_fails_leaves_it_alone_again() -> None:
    backend, clock = ScriptedBackend(failing=True), Clock()
    retriever = guarded(backend, clock, breaker_failures=2, breaker_reset_s=30)
    await fails(retriever, 2)
    for trials in (1, 2, 3):
        clock.seconds += 29.9
        await fails(retriever)
        clock.seconds += 0.1
        await fails(retriever, 2)
        assert backend.asked == 2 + trials


async def test_a_deadline_counts_as_a_failure_and_a_caller_who_leaves_does_not() -> None:
    backend = ScriptedBackend()
    backend.may_answer.clear()
    retriever = guarded(backend, asyncio.get_running_loop().time, breaker_failures=2)
    for _ in range(4):
        call = asyncio.create_task(fan_out([_leg(retriever, NEVER_S)], QUERY, Clock()))
        await backend.arrived(1)
        call.cancel()
        await asyncio.wait([call])
    for _ in range(2):
        (late,) = await fan_out([_leg(retriever, 0.02)], QUERY, Clock())
        assert late.status == "timeout"
    assert backend.asked == 6
    await fails(retriever)
    assert (backend.asked, backend.under_way) == (6, 0)


def _leg(retriever: GuardedRetriever, deadline_s: float) -> Leg:
    return Leg(retriever, 5, 1, deadline_s, may_fail=True)


@pytest.mark.parametrize("missing", SCOPE_PARTS)
async def test_a_backend_that_leaves_out_a_part_of_the_scope_is_never_asked(missing: str) -> None:
    backend = ScriptedBackend(parts=frozenset(SCOPE_PARTS) - {missing})
    retriever = guarded(backend)
    with pytest.raises(ConfigurationError, match=f"filter by {missing} while"):
        await retriever.check_scope()
    with pytest.raises(ConfigurationError):
        await retriever.retrieve(QUERY)
    assert backend.asked == 0


async def test_one_that_could_not_tell_is_asked_again_before_its_first_query() -> None:
    backend = ScriptedBackend(silent=True)
    retriever = guarded(backend)
    for call in (retriever.check_scope(), retriever.retrieve(QUERY)):
        with pytest.raises(UnavailableError):
            await call
    assert backend.asked == 0
    backend.silent = False
    assert await retriever.retrieve(QUERY) == ANSWER


async def test_a_replay_asks_nobody_and_waits_for_nobody() -> None:
    backend = ScriptedBackend(silent=True)
    guarded = GuardedRetriever(backend, RetrieverPolicy(), asyncio.get_running_loop().time)
    with pytest.raises(UnavailableError):
        await guarded.retrieve(QUERY)
    assert await guarded.retrieve(replace(QUERY, recorded={"profile": "p"})) == ANSWER
