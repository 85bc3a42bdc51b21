"""Fusion sums weighted reciprocal ranks in whole numbers; equal texts stand once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.retrieval.candidate import Chunk
from app.retrieval.fusion import FusedCandidate, LegAnswer, drop_duplicates, fuse
from tests.unit.retrieval.chunks import chunk, retrieval

A, B, C = chunk("a"), chunk("b"), chunk("c")
UNIT = 10**9


def answer(name: str, *chunks: Chunk, weight: int = 1) -> LegAnswer:
    found = retrieval(*((one, 100 - at) for at, one in enumerate(chunks)), version=f"of-{name}")
    return LegAnswer(name, weight, found)


def test_a_score_sums_the_weighted_reciprocal_ranks_rounded_down_leg_by_leg() -> None:
    fused = fuse([answer("x", A, B), answer("y", B, C, weight=3)], 60)
    assert [(one.chunk.source_id, one.score) for one in fused] == [
        ("b", UNIT // 62 + 3 * UNIT // 61),
        ("c", 3 * UNIT // 62),
        ("a", UNIT // 61),
    ]


def test_one_chunk_hit_by_both_legs_stands_once_with_the_leg_that_ranked_it_best() -> None:
    (first, second) = fuse([answer("x", A, B), answer("y", B)], 60)
    assert (first.chunk, first.found_by, first.visible_version) == (B, "y", "of-y")
    assert (second.chunk, second.found_by, second.visible_version) == (A, "x", "of-x")


def test_of_two_legs_that_rank_a_chunk_alike_the_first_name_has_found_it() -> None:
    for answers in ([answer("y", A), answer("x", A)], [answer("x", A), answer("y", A)]):
        assert [one.found_by for one in fuse(answers, 60)] == ["x"]


def test_equal_scores_stand_in_the_order_of_source_project_and_ordinal() -> None:
    chunks = [
        chunk("b", 0),
        chunk("a", 2),
        chunk("a", 10),
        chunk("a", 1, project="other"),
        chunk("Z", 3),
        chunk("é", 0),
        chunk("😀", 0),
        chunk("ﬀ", 0),
    ]
    fused = fuse([answer(f"leg-{at}", one) for at, one in enumerate(chunks)], 60)
    assert [one.chunk.tie_break for one in fused] == [
        ("Z", "booking", 3),
        ("a", "booking", 2),
        ("a", "booking", 10),
        ("a", "other", 1),
        ("b", "booking", 0),
        ("é", "booking", 0),
        ("ﬀ", "booking", 0),
        ("😀", "booking", 0),
    ]


def test_no_answers_and_empty_answers_fuse_to_nothing() -> None:
    assert fuse([], 60) == ()
    assert fuse([answer("x"), answer("y")], 60) == ()


def test_a_leg_that_found_nothing_changes_nothing() -> None:
    assert fuse([answer("x", A, B), answer("y")], 60) == fuse([answer("x", A, B)], 60)


pool = [chunk(name, at) for name in "abc" for at in range(3)]
legs = st.lists(
    st.tuples(st.permutations(pool), st.integers(0, 9), st.integers(1, 1000)),
    min_size=1,
    max_size=4,
)


@given(legs=legs, k=st.integers(1, 1000), data=st.data())
def test_the_order_of_answers_is_irrelevant(
    legs: list[tuple[list[Chunk], int, int]], k: int, data: st.DataObject
) -> None:
    answers = [
        answer(f"leg-{at}", *chunks[:size], weight=weight)
        for at, (chunks, size, weight) in enumerate(legs)
    ]
    fused = fuse(answers, k)
    assert fused == fuse(data.draw(st.permutations(answers)), k)
    assert len({one.chunk.identity for one in fused}) == len(fused)
    assert {type(one.score) for one in fused} <= {int}
    assert [one.score for one in fused] == sorted((one.score for one in fused), reverse=True)


def candidate(one: Chunk, score: int = 1) -> FusedCandidate:
    return FusedCandidate(one, score, "x", "v1")


def test_the_best_candidate_of_a_text_stays_and_the_others_are_named() -> None:
    first, second, other = chunk("b", text="same"), chunk("a", text="same"), chunk("c")
    unique, duplicates = drop_duplicates(
        [candidate(first), candidate(second), candidate(other)], ()
    )
    assert [one.chunk for one in unique] == [first, other]
    assert [(one.candidate.chunk, one.kept) for one in duplicates] == [(second, first)]


@pytest.mark.parametrize("near", ["same ", "Same", "same\n", "sa\u0301me"])
def test_only_equal_bytes_are_the_same_text(near: str) -> None:
    ranked = [candidate(chunk("a", text="same")), candidate(chunk("b", text=near))]
    assert drop_duplicates(ranked, ()) == (tuple(ranked), ())


def test_a_text_that_is_taken_already_is_kept_there() -> None:
    pinned = chunk("z", text="same")
    unique, (duplicate,) = drop_duplicates([candidate(chunk("a", text="same"))], [pinned])
    assert unique == ()
    assert duplicate.kept == pinned


def test_a_candidate_that_is_itself_taken_is_neither_kept_nor_a_duplicate() -> None:
    assert drop_duplicates([candidate(chunk("a", text="same"))], [chunk("a", text="same")]) == (
        (),
        (),
    )


def test_taken_chunks_of_one_text_do_not_make_each_other_duplicates() -> None:
    """Two pins hold the same paragraph, and the query finds both: both are there already."""
    taken = [chunk("a", 0, text="same"), chunk("a", 1, text="same")]
    ranked = [candidate(chunk("a", 0, text="same")), candidate(chunk("a", 1, text="same"))]
    assert drop_duplicates(ranked, taken) == ((), ())


def test_taken_chunks_that_are_found_again_are_not_packed_twice() -> None:
    taken = [chunk("a", 0, text="same"), chunk("a", 1, text="same")]
    assert drop_duplicates([candidate(one) for one in taken], taken) == ((), ())


def test_another_revision_of_a_taken_chunk_is_a_candidate_of_its_own() -> None:
    ranked = [candidate(chunk("a", text="new"))]
    assert drop_duplicates(ranked, [chunk("a", text="old")]) == (tuple(ranked), ())


few_texts = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.sampled_from("tuv")),
    unique_by=lambda drawn: drawn[:2],
    max_size=9,
).map(lambda drawn: [chunk(name, at, text=text) for name, at, text in drawn])


@given(ranked=few_texts, taken=few_texts)
def test_each_candidate_is_kept_a_duplicate_or_taken(
    ranked: list[Chunk], taken: list[Chunk]
) -> None:
    unique, duplicates = drop_duplicates([candidate(one) for one in ranked], taken)
    present = {(one.identity, one.content_hash) for one in taken}
    kept = [one.chunk for one in unique]
    dropped = [one.candidate.chunk for one in duplicates]
    already = [one for one in ranked if (one.identity, one.content_hash) in present]
    assert sorted((*kept, *dropped, *already), key=lambda one: one.identity) == sorted(
        ranked, key=lambda one: one.identity
    )
    texts = [one.text for one in kept]
    assert len(set(texts)) == len(texts)
    assert not set(texts) & {one.text for one in taken}
    for duplicate in duplicates:
        assert duplicate.kept.text == duplicate.candidate.chunk.text
        assert duplicate.kept in kept or duplicate.kept in taken
