"""Why a source is in a snapshot or out of it, stage by stage. Pure.

Guarantees: a source that the reader may not know is explained word for word like one that
does not exist.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.scope.access import Predicate
from app.scope.label import Label
from app.scope.vocabulary import ALL_PROJECTS


@dataclass(frozen=True, slots=True)
class Explanation:
    """One stage: `outcome` is a word for programs, `detail` a sentence."""

    stage: str
    outcome: str
    detail: str


def explain(
    document: Mapping[str, Any],
    request: Mapping[str, Any],
    predicate: Predicate,
    label: Label | None,
    project: str,
    source_id: str,
    *,
    is_kept: bool = True,
    is_external: bool = False,
) -> tuple[Explanation, ...]:
    """The stages in the order in which they work, up to the one that decided.

    `label` is the source's at the snapshot's index version; None where it was not there, or
    is not the reader's to know: then no more is told than the document shows. `predicate` is
    what the snapshot's retrievers were given, `request` the one that is stored with it.
    `is_kept` is False where the index no longer has that version, of any source; `is_external`
    tells that a retriever outside of the index brought the source.
    """

    def of_source(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [
            entry
            for entry in entries
            if entry["project"] == project and entry["sourceId"] == source_id
        ]

    items, exclusions = of_source(document["items"]), of_source(document["exclusions"])
    brought = {item["chunkId"] for item in of_source(request["items"])}
    stages = [_inline_stage(item) for item in items if "indexVersion" not in item]
    shown = [item for item in items if "indexVersion" in item]
    named = [entry for entry in exclusions if _is_named(entry, brought)]
    left_out = [entry for entry in exclusions if not _is_named(entry, brought)]
    stages += [Explanation("naming", entry["reason"], entry["detail"]) for entry in named]
    if label is None and not shown and not left_out:
        if stages:
            return tuple(stages)
        if not is_kept:
            return (Explanation("index", "not-kept", "the index of that version is given up"),)
        return (Explanation("index", "absent", "no source of this name was in the index"),)
    if label is None and is_external:
        stages.append(Explanation("index", "external", "a retriever outside of the index has it"))
    else:
        stages.append(Explanation("index", "live", "the source was in the index at that version"))
    refusals = [] if label is None else refused_by(predicate, label, source_id)
    if refusals:
        return (*stages, Explanation("scope", "refused", "; ".join(refusals)))
    stages.append(Explanation("scope", "admitted", f"by {predicate.digest}"))
    if not shown and not left_out:
        detail = "no retriever returned a chunk of it: no common term, or below the limit"
        return (*stages, Explanation("retrieval", "not-found", detail))
    chunks = len(shown) + len(left_out)
    stages.append(Explanation("retrieval", "found", f"{chunks} chunks were candidates"))
    return (*stages, *map(_item_stage, shown), *map(_exclusion_stage, left_out))


def refused_by(predicate: Predicate, label: Label, source_id: str) -> list[str]:
    """What of a predicate does not admit a source, as sentences."""
    floor, ceiling = predicate.min_trust_tier, predicate.max_classification
    allow = label.allow
    conditions = (
        (
            predicate.projects != (ALL_PROJECTS,) and label.project not in predicate.projects,
            "its project is not in the scope",
        ),
        (label.knowledge_class not in predicate.classes, "its class is not in the scope"),
        (label.classification.rank > ceiling.rank, f"its classification is above {ceiling}"),
        (
            floor is not None and label.trust_tier.rank > floor.rank,
            f"its trust tier is below {floor}",
        ),
        (any(name in predicate.deny_principals for name in label.deny), "its list denies"),
        (
            allow is not None and not any(name in predicate.allow_principals for name in allow),
            "its list does not allow",
        ),
        (not predicate.sources.admit(source_id), "the request's patterns leave it out"),
    )
    return [sentence for refused, sentence in conditions if refused]


def _is_named(entry: Mapping[str, Any], brought: Collection[str]) -> bool:
    """Whether an exclusion is of a text that the request brought or named, not of a candidate."""
    return entry["reason"] in ("denied", "classification") or entry.get("chunkId") in brought


def _inline_stage(item: Mapping[str, Any]) -> Explanation:
    return Explanation("inline", "item", f"came with the request; rank {item['rank']}")


def _item_stage(item: Mapping[str, Any]) -> Explanation:
    detail = f"chunk {item['chunkId']} has rank {item['rank']} and {item['tokens']} tokens"
    return Explanation("packing", "item", detail)


def _exclusion_stage(entry: Mapping[str, Any]) -> Explanation:
    stage = {"duplicate": "dedupe", "stale": "freshness"}.get(entry["reason"], "packing")
    return Explanation(stage, entry["reason"], f"chunk {entry.get('chunkId')}: {entry['detail']}")
