"""Values fall with rank and score, in whole numbers, and never outweigh what was named."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.packing.value import MOST_PRIORITY, NAMED, UNIT, ValueRule, likeness, values_of

RULES: tuple[ValueRule, ...] = ("ranks", "scores")
MOST_CANDIDATES = 10_000


def test_values_are_what_the_rules_say() -> None:
    assert values_of([900, 450, 90], "scores") == [UNIT, 1_767_767, 57_735]
    assert values_of([900, 450, 90], "ranks") == [UNIT, 3_535_534, 1_924_501]


@pytest.mark.parametrize("rule", RULES)
@given(scores=st.lists(st.integers(0, 10**9), max_size=40))
def test_no_candidate_is_worth_more_than_one_ranked_before_it(
    rule: ValueRule, scores: list[int]
) -> None:
    values = values_of(scores, rule)
    assert len(values) == len(scores)
    assert all(better >= worse >= 0 for better, worse in pairwise(values))
    assert values[:1] == ([UNIT] if scores and (scores[0] or rule == "ranks") else values[:1])


@pytest.mark.parametrize("rule", RULES)
def test_all_candidates_together_are_worth_less_than_one_named_text(rule: ValueRule) -> None:
    assert MOST_PRIORITY * sum(values_of([1] * MOST_CANDIDATES, rule)) < NAMED


def test_what_stands_behind_others_as_stale_is_worth_no_more_than_they_are() -> None:
    fresh, stale = values_of([10, 1000], "scores")
    assert fresh > stale


def test_likeness_is_to_the_likest_text_before() -> None:
    half = (1 << 32) - 1
    assert likeness([0, 0, 1, half, None, -1]) == [0, 1000, 968, 31, 0, 0]
    assert likeness([None, 7]) == [0, 0]
    assert likeness([]) == []
