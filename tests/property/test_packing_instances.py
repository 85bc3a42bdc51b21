"""Knapsack instances of 13 kinds that others made, whose optimum is known."""

import json
from pathlib import Path

import pytest

from app.packing.filling import Entry, PackingRules
from app.packing.packer import pack
from app.scope.vocabulary import KnowledgeClass, TrustTier

pytestmark = pytest.mark.shared_data

_FREE = dict.fromkeys(TrustTier, 0)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_instances_come_within_a_two_hundredth_of_their_optimum(
    shared_data: Path, step: int
) -> None:
    file = shared_data / "knapsack" / "instances-kplib.jsonl"
    instances = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(instances) == 156
    for instance in instances[::step]:
        pairs = zip(instance["weights"], instance["profits"], strict=True)
        entries = [
            Entry(weight, profit, TrustTier.USER, KnowledgeClass.DOCUMENTS, at)
            for at, (weight, profit) in enumerate(pairs)
        ]
        packing = pack(entries, instance["capacity"], _FREE, PackingRules())
        optimum, name = instance["optimum"], instance["name"]
        assert packing.used_tokens <= instance["capacity"], name
        assert 0.995 * optimum <= packing.value <= optimum <= packing.upper_bound, name
