"""The report of one assembly: what each leg and stage did, bound to the snapshot by hash.

Guarantees: it holds nothing that depends on time or on what the scope does not admit, so
that equal material gives equal bytes.
"""

from collections.abc import Sequence

from app.canonical import JsonObject, JsonValue, digest_value
from app.packing.packer import Packing
from app.retrieval.candidate import Chunk
from app.retrieval.fan_out import LegOutcome
from app.snapshot.material import Material
from app.snapshot.snapshot import Exclusion, Item


def write_report(
    material: Material,
    *,
    packing: Packing,
    items: Sequence[Item],
    exclusions: Sequence[Exclusion],
    duplicates: int,
    rendered: JsonValue,
) -> JsonObject:
    gap = packing.upper_bound - packing.value
    ranked = [_trace(one.chunk, one.score) for one in material.ranked]
    return {
        "engine": material.engine,
        "scope": {
            **material.scope.to_contract(),
            "predicate": material.scope.predicate.canonical(),
        },
        "strategy": material.recipe.document,
        "retrievers": [_leg(outcome, material) for outcome in material.outcomes],
        "fusion": {
            "method": "reciprocal-rank",
            "k": material.recipe.fusion_k,
            "candidates": len(material.ranked),
        },
        "dedupe": {"method": "same-text", "duplicates": duplicates},
        "freshness": {"policy": "allow", "stale": 0},
        "packing": {
            "method": "rank-greedy",
            "capacityTokens": material.budget.capacity_tokens,
            "usedTokens": packing.used_tokens,
            "value": packing.value,
            "upperBound": packing.upper_bound,
            "gap": gap,
            "nextTokens": packing.next_tokens,
        },
        "stages": [
            {"name": "scope", "digest": material.scope.predicate.digest},
            *(_leg_stage(outcome) for outcome in material.outcomes),
            {"name": "fusion", "digest": digest_value(ranked)},
            {
                "name": "packing",
                "digest": digest_value(
                    {
                        "items": [item.to_contract() for item in items],
                        "exclusions": [one.to_contract() for one in exclusions],
                    }
                ),
            },
            {"name": "rendering", "digest": digest_value(rendered)},
        ],
    }


def _leg(outcome: LegOutcome, material: Material) -> JsonObject:
    retrieval = outcome.retrieval
    return {
        "name": outcome.name,
        "status": outcome.status,
        "weight": outcome.weight,
        "candidates": len(retrieval.candidates) if retrieval else 0,
        "visibleVersion": retrieval.visible_version if retrieval else None,
        "predicateHash": material.scope.predicate.digest,
    }


def _leg_stage(outcome: LegOutcome) -> JsonObject:
    found = outcome.retrieval.candidates if outcome.retrieval else ()
    return {
        "name": f"retrieval:{outcome.name}",
        "digest": digest_value([_trace(one.chunk, one.score) for one in found]),
    }


def _trace(chunk: Chunk, score: int) -> JsonValue:
    return [*chunk.identity, chunk.revision, chunk.content_hash, score]
