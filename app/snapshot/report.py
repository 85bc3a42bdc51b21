"""The report of one assembly: what each leg and stage did, bound to the snapshot by hash.

Guarantees: it holds nothing that depends on time or on what the scope does not admit, so
that equal material gives equal bytes.
"""

from collections.abc import Sequence

from app.canonical import JsonObject, JsonValue, digest_value
from app.packing.packer import METHOD, Packing
from app.retrieval.candidate import Chunk
from app.retrieval.expansion import GRAPH
from app.retrieval.fan_out import LegOutcome
from app.retrieval.freshness import Judgement
from app.retrieval.fusion import Duplicate
from app.snapshot.compression import COMPRESSION, Compression
from app.snapshot.material import Material
from app.snapshot.snapshot import Exclusion, Item


def write_report(
    material: Material,
    *,
    judged: Judgement,
    packing: Packing,
    missing: list[JsonValue],
    items: Sequence[Item],
    shortened: Sequence[Compression],
    exclusions: Sequence[Exclusion],
    duplicates: Sequence[Duplicate],
    rendered: JsonValue,
) -> JsonObject:
    gap = packing.upper_bound - packing.value
    ranked = [_trace(one.chunk, one.score) for one in material.ranked]
    return {
        "engine": material.engine,
        "inputs": digest_value(material.inputs),
        "scope": {
            **material.scope.to_contract(),
            "predicate": material.scope.predicate.canonical(),
        },
        "strategy": material.recipe.document,
        "retrievers": [
            *(_leg(outcome, material) for outcome in material.outcomes),
            *({"name": name, "status": "not-configured"} for name in material.not_configured),
        ],
        "fusion": _fusion(material),
        **_rerank(material),
        "dedupe": _dedupe(material, duplicates),
        "freshness": _freshness(material, judged),
        "packing": {
            "method": METHOD,
            "capacityTokens": material.budget.capacity_tokens,
            "usedTokens": packing.used_tokens,
            "value": packing.value,
            "upperBound": packing.upper_bound,
            "gap": gap,
            "nextTokens": packing.next_tokens,
            "next": missing,
        },
        **_compression(material, items, shortened),
        "stages": [
            {"name": "scope", "digest": material.scope.predicate.digest},
            *(_leg_stage(outcome) for outcome in material.outcomes if outcome.name != GRAPH),
            *_rerank_stage(material),
            *(_leg_stage(outcome) for outcome in material.outcomes if outcome.name == GRAPH),
            {"name": "fusion", "digest": digest_value(ranked)},
            *_freshness_stage(material, judged),
            *_dedupe_stage(material, duplicates),
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
        **(retrieval.facts if retrieval else {}),
    }


def _leg_stage(outcome: LegOutcome) -> JsonObject:
    found = outcome.retrieval.candidates if outcome.retrieval else ()
    return {
        "name": f"retrieval:{outcome.name}",
        "digest": digest_value([_trace(one.chunk, one.score) for one in found]),
    }


def _fusion(material: Material) -> JsonObject:
    method = material.recipe.fusion_method
    told: JsonObject = {"k": material.recipe.fusion_k} if method == "reciprocal-rank" else {}
    return {"method": method, "candidates": len(material.ranked), **told}


def _rerank(material: Material) -> JsonObject:
    reranking = material.reranking
    if reranking is None:
        return {}
    asked: JsonObject = {}
    if reranking.model is not None:
        asked = {"model": reranking.model, "candidates": len(reranking.relevance)}
    return {"rerank": {"status": reranking.status, **asked}}


def _rerank_stage(material: Material) -> list[JsonObject]:
    """It stands before what goes on from its order: the graph leg, and the whole ranking."""
    if material.reranking is None:
        return []
    return [{"name": "rerank", "digest": digest_value(material.reranking.trace())}]


def _dedupe(material: Material, duplicates: Sequence[Duplicate]) -> JsonObject:
    most = material.recipe.max_different_bits
    if most is None:
        return {"method": "same-text", "duplicates": len(duplicates)}
    near = sum(one.different_bits is not None for one in duplicates)
    return {
        "method": "near-text",
        "maxDifferentBits": most,
        "duplicates": len(duplicates),
        "near": near,
    }


def _dedupe_stage(material: Material, duplicates: Sequence[Duplicate]) -> list[JsonObject]:
    if material.recipe.max_different_bits is None:
        return []
    left_out: list[JsonValue] = [
        [*one.candidate.chunk.identity, *one.kept.identity, one.different_bits]
        for one in duplicates
    ]
    return [{"name": "dedupe", "digest": digest_value(left_out)}]


def _freshness(material: Material, judged: Judgement) -> JsonObject:
    """What was stale of candidates and pins; pins that stayed although they are, by name."""
    pinned: list[JsonValue] = [
        {
            "project": one.chunk.project,
            "sourceId": one.chunk.source_id,
            "chunkId": one.chunk.chunk_id,
            "detail": one.detail,
        }
        for one in judged.pinned
    ]
    told: JsonObject = {"pinned": pinned} if pinned else {}
    return {"policy": material.recipe.stale, "stale": len(judged.stale), **told}


def _freshness_stage(material: Material, judged: Judgement) -> list[JsonObject]:
    if material.recipe.stale == "allow":
        return []
    ranked = [_trace(one.chunk, one.score) for one in judged.ranked]
    stale: list[JsonValue] = [[*one.chunk.identity, one.detail] for one in judged.stale]
    return [{"name": "freshness", "digest": digest_value({"ranked": ranked, "stale": stale})}]


def _compression(
    material: Material, items: Sequence[Item], shortened: Sequence[Compression]
) -> JsonObject:
    least = material.recipe.rules.min_compressed_permille
    if least is None:
        return {}
    told: list[JsonValue] = [
        {
            "project": item.label.project,
            "sourceId": item.source_id,
            "chunkId": item.chunk_id,
            "originalTokens": item.original_tokens,
            "tokens": item.tokens,
            **one.canonical(),
        }
        for one, item in ((one, items[one.rank - 1]) for one in shortened)
    ]
    return {COMPRESSION: {"minPermille": least, "items": told}}


def _trace(chunk: Chunk, score: int) -> JsonValue:
    return [*chunk.identity, chunk.revision, chunk.content_hash, score]
