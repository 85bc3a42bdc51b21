"""What freshness decides shows in the snapshot, the report and its stages."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.retrieval.candidate import Chunk
from app.retrieval.freshness import StalePolicy
from app.scope.vocabulary import TrustTier
from app.snapshot.assembly import Assembly
from app.snapshot.material import Material
from tests.unit.snapshot.materials import EVALUATED_AT, LABEL, assembled, chunk, material, outcome

FRESH, OTHER = chunk("fresh"), chunk("other")
OLD = chunk("old", head_revision="r2")
EXPIRED = chunk("expired", expires_at=EVALUATED_AT)
NEWER = "a newer revision r2 is known"
POLICIES: tuple[StalePolicy, ...] = ("allow", "prefer-fresh", "exclude")


def with_policy(policy: StalePolicy, *chunks: Chunk, **members: Any) -> Material:
    usual = material(outcome(*chunks), **members)
    return replace(usual, recipe=replace(usual.recipe, stale=policy))


def items(assembly: Assembly) -> list[str]:
    return [item.source_id for item in assembly.items]


def left_out(assembly: Assembly) -> list[tuple[str, str, str]]:
    return [(one.source_id, one.reason, one.detail) for one in assembly.exclusions]


def report_of(assembly: Assembly) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(assembly.report)
    return report


def stages(assembly: Assembly) -> dict[str, str]:
    return {stage["name"]: stage["digest"] for stage in report_of(assembly)["stages"]}


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("allow", ["old", "fresh", "expired", "other"]),
        ("prefer-fresh", ["fresh", "other", "old", "expired"]),
        ("exclude", ["fresh", "other"]),
    ],
)
def test_a_policy_shows_in_items_exclusions_and_report(
    policy: StalePolicy, order: list[str]
) -> None:
    made = assembled(with_policy(policy, OLD, FRESH, EXPIRED, OTHER))
    assert items(made) == order
    expected = [("old", "stale", NEWER), ("expired", "stale", "expired at 2026-01-31T09:30:00Z")]
    assert left_out(made) == (expected if policy == "exclude" else [])
    assert report_of(made)["freshness"] == {"policy": policy, "stale": 2}
    assert ("freshness" in stages(made)) == (policy != "allow")


def test_where_all_is_fresh_the_policies_give_the_same_items() -> None:
    made = [assembled(with_policy(policy, FRESH, OTHER)) for policy in POLICIES]
    assert len({tuple(items(one)) for one in made}) == 1
    assert all(report_of(one)["freshness"]["stale"] == 0 for one in made)


def test_a_stale_pin_is_an_item_and_told_in_the_report() -> None:
    """Also where a retriever found it: it is not excluded beside its item."""
    given = with_policy("exclude", OLD, FRESH, EXPIRED, pinned=(OLD,))
    made = assembled(given)
    assert items(made) == ["old", "fresh"]
    assert [(name, reason) for name, reason, _ in left_out(made)] == [("expired", "stale")]
    assert report_of(made)["freshness"] == {
        "policy": "exclude",
        "stale": 2,
        "pinned": [{"project": "booking", "sourceId": "old", "chunkId": "0", "detail": NEWER}],
    }


@pytest.mark.parametrize("policy", ["prefer-fresh", "exclude"])
def test_a_stale_copy_does_not_keep_a_fresh_one_out(policy: StalePolicy) -> None:
    copy = chunk("copy", text=OLD.text)
    made = assembled(with_policy(policy, OLD, copy))
    assert items(made) == ["copy"]
    reason = "stale" if policy == "exclude" else "duplicate"
    assert [(name, why) for name, why, _ in left_out(made)] == [("old", reason)]


def test_trust_counts_more_than_freshness_among_equal_texts() -> None:
    """A fresh copy of low trust must not displace what it copies."""
    external = replace(LABEL, trust_tier=TrustTier.UNTRUSTED_EXTERNAL)
    copy = chunk("copy", text=OLD.text, label=external)
    assert items(assembled(with_policy("prefer-fresh", OLD, copy))) == ["old"]


def test_the_time_of_evaluation_changes_nothing_but_what_it_decides() -> None:
    """A day more or less gives the same bytes, as long as nothing expires in it."""
    later = EVALUATED_AT + timedelta(days=1)
    lasting = chunk("lasting", expires_at=later + timedelta(microseconds=1))
    given = with_policy("exclude", OLD, lasting)
    same = [assembled(replace(given, evaluated_at=at)) for at in (EVALUATED_AT, later)]
    assert same[0].snapshot == same[1].snapshot
    assert same[0].report == same[1].report
    expired = assembled(replace(given, evaluated_at=later + timedelta(days=1)))
    assert (items(same[0]), items(expired)) == (["lasting"], [])


def test_the_fusion_stage_is_the_same_and_the_freshness_stage_differs() -> None:
    """A replay names the first stage that differs."""
    before = stages(assembled(with_policy("exclude", FRESH, OTHER)))
    head = replace(OTHER, head_revision="r2")
    after = stages(assembled(with_policy("exclude", FRESH, head)))
    assert before["fusion"] == after["fusion"]
    assert before["freshness"] != after["freshness"]
