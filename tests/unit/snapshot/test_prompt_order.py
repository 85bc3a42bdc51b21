"""A prompt by source: importance stays the rank, and what is stored renders it again."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from app.packing.filling import PackingRules
from app.packing.rendering import count_rendered, fence_marker, render
from app.snapshot.assembly import Assembly
from app.snapshot.verify import Evidence, blocks_of, in_prompt_order, verify
from tests.unit.snapshot.materials import (
    COUNTER,
    assembled,
    chunk,
    count_tokens,
    material,
    outcome,
    texts_of,
)
from tests.unit.snapshot.test_assembly import EXTERNAL

FOUND = (chunk("b", 3), chunk("a", 0), chunk("b", 1), chunk("x", 0, label=EXTERNAL), chunk("a", 2))


def by_source(format_: str = "text") -> Assembly:
    return assembled(material(outcome(*FOUND), format_=format_, rules=PackingRules(order="source")))


def items_of(assembly: Assembly) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(assembly.snapshot.canonical)["items"]
    return found


def test_chunks_of_a_source_stand_together_as_the_document_has_them() -> None:
    items = items_of(by_source())
    assert [item["rank"] for item in items] == [1, 2, 3, 4, 5]
    assert [(item["sourceId"], item["chunkId"]) for item in items] == [
        (one.source_id, one.chunk_id) for one in FOUND
    ]
    placed = sorted(items, key=lambda item: item["position"])
    assert [(item["sourceId"], item["chunkId"]) for item in placed] == [
        ("b", "1"),
        ("b", "3"),
        ("a", "0"),
        ("a", "2"),
        ("x", "0"),
    ]


@pytest.mark.parametrize("format_", ["text", "messages"])
def test_the_prompt_is_rendered_again_from_the_items_and_their_texts(format_: str) -> None:
    assembly = by_source(format_)
    items = items_of(assembly)
    blocks = blocks_of(items, texts_of(assembly))
    marker = fence_marker(blocks, (item["contentHash"] for item in items))
    again = render(in_prompt_order(items, blocks), marker, format_)
    assert again == assembly.rendered != render(blocks, marker, format_)
    assert count_rendered(again, count_tokens) == sum(item["tokens"] for item in items)


def test_a_snapshot_by_source_verifies_and_a_forged_position_does_not() -> None:
    assembly = by_source()
    evidence = Evidence(
        assembly.snapshot.canonical, assembly.request, assembly.report, texts_of(assembly)
    )
    checks = partial(verify, count_tokens=COUNTER.count)
    assert all(check.ok for check in checks(evidence))
    forged = assembly.snapshot.canonical.replace(b'"position":1,', b'"position":2,')
    assert forged != assembly.snapshot.canonical
    failed = {one.name for one in checks(replace(evidence, canonical=forged)) if not one.ok}
    assert {"hash", "budget"} <= failed


def test_items_by_rank_have_no_position() -> None:
    assert all("position" not in item for item in items_of(assembled(material(outcome(*FOUND)))))
