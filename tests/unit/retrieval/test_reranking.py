"""Re-ranking: whole numbers by a written rule, ties in the fused order, nothing lost."""

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import RerankingUnavailableError
from app.retrieval.fusion import UNIT, FusedCandidate, ranked
from app.retrieval.reranking import Reranking, ask, failure, millionths, recall, reorder
from tests.unit.retrieval.chunks import chunk


def _fused(*scores: int) -> tuple[FusedCandidate, ...]:
    return tuple(
        FusedCandidate(chunk(f"s{at:03}"), score, "lexical", "v1")
        for at, score in enumerate(sorted(scores, reverse=True))
    )


def _ids(candidates: Sequence[FusedCandidate]) -> list[str]:
    return [one.chunk.source_id for one in candidates]


def _relevance(candidates: Sequence[FusedCandidate], *scores: int) -> dict[Any, int]:
    return dict(zip((one.chunk.identity for one in candidates), scores, strict=False))


@given(st.floats(-9e9, 9e9))
def test_scores_are_rounded_to_the_nearest_millionth(score: float) -> None:
    found = millionths(score)
    assert abs(Fraction(found) - Fraction(score) * 10**6) <= Fraction(1, 2) + abs(
        Fraction(math.ulp(score * 1e6))
    )


def test_halves_go_to_the_even_millionth() -> None:
    assert [millionths(score) for score in (0.5e-6, 1.5e-6, 2.5e-6, -0.5e-6)] == [0, 2, 2, 0]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1e10])
def test_what_is_no_number_or_too_large_is_refused(score: float) -> None:
    with pytest.raises(ValueError, match="no number, or too large"):
        millionths(score)


def test_the_best_are_reordered_and_the_rest_stays_behind() -> None:
    before = _fused(900, 800, 700, 600, 500)
    after = reorder(before, _relevance(before, 1, 5, 3))
    assert _ids(after) == ["s001", "s002", "s000", "s003", "s004"]
    assert after[3:] == before[3:]
    assert reorder(before, {}) == before


def test_equal_relevance_keeps_the_fused_order() -> None:
    before = _fused(900, 800, 800, 100)
    for relevance in ((7, 7, 7, 7), (0, 0, 0, 0), (-3, -3, -3, -3)):
        assert _ids(reorder(before, _relevance(before, *relevance))) == _ids(before)


def test_relevance_is_spread_over_the_span_of_the_fused_scores() -> None:
    before = _fused(UNIT, UNIT // 2, 0)
    after = reorder(before, _relevance(before, 0, 250_000, 1_000_000))
    assert [one.score for one in after] == [UNIT, (UNIT - 3) // 4 + 2, 1]


@given(
    st.lists(st.integers(0, UNIT), min_size=1, max_size=40),
    st.lists(st.integers(-(2**40), 2**40), max_size=40),
)
def test_scores_fall_strictly_and_stay_where_they_were(
    scores: list[int], relevance: list[int]
) -> None:
    before = _fused(*scores)
    given_ = _relevance(before, *relevance)
    after = reorder(before, given_)
    assert sorted(_ids(after)) == sorted(_ids(before))
    moved = after[: len(given_)]
    expected = sorted(before[: len(given_)], key=lambda one: -given_[one.chunk.identity])
    assert _ids(moved) == _ids(expected)
    assert all(a.score > b.score for a, b in itertools.pairwise(moved))
    assert ranked(after) == after, "a later stage that sorts by score keeps the order"
    if moved:
        best = before[0].score
        least = before[len(moved) - 1].score
        assert moved[0].score <= max(best, least + len(moved))
        assert all(one.score < moved[-1].score for one in after[len(moved) :])


@dataclass
class _Answering:
    """Gives the one answer, or raises it."""

    answer: Any
    model: str = "m"

    async def relevance(self, query: str, texts: Sequence[str]) -> tuple[int, ...]:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        answer: tuple[int, ...] = self.answer
        return answer


async def _ask(answer: Any, count: int = 2, deadline_s: float = 60) -> Reranking:
    return await ask(_Answering(answer), "q", _fused(*range(count)), deadline_s, lambda: 0.0)


async def test_an_answer_is_by_chunk_and_comes_back_from_the_record() -> None:
    found = await _ask((5, -1))
    assert (found.status, found.model) == ("ok", "m")
    assert list(found.relevance.values()) == [5, -1]
    assert recall(found.recorded()) == found
    assert await _ask(RerankingUnavailableError("never asked"), count=0) == Reranking("m")


@pytest.mark.parametrize(
    "answer",
    [
        (1,),
        (1, 2, 3),
        (1, 2.0),
        (1, True),
        (1, "2"),
        (1, 2**53),
        7,
        RerankingUnavailableError("down"),
        ZeroDivisionError(),
    ],
)
async def test_whatever_else_it_does_is_the_stages_failure(answer: Any) -> None:
    found = await _ask(answer)
    assert (found.status, found.model, found.relevance) == ("error", None, {})
    assert found == failure("error")


async def test_one_that_hangs_is_given_up() -> None:
    found = await _ask(None, deadline_s=0.01)
    assert found.status == "timeout"
