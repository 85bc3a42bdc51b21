"""Freshness ranks behind or takes out what is stale, loses nothing, and spares pins."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.retrieval.candidate import Chunk
from app.retrieval.freshness import Judgement, StalePolicy, judge, staleness
from app.retrieval.fusion import FusedCandidate
from tests.unit.retrieval.chunks import chunk

NOW = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
NEWER = "a newer revision 2 is known"
POLICIES: tuple[StalePolicy, ...] = ("allow", "prefer-fresh", "exclude")

FRESH, OTHER = chunk("fresh"), chunk("other")
OLD = replace(chunk("old"), head_revision="2")
EXPIRED = replace(chunk("expired"), expires_at=NOW)


def ranking(*chunks: Chunk) -> tuple[FusedCandidate, ...]:
    return tuple(FusedCandidate(one, 900 - at, "lexical", "v1") for at, one in enumerate(chunks))


def ids(found: Judgement) -> list[str]:
    return [one.chunk.source_id for one in found.ranked]


@pytest.mark.parametrize(
    ("head_revision", "expires_at", "detail"),
    [
        (None, None, None),
        ("1", None, None),
        ("2", None, NEWER),
        # There is no order among revisions: any other one is newer.
        ("0", None, "a newer revision 0 is known"),
        (None, NOW + INSTANT, None),
        (None, NOW, "expired at 2026-01-31T09:30:00Z"),
        (None, NOW - INSTANT, "expired at 2026-01-31T09:29:59.999999Z"),
        ("2", NOW - INSTANT, f"{NEWER}; expired at 2026-01-31T09:29:59.999999Z"),
        ("2", NOW + INSTANT, NEWER),
    ],
)
def test_a_chunk_is_stale_by_a_head_of_another_revision_and_from_its_expiry_on(
    head_revision: str | None, expires_at: datetime | None, detail: str | None
) -> None:
    assert staleness("1", head_revision, expires_at, NOW) == detail


def test_the_zone_of_a_time_changes_nothing() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert staleness("1", None, elsewhere, NOW) == "expired at 2026-01-31T09:30:00Z"
    assert staleness("1", None, NOW, elsewhere) == "expired at 2026-01-31T09:30:00Z"


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("allow", ["old", "fresh", "expired", "other"]),
        ("prefer-fresh", ["fresh", "other", "old", "expired"]),
        ("exclude", ["fresh", "other"]),
    ],
)
def test_a_policy_says_what_becomes_of_stale_candidates(
    policy: StalePolicy, order: list[str]
) -> None:
    found = judge(ranking(OLD, FRESH, EXPIRED, OTHER), (), policy, NOW)
    assert ids(found) == order
    assert [one.chunk for one in found.stale] == [OLD, EXPIRED]
    excluded = [(one.chunk.source_id, one.detail) for one in found.excluded]
    told = [("old", NEWER), ("expired", "expired at 2026-01-31T09:30:00Z")]
    assert excluded == (told if policy == "exclude" else [])
    assert found.pinned == ()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pinned_chunk_stays_and_is_told(policy: StalePolicy) -> None:
    """It is ranked too, and leaves the ranking to those that put pins first."""
    found = judge(ranking(OLD, EXPIRED, FRESH), (OLD, OTHER), policy, NOW)
    assert OLD in [one.chunk for one in found.ranked]
    assert [(one.chunk, one.detail) for one in found.pinned] == [(OLD, NEWER)]
    assert [one.chunk for one in found.stale] == [OLD, EXPIRED]
    assert [one.chunk for one in found.excluded] == ([EXPIRED] if policy == "exclude" else [])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stale_pin_that_is_not_ranked_is_counted(policy: StalePolicy) -> None:
    found = judge(ranking(FRESH), (OLD,), policy, NOW)
    assert (ids(found), found.excluded) == (["fresh"], ())
    assert [one.chunk for one in found.stale] == [one.chunk for one in found.pinned] == [OLD]


def test_a_pin_spares_no_other_text_under_its_name() -> None:
    """As a leg may know the chunk from a revision before."""
    earlier = replace(chunk("fresh", text="as it was"), revision="0", head_revision="1")
    found = judge(ranking(earlier), (FRESH,), "exclude", NOW)
    assert [one.chunk for one in found.excluded] == [earlier]
    assert found.pinned == ()


def test_nothing_is_judged_where_nothing_is_found() -> None:
    for policy in POLICIES:
        assert judge((), (), policy, NOW) == Judgement(())


@st.composite
def rankings(draw: st.DrawFn) -> tuple[tuple[FusedCandidate, ...], tuple[Chunk, ...]]:
    """Candidates of all ages, and pins among them and beside them."""
    chunks = [
        replace(
            chunk(name, at),
            head_revision=draw(st.sampled_from((None, "1", "2"))),
            expires_at=draw(st.sampled_from((None, NOW - INSTANT, NOW, NOW + INSTANT))),
        )
        for name in "abc"
        for at in range(3)
    ]
    ranked = draw(st.lists(st.sampled_from(chunks), unique_by=lambda one: one.identity))
    pinned = draw(st.lists(st.sampled_from(chunks), unique_by=lambda one: one.identity))
    return ranking(*ranked), tuple(pinned)


@examples(max_examples=40)
@given(given_=rankings(), policy=st.sampled_from(POLICIES))
def test_every_candidate_goes_on_or_is_excluded_in_its_order(
    given_: tuple[tuple[FusedCandidate, ...], tuple[Chunk, ...]], policy: StalePolicy
) -> None:
    ranked, pinned = given_
    found = judge(ranked, pinned, policy, NOW)
    stale = [
        one
        for one in ranked
        if one.chunk.head_revision == "2"
        or (one.chunk.expires_at is not None and one.chunk.expires_at <= NOW)
    ]
    fresh = [one for one in ranked if one not in stale]
    out = [one.chunk for one in found.excluded]
    assert out == [one.chunk for one in stale if policy == "exclude" and one.chunk not in pinned]
    behind = [one for one in stale if one.chunk not in out]
    assert list(found.ranked) == (list(ranked) if policy == "allow" else fresh + behind)
    told = {one.chunk.identity for one in found.stale}
    assert len(told) == len(found.stale)
    assert told >= {one.chunk.identity for one in stale}
    assert told >= {one.chunk.identity for one in (*found.excluded, *found.pinned)}
