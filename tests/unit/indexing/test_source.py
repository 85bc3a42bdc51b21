"""Sums over live sources tell content apart and cancel; digests see what they must."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.canonical import digest_text
from app.indexing.source import (
    LANES,
    ChunkDraft,
    LiveSum,
    PreparedChunk,
    PreparedSource,
    SourceDraft,
    lanes_from_signed,
    lanes_to_signed,
    live_sum,
)
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier

LABEL = Label(
    "booking",
    KnowledgeClass.DOCUMENTS,
    Classification.INTERNAL,
    TrustTier.TRUSTED_KNOWLEDGE,
    allow=("group:eng",),
    deny=("user:bob",),
)


def prepared_chunk(chunk_id: str = "0", text: str = "text", length: int = 3) -> PreparedChunk:
    return PreparedChunk(
        chunk_id, text, digest_text(text), {"o200k_base": 5}, ((1, length),), length
    )


DRAFT = SourceDraft(
    source_id="a.md",
    revision="r1",
    label=LABEL,
    chunks=(ChunkDraft("0", "text"),),
    media_type="text/markdown",
    language="en",
    provenance="https://example.org/a",
    expires_at=datetime(2030, 1, 1, tzinfo=UTC),
    links=("b.md",),
)
SOURCE = PreparedSource(DRAFT, (prepared_chunk(), prepared_chunk("1", "more")), "engine 1")


def with_draft(**members: Any) -> PreparedSource:
    return replace(SOURCE, draft=replace(DRAFT, **members))


def with_label(**members: Any) -> PreparedSource:
    return with_draft(label=replace(LABEL, **members))


VISIBLE_CHANGES = {
    "source_id": with_draft(source_id="b.md"),
    "revision": with_draft(revision="r2"),
    "media_type": with_draft(media_type=None),
    "language": with_draft(language="de"),
    "provenance": with_draft(provenance=None),
    "expires_at": with_draft(expires_at=datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC)),
    "expires_at absent": with_draft(expires_at=None),
    "links": with_draft(links=("b.md", "c.md")),
    "no links": with_draft(links=()),
    "project": with_label(project="billing"),
    "class": with_label(knowledge_class=KnowledgeClass.CODE),
    "classification": with_label(classification=Classification.PUBLIC),
    "trust tier": with_label(trust_tier=TrustTier.TOOL_RESULT),
    "chunk text": replace(SOURCE, chunks=(prepared_chunk(text="other"), SOURCE.chunks[1])),
    "chunk id": replace(SOURCE, chunks=(prepared_chunk("x"), SOURCE.chunks[1])),
    "chunk order": replace(SOURCE, chunks=SOURCE.chunks[::-1]),
    "fewer chunks": replace(SOURCE, chunks=SOURCE.chunks[:1]),
}
ACCESS_LISTS = {
    "no allow list": with_label(allow=None),
    "empty allow list": with_label(allow=()),
    "another allow list": with_label(allow=("group:ops",)),
    "no deny list": with_label(deny=()),
}


@pytest.mark.parametrize("name", VISIBLE_CHANGES)
def test_the_fingerprint_and_the_digest_see_all_that_a_reader_sees(name: str) -> None:
    changed = VISIBLE_CHANGES[name]
    assert changed.fingerprint() != SOURCE.fingerprint()
    assert changed.digest() != SOURCE.digest()
    assert live_sum(changed) != live_sum(SOURCE)


@pytest.mark.parametrize("name", ACCESS_LISTS)
def test_the_access_list_is_in_the_digest_and_not_in_the_fingerprint(name: str) -> None:
    changed = ACCESS_LISTS[name]
    assert changed.fingerprint() == SOURCE.fingerprint()
    assert live_sum(changed) == live_sum(SOURCE)
    assert changed.digest() != SOURCE.digest()
    assert len({one.digest() for one in ACCESS_LISTS.values()}) == len(ACCESS_LISTS)


def test_another_engine_changes_the_digest_so_that_a_source_is_indexed_anew() -> None:
    upgraded = replace(SOURCE, engine="engine 2")
    assert upgraded.digest() != SOURCE.digest()
    assert upgraded.fingerprint() == SOURCE.fingerprint()


def test_every_field_of_a_source_is_in_its_digest_or_in_its_chunks() -> None:
    """A new field must be added here, and to the digest."""
    covered = {
        "source_id",
        "revision",
        "label",
        "media_type",
        "language",
        "provenance",
        "expires_at",
        "links",
        *("text", "chunks"),  # by the digests of the prepared chunks
    }
    assert {one.name for one in fields(SourceDraft)} == covered


def test_a_digest_and_a_fingerprint_are_never_the_same_number() -> None:
    assert SOURCE.digest() != SOURCE.fingerprint()


def test_the_fingerprint_of_a_source_is_pinned() -> None:
    """A change of it changes every visible version, and so every snapshot's bytes."""
    assert (
        SOURCE.fingerprint()
        == "sha256:dc28e9e880633f28edb682f7c7269bf4ff9f1c6d4c35ef005d8fbdea5e7cdaf9"
    )
    assert live_sum(SOURCE).visible_version() == "b05ccc49c7dd8ee19cbc58841c8af8ed"
    assert LiveSum().visible_version() == "d156e13b8456a178c6a15a86340d985e"


def test_a_live_source_adds_its_counts() -> None:
    found = live_sum(SOURCE)
    assert (found.sources, found.chunks, found.terms) == (1, 2, 6)
    assert len(found.lanes) == LANES
    assert not found.is_empty
    assert SOURCE.key == ("booking", "a.md")


lanes = st.lists(st.integers(0, 2**64 - 1), min_size=LANES, max_size=LANES).map(tuple)
counts = st.integers(0, 10**9)
sums = st.builds(LiveSum, counts, counts, counts, lanes)


@given(one=sums, two=sums, three=sums)
def test_sums_are_commutative_and_associative(one: LiveSum, two: LiveSum, three: LiveSum) -> None:
    assert one.plus(two) == two.plus(one)
    assert one.plus(two).plus(three) == one.plus(two.plus(three))
    assert one.plus(LiveSum()) == one


@given(one=sums, two=sums)
def test_adding_and_taking_away_cancel(one: LiveSum, two: LiveSum) -> None:
    assert one.plus(two).minus(two) == one
    assert one.minus(two).plus(two) == one
    assert one.minus(one).is_empty


@given(one=sums, two=sums)
def test_lanes_stay_within_64_bits(one: LiveSum, two: LiveSum) -> None:
    for found in (one.plus(two), one.minus(two)):
        assert all(0 <= lane < 2**64 for lane in found.lanes)


@given(changes=st.permutations(list(VISIBLE_CHANGES.values())), undone=st.integers(0, 5))
def test_equal_content_has_an_equal_version_whatever_the_order_of_changes(
    changes: list[PreparedSource], undone: int
) -> None:
    found = live_sum(SOURCE)
    for source in changes[:undone]:
        found = found.plus(live_sum(source))
    for source in reversed(changes[:undone]):
        found = found.minus(live_sum(source))
    assert found == live_sum(SOURCE)
    everything = LiveSum()
    for source in changes:
        everything = everything.plus(live_sum(source))
    expected = LiveSum()
    for source in VISIBLE_CHANGES.values():
        expected = expected.plus(live_sum(source))
    assert everything.visible_version() == expected.visible_version()


@given(one=sums, two=sums)
def test_different_sums_have_different_versions(one: LiveSum, two: LiveSum) -> None:
    assert (one.visible_version() == two.visible_version()) == (one == two)
    assert len(one.visible_version()) == 32


def test_a_source_that_stands_twice_is_told_from_one_that_stands_once() -> None:
    once = live_sum(SOURCE)
    assert once.plus(once).visible_version() != once.visible_version()
    assert once.plus(once).lanes != LiveSum().lanes


@given(unsigned=lanes)
def test_lanes_go_to_signed_numbers_and_back(unsigned: tuple[int, ...]) -> None:
    signed = lanes_to_signed(unsigned)
    assert all(-(2**63) <= lane < 2**63 for lane in signed)
    assert lanes_from_signed(signed) == unsigned
    assert [lane % 2**64 for lane in signed] == list(unsigned)


def test_the_borders_of_signed_lanes() -> None:
    unsigned = (0, 2**63 - 1, 2**63, 2**64 - 1)
    assert lanes_to_signed(unsigned) == [0, 2**63 - 1, -(2**63), -1]
    assert lanes_from_signed((0, 2**63 - 1, -(2**63), -1)) == unsigned
