"""What differs between two snapshots, and the one cause that each difference is given."""

import json
from dataclasses import replace
from typing import Any

import pytest

from app.canonical import digest_value
from app.retrieval.candidate import Chunk
from app.retrieval.fan_out import LegOutcome
from app.retrieval.retriever import Pin
from app.scope.access import RequestedScope, SourcePatterns
from app.scope.vocabulary import Classification
from app.snapshot.diff import Difference, Side, diff
from app.snapshot.material import Material
from app.snapshot.snapshot import Exclusion
from tests.unit.snapshot.materials import (
    LABEL,
    REQUEST,
    assembled,
    chunk,
    inline,
    material,
    outcome,
)

A, B, C = (chunk(name) for name in ("a.md", "b.md", "c.md"))
LONG = chunk("long.md", text="word " * 400)


def side(given: Material) -> Side:
    made = assembled(given)
    return Side(
        json.loads(made.snapshot.canonical), json.loads(made.request), json.loads(made.report)
    )


def found(*chunks: Chunk, name: str = "lexical", **members: Any) -> Material:
    return material(outcome(*chunks, name=name), **members)


def asked(given: Material, **members: Any) -> Material:
    """The same with another request; what it brings and pins is taken to be there."""
    return replace(given, request=replace(REQUEST, **members))


def recipe(given: Material, version: int) -> Material:
    document: Any = {"id": "default", "version": version}
    changed = replace(given.recipe, name=f"default@{version}", digest=digest_value(document))
    return replace(given, recipe=replace(changed, document=document))


def seen(given: Material, version: str) -> Material:
    """The same with another visible version of its legs."""
    outcomes = tuple(
        replace(one, retrieval=one.retrieval and replace(one.retrieval, visible_version=version))
        for one in given.outcomes
    )
    return replace(given, outcomes=outcomes)


def told(differences: tuple[Difference, ...]) -> list[tuple[str, str, str | None]]:
    return [
        (one.kind, (one.after or one.before or {})["sourceId"], one.cause) for one in differences
    ]


def between(before: Material, after: Material) -> list[tuple[str, str, str | None]]:
    return told(diff(side(before), side(after)))


def test_a_snapshot_does_not_differ_from_itself() -> None:
    one = side(found(A, B, inline=(inline(),)))
    assert diff(one, one) == ()


def test_items_that_were_added_removed_and_moved_are_told_apart() -> None:
    differences = diff(side(found(A, B)), side(seen(found(C, A), "later")))
    assert told(differences) == [
        ("added", "c.md", "index"),
        ("moved", "a.md", None),
        ("removed", "b.md", "index"),
    ]
    added, moved, removed = differences
    assert added.before is None
    assert removed.after is None
    assert moved.before
    assert moved.after
    assert (moved.before["rank"], moved.after["rank"]) == (1, 2)


ORIGINAL = found(A)
BROUGHT = inline(text="Another task.")
PINNED = Pin("booking", "b.md", None, True)
CLASSIFIED = chunk("b.md", label=replace(LABEL, classification=Classification.CONFIDENTIAL))
ITS_EXCLUSION = Exclusion("booking", "b.md", "classification", "above the ceiling", "0")
CASES: dict[str, tuple[Material, Material, tuple[str, str, str]]] = {
    "brought": (
        ORIGINAL,
        asked(found(A, inline=(BROUGHT,)), items=(BROUGHT,)),
        ("added", "task:41", "query"),
    ),
    "brought with another text": (
        asked(found(inline=(inline(),)), items=(inline(),)),
        asked(found(inline=(BROUGHT,)), items=(BROUGHT,)),
        ("changed", "task:41", "query"),
    ),
    "pinned": (
        ORIGINAL,
        asked(found(A, pinned=(B,)), pins=(PINNED,)),
        ("added", "b.md", "query"),
    ),
    "another revision of a chunk": (
        ORIGINAL,
        found(replace(A, revision="r2")),
        ("changed", "a.md", "revision"),
    ),
    "another chunk of another revision": (
        ORIGINAL,
        found(chunk("a.md", 7, revision="r2")),
        ("added", "a.md", "revision"),
    ),
    "another text at the same revision": (
        ORIGINAL,
        found(chunk("a.md", text="Anew.")),
        ("changed", "a.md", "index"),
    ),
    "another label at the same revision": (
        ORIGINAL,
        found(replace(A, label=replace(LABEL, classification=Classification.PUBLIC))),
        ("changed", "a.md", "index"),
    ),
    "a ceiling": (
        found(A, requested=RequestedScope(max_classification=Classification.INTERNAL)),
        found(A, CLASSIFIED),
        ("added", "b.md", "scope"),
    ),
    "a pattern": (
        found(A, B),
        found(A, requested=RequestedScope(sources=SourcePatterns(deny=("b*",)))),
        ("removed", "b.md", "scope"),
    ),
    "a group that lists may name": (
        found(A, B),
        found(A, requested=RequestedScope(groups=())),
        ("removed", "b.md", "scope"),
    ),
    "kept out by name": (
        found(A, refused=(ITS_EXCLUSION,)),
        found(A, B),
        ("added", "b.md", "scope"),
    ),
    "a leg that failed": (
        material(outcome(A), outcome(B, name="vector")),
        material(outcome(A), LegOutcome("vector", 1, "timeout", None)),
        ("removed", "b.md", "degraded"),
    ),
    "a budget": (
        found(A, LONG, max_tokens=1300, reserved=1000),
        found(A, LONG),
        ("added", "long.md", "budget"),
    ),
    "a recipe that left it out": (
        found(A, LONG, max_tokens=1300, reserved=1000),
        recipe(found(A, LONG), 2),
        ("added", "long.md", "budget"),
    ),
    "another question": (
        found(A, B),
        asked(found(A), query="Another question?"),
        ("removed", "b.md", "query"),
    ),
    "another language": (
        found(A, B),
        asked(found(A), language="de"),
        ("removed", "b.md", "query"),
    ),
    "another recipe": (found(A, B), recipe(found(A), 2), ("removed", "b.md", "strategy")),
    "another state of the index": (
        found(A, B),
        seen(found(A), "later"),
        ("removed", "b.md", "index"),
    ),
    "nothing that is recorded": (found(A, B), found(A), ("removed", "b.md", "index")),
}
TURNED = {"added": "removed", "removed": "added"}


@pytest.mark.parametrize("name", CASES)
def test_a_difference_has_its_cause_whichever_snapshot_comes_first(name: str) -> None:
    before, after, (kind, source_id, cause) = CASES[name]
    assert (kind, source_id, cause) in between(before, after)
    assert (TURNED.get(kind, kind), source_id, cause) in between(after, before)


@pytest.mark.parametrize("name", CASES)
def test_whatever_did_not_only_move_has_one_cause_and_a_sentence(name: str) -> None:
    before, after, _ = CASES[name]
    for one in diff(side(before), side(after)):
        assert (one.cause is None) == (one.detail == "") == (one.kind == "moved")


def test_a_budget_counts_only_for_what_was_left_out_for_it() -> None:
    wide, narrow = found(A, LONG), found(A, B, max_tokens=1300, reserved=1000)
    assert between(narrow, wide) == [
        ("added", "long.md", "index"),
        ("removed", "b.md", "index"),
    ]


def test_of_several_facts_that_differ_the_first_is_the_cause() -> None:
    before = found(A, B)
    scope = RequestedScope(groups=())
    everything = recipe(asked(seen(found(A, requested=scope), "later"), query="Another?"), 2)
    without_query = replace(everything, request=REQUEST)
    without_recipe = replace(without_query, recipe=before.recipe)
    without_scope = replace(without_recipe, scope=before.scope)
    chain = (everything, without_query, without_recipe, without_scope)
    causes = [between(before, after)[0][2] for after in chain]
    assert causes == ["query", "strategy", "scope", "index"]


def test_items_of_one_name_are_compared_in_the_order_of_their_ranks() -> None:
    first, second = inline(text="one"), inline(text="two")
    both = asked(found(inline=(first, second)), items=(first, second))
    alone = asked(found(inline=(first,)), items=(first,))
    assert between(alone, both) == [("added", "task:41", "query")]
    assert between(both, alone) == [("removed", "task:41", "query")]


def test_an_inline_item_is_not_taken_for_the_source_of_its_name() -> None:
    named = inline(source_id="a.md", label=LABEL)
    after = asked(found(B, inline=(named,)), items=(named,))
    assert between(found(A, B), after) == [
        ("added", "a.md", "query"),
        ("removed", "a.md", "query"),
    ]
