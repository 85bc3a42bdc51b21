"""Vectors in half precision: rounded the same everywhere, multiplied without rounding."""

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.indexing.embedding import (
    MAX_DIMENSIONS,
    MAX_NORM,
    EmbeddingProfile,
    HalfVector,
    as_text,
    exact_products,
    greatest_float_error,
    half_vector,
)

PROFILE = EmbeddingProfile("e5", 384, True, "query: ", "passage: ")
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.floats(-1e6, -1e-6))
ALL_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE_HALVES = ALL_HALVES[np.isfinite(ALL_HALVES)]


def numbers_of(vector: bytes) -> list[float]:
    return list(struct.unpack(f">{len(vector) // 2}e", vector))


def exact_product(one: bytes, other: bytes) -> int:
    """In units of 2^-32, rounded down."""
    pairs = zip(numbers_of(one), numbers_of(other), strict=True)
    return math.floor(sum(Fraction(a) * Fraction(b) for a, b in pairs) * 2**32)


@st.composite
def rows(draw: st.DrawFn, size: int | None = None) -> list[list[float]]:
    """Vectors of equal dimensions, some of them scaled far up or down."""
    dimensions = size or draw(st.integers(1, 40))
    number = st.one_of(FINITE, st.floats(-1, 1), st.sampled_from([0.0, -0.0, 1.0, 2.0**-24]))
    row = st.lists(number, min_size=dimensions, max_size=dimensions).filter(any)
    return draw(st.lists(row, min_size=2, max_size=6))


def within_bounds(row: Sequence[float]) -> list[float]:
    """Scaled to the greatest length that is allowed, or left as short as it is."""
    length = math.hypot(*row)
    return [number / length * MAX_NORM * 0.999 for number in row] if length > 1 else list(row)


@examples(max_examples=40)
@given(rows(), st.booleans())
def test_products_are_those_of_fractions(vectors: list[list[float]], normalise: bool) -> None:
    if not normalise:
        assume(all(math.isfinite(math.hypot(*row)) for row in vectors))
        vectors = [within_bounds(row) for row in vectors]
        assume(all(max(map(abs, row)) > 2.0**-24 for row in vectors))
    query, *passages = (half_vector(row, normalise=normalise) for row in vectors)
    expected = [exact_product(query, passage) for passage in passages]
    assert exact_products(query, b"".join(passages)) == expected


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dimensions", [1, 3, 384, MAX_DIMENSIONS])
def test_the_longest_vectors_do_not_overflow(dimensions: int, sign: float) -> None:
    longest = half_vector([MAX_NORM / math.sqrt(dimensions)] * dimensions, normalise=False)
    opposite = HalfVector(b"".join(struct.pack(">e", sign * one) for one in numbers_of(longest)))
    assert exact_products(longest, opposite) == [exact_product(longest, opposite)]


def test_products_are_rounded_down_and_need_no_passages() -> None:
    smallest = half_vector([2.0**-24, 1.0], normalise=False)
    across = half_vector([2.0**-24, 0.0], normalise=False)
    against = half_vector([-(2.0**-24), 0.0], normalise=False)
    assert exact_products(smallest, across + against) == [0, -1]
    assert exact_products(smallest, b"") == []
    with pytest.raises(ValueError, match="reshape"):
        exact_products(smallest, across[:-2])


@examples(max_examples=40)
@given(rows())
def test_scaling_gives_length_1_whatever_the_size_of_the_numbers(
    vectors: list[list[float]],
) -> None:
    for row in vectors:
        length = math.hypot(*numbers_of(half_vector(row, normalise=True)))
        assert length == pytest.approx(1, abs=1e-3)


@given(st.lists(PLAIN, min_size=1, max_size=40).filter(any), st.integers(-900, 900))
def test_neither_a_factor_of_two_nor_the_order_of_numbers_shows(
    numbers: list[float], exponent: int
) -> None:
    plain = numbers_of(half_vector(numbers, normalise=True))
    scaled = [math.ldexp(number, exponent) for number in numbers]
    assert numbers_of(half_vector(scaled, normalise=True)) == plain
    assert numbers_of(half_vector(numbers[::-1], normalise=True)) == plain[::-1]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
@example([0.5 + 2.0**-12 + 2.0**-40])  # Single precision in between would make it a tie.
def test_numbers_are_rounded_to_the_nearest_and_ties_to_even(numbers: list[float]) -> None:
    assume(any(abs(number) > 2.0**-25 for number in numbers))
    assert half_vector(numbers, normalise=False) == struct.pack(f">{len(numbers)}e", *numbers)
    assert half_vector(np.array(numbers), normalise=False) == half_vector(numbers, normalise=False)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([1.0, math.nan], "finite"),
        ([1.0, math.inf], "finite"),
        ([-math.inf, math.nan], "finite"),
        ([0.0, -0.0], "zero"),
        ([], "zero"),
    ],
)
def test_a_vector_without_a_direction_is_refused(
    numbers: list[float], reason: str, normalise: bool
) -> None:
    with pytest.raises(ValueError, match=reason):
        half_vector(numbers, normalise=normalise)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([1e-9, 0.0], "zero"),
        ([64.1, 0.0], "longer than 64"),
        ([50.0, 50.0], "longer than 64"),
        ([1e200, 1e200], "longer than 64"),
    ],
)
def test_what_half_precision_cannot_hold_has_to_be_scaled(
    numbers: list[float], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        half_vector(numbers, normalise=False)
    assert math.hypot(*numbers_of(half_vector(numbers, normalise=True))) == pytest.approx(1, 1e-3)


def test_text_reads_back_as_the_same_halves_in_single_precision() -> None:
    """pgvector reads a number in single precision and rounds it to half precision then."""
    vector = HalfVector(FINITE_HALVES.astype(">f2").tobytes())
    text = as_text(vector)
    read = [np.float16(np.float32(digits)) for digits in text[1:-1].split(",")]
    assert np.array(read, ">f2").tobytes() == vector


def test_text_has_the_shortest_digits() -> None:
    vector = half_vector([0.1, -1 / 3, 1.0, 2.0**-24], normalise=False)
    assert as_text(vector) == "[0.1,-0.3333,1.0,6e-08]"


@examples(max_examples=40)
@given(rows(size=24), st.randoms(use_true_random=False))
def test_a_sum_in_single_precision_is_within_the_stated_error(
    vectors: list[list[float]], chance: Random
) -> None:
    query, *passages = (half_vector(row, normalise=True) for row in vectors)
    for passage in passages:
        products = [
            np.float32(a) * np.float32(b)
            for a, b in zip(numbers_of(query), numbers_of(passage), strict=True)
        ]
        chance.shuffle(products)
        total = np.float32(0)
        for product in products:
            total += product
        exact = Fraction(exact_product(query, passage), 2**32)
        assert abs(Fraction(float(total)) - exact) <= greatest_float_error(query) + 2**-32


def test_a_profile_is_told_apart_by_each_of_its_members() -> None:
    others = [
        replace(PROFILE, model="e5-base"),
        replace(PROFILE, dimensions=768),
        replace(PROFILE, normalise=False),
        replace(PROFILE, query_prefix=""),
        replace(PROFILE, passage_prefix="query: "),
        replace(PROFILE, input_type=True),
    ]
    ids = {profile.id for profile in (PROFILE, *others)}
    assert len(ids) == 7
    assert all(len(bytes.fromhex(one)) == 8 for one in ids)


def test_the_id_of_a_profile_stays_what_it_is() -> None:
    """Stored vectors are found by it."""
    assert PROFILE.id == "708745a74998bbeb"
