"""Fusion by scores: a convex combination of scores in standard deviations, leg by leg."""

from decimal import Decimal, localcontext
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.retrieval.candidate import Candidate, Chunk, Retrieval
from app.retrieval.fusion import FusionMethod, LegAnswer, fuse
from tests.unit.retrieval.chunks import chunk, retrieval

A, B, C = chunk("a"), chunk("b"), chunk("c")
POOL = [chunk(name, at) for name in "abc" for at in range(3)]
UNIT = 10**9
METHODS: tuple[FusionMethod, ...] = ("reciprocal-rank", "normalised-scores")


def answer(name: str, *found: tuple[Chunk, int], weight: int = 1) -> LegAnswer:
    """Ranks follow from the scores, as `checked` has seen to."""
    ordered = sorted(found, key=lambda pair: (-pair[1], pair[0].tie_break))
    return LegAnswer(name, weight, retrieval(*ordered, version=f"of-{name}"))


def by_score(*answers: LegAnswer) -> list[tuple[str, int]]:
    return [(one.chunk.source_id, one.score) for one in fuse(answers, 60, "normalised-scores")]


def test_scores_count_from_the_least_in_standard_deviations() -> None:
    # Each is 20 from the mean of 40.
    found = answer("x", (A, 60), (B, 60), (C, 20), (chunk("d"), 20))
    assert by_score(found) == [("a", 2 * UNIT), ("b", 2 * UNIT), ("c", 0), ("d", 0)]


def test_weights_are_relative_to_their_sum_and_what_a_leg_did_not_find_has_none_of_it() -> None:
    lexical = answer("lexical", (A, 900), (B, 900), (C, 300), weight=300)
    vector = answer("vector", (B, 71), (chunk("d"), 71), (A, 51), weight=700)
    # Of the four candidates two are above the least in each: two deviations of a half.
    assert by_score(lexical, vector) == [
        ("b", 2 * UNIT),
        ("d", 2 * 700 * UNIT // 1000),
        ("a", 2 * 300 * UNIT // 1000),
        ("c", 0),
    ]


def test_the_only_text_with_a_word_comes_before_many_that_are_a_little_nearer() -> None:
    others = [(chunk(f"near-{at}"), 100 - at) for at in range(99)]
    vector = answer("vector", *others, (A, 1), weight=3)
    found = by_score(answer("lexical", (A, 5), weight=2), vector)
    assert found[0][0] == "a"


@pytest.mark.parametrize("score", [0, 5, -5])
def test_where_all_scores_are_equal_each_chunk_has_the_whole(score: int) -> None:
    assert by_score(answer("x", (A, score), (B, score))) == [("a", UNIT), ("b", UNIT)]
    assert by_score(answer("x", (A, score))) == [("a", UNIT)]


def test_scores_below_zero_are_scores_like_others() -> None:
    below = answer("x", (A, -10), (B, -20), (C, -30))
    assert by_score(below) == by_score(answer("x", (A, 30), (B, 20), (C, 10)))


def test_no_answers_and_empty_answers_fuse_to_nothing() -> None:
    assert by_score() == []
    assert by_score(answer("x"), answer("y")) == []


def test_the_leg_that_ranked_a_chunk_best_has_found_it() -> None:
    fused = fuse([answer("x", (A, 9), (B, 8)), answer("y", (B, 1))], 60, method="normalised-scores")
    assert [(one.chunk, one.found_by, one.visible_version) for one in fused] == [
        (A, "x", "of-x"),
        (B, "y", "of-y"),
    ]


legs = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, len(POOL) - 1), st.integers(-(2**53), 2**53), max_size=9),
        st.integers(1, 1000),
    ),
    min_size=1,
    max_size=4,
)


def answers_of(drawn: list[tuple[dict[int, int], int]]) -> list[LegAnswer]:
    return [
        answer(f"leg-{at}", *((POOL[one], score) for one, score in scores.items()), weight=weight)
        for at, (scores, weight) in enumerate(drawn)
    ]


def in_deviations(scores: dict[int, int], one: int, candidates: int) -> Decimal:
    if one not in scores:
        return Decimal(0)
    least = min(scores.values())
    above = {name: Decimal(score - least) for name, score in scores.items()}
    if not any(above.values()):
        above = dict.fromkeys(scores, Decimal(1))
    mean = sum(above.values(), Decimal(0)) / candidates
    squares = sum(((value - mean) ** 2 for value in above.values()), Decimal(0))
    variance = (squares + (candidates - len(above)) * mean**2) / candidates
    return above[one] / variance.sqrt() if variance else Decimal(1)


@given(drawn=legs, data=st.data())
def test_a_score_is_the_convex_combination_of_what_the_legs_say(
    drawn: list[tuple[dict[int, int], int]], data: st.DataObject
) -> None:
    answers = answers_of(drawn)
    fused = fuse(answers, 60, "normalised-scores")
    assert fused == fuse(data.draw(st.permutations(answers)), 60, "normalised-scores")
    total = sum(weight for _, weight in drawn)
    count = len({one for scores, _ in drawn for one in scores})
    with localcontext(prec=100):
        expected = {
            POOL[one].identity: sum(
                (
                    UNIT * Decimal(weight) / total * in_deviations(scores, one, count)
                    for scores, weight in drawn
                ),
                Decimal(0),
            )
            for scores, _ in drawn
            for one in scores
        }
    assert {one.chunk.identity for one in fused} == expected.keys()
    for one in fused:
        # Each leg's part is rounded down, and its deviation has 20 bits after the point.
        difference = one.score - expected[one.chunk.identity]
        assert -len(answers) <= difference <= 10 + one.score // 2**19
    order = [(-one.score, one.chunk.tie_break) for one in fused]
    assert order == sorted(order)
    assert {type(one.score) for one in fused} <= {int}


@given(drawn=legs, method=st.sampled_from(METHODS))
def test_a_chunk_that_no_leg_ranks_below_another_does_not_come_after_it(
    drawn: list[tuple[dict[int, int], int]], method: FusionMethod
) -> None:
    answers = answers_of(drawn)
    fused = fuse(answers, 60, method)
    for better, worse in product(fused, fused):
        names = better.chunk.identity, worse.chunk.identity
        if all(_ranks(one.retrieval, *names) for one in answers):
            assert better.score >= worse.score


def _ranks(found: Retrieval, better: tuple[str, str, str], worse: tuple[str, str, str]) -> bool:
    by_name: dict[tuple[str, str, str], Candidate] = {
        one.chunk.identity: one for one in found.candidates
    }
    if worse not in by_name:
        return True
    return better in by_name and by_name[better].rank <= by_name[worse].rank


def test_the_usual_method_goes_by_rank() -> None:
    answers = [answer("x", (A, 9), (B, 8))]
    assert fuse(answers, 60) == fuse(answers, 60, "reciprocal-rank")
    assert [one.score for one in fuse(answers, 60)] == [UNIT // 61, UNIT // 62]
    assert fuse(answers, 60) != fuse(answers, 60, "normalised-scores")
