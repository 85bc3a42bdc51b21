"""Request bodies stay below the limit, keep the order, and are as few as they can be."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli.batches import MAX_BODY_BYTES, MAX_SOURCE_BYTES, MAX_SOURCES, batched
from app.config import Settings


def encoded(size_bytes: int) -> bytes:
    return b'"' + b"x" * (size_bytes - 2) + b'"'


sizes = st.lists(
    st.integers(2, 50) | st.integers(MAX_SOURCE_BYTES // 3, MAX_SOURCE_BYTES), max_size=8
)


@settings(max_examples=40)
@given(sizes)
def test_every_source_is_in_one_batch_in_order_and_no_batch_is_too_large(found: list[int]) -> None:
    batches = list(batched((at, encoded(size)) for at, size in enumerate(found)))
    assert [entry for batch in batches for entry in batch.entries] == list(range(len(found)))
    for batch in batches:
        assert 0 < len(batch.body) <= MAX_BODY_BYTES
        held = [len(text) + 2 for text in json.loads(batch.body)["sources"]]
        assert held == [found[entry] for entry in batch.entries]
    for one, following in pairwise(batches):
        # The first of the next batch would not have fitted.
        assert len(one.body) + 1 + found[following.entries[0]] > MAX_BODY_BYTES


def test_a_batch_holds_a_bounded_number_of_sources() -> None:
    counts = [
        len(batch.entries) for batch in batched((at, b"{}") for at in range(2 * MAX_SOURCES + 1))
    ]
    assert counts == [MAX_SOURCES, MAX_SOURCES, 1]


def test_a_source_that_no_body_can_hold_is_refused() -> None:
    assert len(next(batched([(0, encoded(MAX_SOURCE_BYTES))])).body) == MAX_BODY_BYTES
    with pytest.raises(ValueError, match="larger"):
        list(batched([(0, encoded(MAX_SOURCE_BYTES + 1))]))


def test_no_further_source_is_read_before_a_batch_is_sent() -> None:
    read: list[int] = []

    def sources() -> object:
        for at in range(3 * MAX_SOURCES):
            read.append(at)
            yield at, b"{}"

    next(batched(sources()))  # type: ignore[arg-type]
    assert len(read) == MAX_SOURCES + 1


def test_a_body_is_within_what_the_service_takes_by_default() -> None:
    assert Settings.model_fields["max_body_bytes"].default > MAX_BODY_BYTES
