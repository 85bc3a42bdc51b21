"""BM25 scores agree with the formula, are whole numbers, and are cut where they tie."""

import math
import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.retrieval import bm25
from app.retrieval.bm25 import Corpus, PostingList, cut, score

Postings = dict[int, tuple[int, int]]
"""The term's frequency and the chunk's length by chunk key."""

UNIT = 2**20
FAR = 10**12


def posting_list(postings: Postings, query_frequency: int = 1) -> PostingList:
    keys = list(postings)
    weights = [frequency << 32 | length for frequency, length in postings.values()]
    return PostingList(
        struct.pack(f">{len(keys)}q", *keys),
        struct.pack(f">{len(keys)}q", *weights),
        query_frequency,
    )


def scores_of(lists: list[PostingList], corpus: Corpus) -> dict[int, int]:
    keys, scores = score(lists, corpus)
    assert keys.dtype == scores.dtype == np.int64
    assert keys.tolist() == sorted(set(keys.tolist()))
    return dict(zip(keys.tolist(), scores.tolist(), strict=True))


def reference(terms: list[tuple[Postings, int]], chunks: int, total_terms: int) -> dict[int, float]:
    """The formula, in floating point, term by term."""
    mean = total_terms / chunks
    scores: Counter[int] = Counter()
    for postings, query_frequency in terms:
        found = len(postings)
        idf = math.log(1 + (chunks - found + 0.5) / (found + 0.5))
        for key, (frequency, length) in postings.items():
            saturation = frequency + 1.2 * (1 - 0.75 + 0.75 * length / mean)
            scores[key] += query_frequency * idf * frequency * 2.2 / saturation  # type: ignore[assignment]
    return dict(scores)


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[tuple[Postings, int]], int, int, int]:
    """Query terms over chunks with lengths; the last number spreads the keys apart."""
    lengths = draw(st.lists(st.integers(1, 400), min_size=1, max_size=30))
    terms = []
    for _ in range(draw(st.integers(1, 4))):
        holding = draw(st.lists(st.integers(0, len(lengths) - 1), unique=True, max_size=30))
        postings = {
            key: (draw(st.integers(1, min(lengths[key], 50))), lengths[key]) for key in holding
        }
        terms.append((postings, draw(st.integers(1, 3))))
    others = draw(st.integers(0, 1000))
    total = sum(lengths) + others * draw(st.integers(1, 100))
    return terms, len(lengths) + others, total, draw(st.sampled_from((1, 7, FAR)))


@examples(max_examples=150)
@given(corpus=corpora())
def test_scores_agree_with_the_formula(
    corpus: tuple[list[tuple[Postings, int]], int, int, int],
) -> None:
    terms, chunks, total, spread = corpus
    lists = [
        posting_list({key * spread: weight for key, weight in postings.items()}, times)
        for postings, times in terms
    ]
    found = scores_of(lists, Corpus(chunks, total))
    expected = reference(terms, chunks, total)
    assert found.keys() == {key * spread for key in expected}
    for key, value in expected.items():
        # A term is rounded once for its idf, weighted by at most 3 * 2.2, and once for
        # the posting.
        assert found[key * spread] / UNIT == pytest.approx(value, abs=8 * len(terms) / UNIT)


@given(corpus=corpora())
def test_keys_close_together_and_far_apart_are_scored_alike(
    corpus: tuple[list[tuple[Postings, int]], int, int, int],
) -> None:
    """The one way adds by position, the other sorts."""
    terms, chunks, total, _ = corpus

    def scored(spread: int) -> dict[int, int]:
        lists = [
            posting_list({key * spread: weight for key, weight in postings.items()}, times)
            for postings, times in terms
        ]
        return {
            key // spread: value for key, value in scores_of(lists, Corpus(chunks, total)).items()
        }

    assert scored(1) == scored(FAR)


@given(corpus=corpora(), data=st.data())
def test_the_order_of_lists_and_of_postings_is_irrelevant(
    corpus: tuple[list[tuple[Postings, int]], int, int, int], data: st.DataObject
) -> None:
    terms, chunks, total, spread = corpus
    lists, stirred = [], []
    for postings, times in terms:
        spread_out = {key * spread: weight for key, weight in postings.items()}
        lists.append(posting_list(spread_out, times))
        pairs = data.draw(st.permutations(list(spread_out.items())))
        stirred.append(posting_list(dict(pairs), times))
    again = data.draw(st.permutations(stirred))
    assert scores_of(lists, Corpus(chunks, total)) == scores_of(again, Corpus(chunks, total))


@pytest.mark.parametrize("key", [0, 1, 2**53 + 1, 2**63 - 1])
def test_keys_are_whole_64_bit_numbers(key: int) -> None:
    assert scores_of([posting_list({key: (1, 10)})], Corpus(100, 1000)).keys() == {key}


@pytest.mark.parametrize("chunks", [1, 1_000, 50_000_000])
def test_a_term_that_every_chunk_has_still_scores(chunks: int) -> None:
    """Its idf is rounded to nothing in a large corpus, but a hit stays a hit."""
    weights = dict.fromkeys(range(min(chunks, 1000)), (1, 10000))
    scores = scores_of([posting_list(weights)], Corpus(chunks, chunks))
    assert len(scores) == len(weights)
    assert min(scores.values()) >= 1


def test_a_term_in_more_chunks_than_counted_still_scores_at_least_one() -> None:
    scores = scores_of([posting_list(dict.fromkeys(range(9), (1, 10)))], Corpus(2, 20))
    assert set(scores.values()) == {1}


def test_nothing_found_gives_nothing() -> None:
    assert scores_of([], Corpus(10, 100)) == {}
    assert scores_of([], Corpus(0, 0)) == {}
    assert scores_of([posting_list({})], Corpus(10, 100)) == {}


def test_a_term_without_postings_takes_nothing_from_the_others() -> None:
    one = posting_list({3: (2, 10), 5: (1, 12)})
    corpus = Corpus(10, 100)
    assert scores_of([posting_list({}), one], corpus) == scores_of([one], corpus)


def test_scores_are_pinned_so_that_no_machine_differs() -> None:
    lists = [
        posting_list({1: (3, 120), 2: (1, 80), 9: (2, 95)}),
        posting_list({2: (4, 80), 7: (1, 300)}, query_frequency=2),
    ]
    assert scores_of(lists, Corpus(1_000, 97_531)) == {
        1: 8881289,
        2: 28351749,
        7: 6795785,
        9: 8214719,
    }


def test_the_inverse_document_frequency_is_the_nearest_whole_number() -> None:
    for chunks, found in ((1, 1), (1_000, 1), (1_000_000, 12_345), (2**31, 2**30)):
        exact = math.log1p((chunks - found + 0.5) / (found + 0.5)) * UNIT
        assert abs(bm25._scaled_idf(chunks, found) - exact) <= 0.5 + exact * 1e-12


ranked = st.dictionaries(st.integers(0, 10**6), st.integers(1, 5), max_size=40)


@given(scores=ranked, limit=st.integers(1, 45))
def test_a_cut_leaves_ties_at_the_border_to_the_caller(scores: dict[int, int], limit: int) -> None:
    keys = sorted(scores)
    best = cut(np.array(keys, np.int64), np.array([scores[key] for key in keys], np.int64), limit)
    assert len(best.certain) + best.places == min(limit, len(scores))
    assert not set(best.certain) & set(best.tied)
    assert best.scores == {key: scores[key] for key in (*best.certain, *best.tied)}
    left_out = [value for key, value in scores.items() if key not in best.scores]
    if best.tied:
        (border,) = {scores[key] for key in best.tied}
        assert 1 <= best.places <= len(best.tied)
        assert all(scores[key] > border for key in best.certain)
        assert all(value < border for value in left_out)
        assert best.tied == tuple(key for key in keys if scores[key] == border)
    else:
        assert not left_out
        assert best.places == 0


def test_a_cut_of_equal_scores_is_all_tie() -> None:
    keys = np.arange(10, dtype=np.int64)
    best = cut(keys, np.full(10, 7, np.int64), 3)
    assert (best.certain, best.tied, best.places) == ((), tuple(range(10)), 3)


def test_a_cut_holds_python_numbers_alone() -> None:
    keys, scores = score([posting_list(dict.fromkeys(range(9), (1, 10)))], Corpus(9, 90))
    for limit in (3, 50):
        best = cut(keys, scores, limit)
        numbers = [*best.certain, *best.tied, best.places, *best.scores, *best.scores.values()]
        assert {type(number) for number in numbers} == {int}
