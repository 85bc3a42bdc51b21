"""Checking a stored snapshot again from its bytes alone. Pure; anyone can run it.

Guarantees: every check recomputes what it compares; a check that cannot be made because
a text was erased says so and does not pass for one that was made. No bytes make it raise:
what cannot be read fails the check that reads it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from app.canonical import Digest, canonical_bytes, digest_bytes, digest_text, digest_value
from app.errors import RequestError
from app.packing.rendering import (
    Block,
    count_rendered,
    envelope_tokens,
    fence_marker,
    footer_tokens,
    framed_body,
    header_tokens,
    render,
)
from app.retrieval.external import external_legs, leg_of, recorded_labels
from app.scope.access import AccessScope, Predicate, SourcePatterns
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier
from app.snapshot.snapshot import hash_of, snapshot_id_of

_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, RecursionError, RequestError)
"""What forged members raise where they are read: the given schema leaves many of ours open."""

_SCHEMAS = Path(__file__).parents[2] / "openapi" / "schemas"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is checked: the snapshot's bytes and, from a server, what stands beside it.

    `texts` maps a content hash to the text, without those that were erased; None where
    the texts are not at hand (a file on its own). `labels` maps project and source id to
    the label, access list included, that the index holds for the snapshot's version.
    """

    canonical: bytes
    request: bytes | None = None
    report: bytes | None = None
    texts: Mapping[str, str] | None = None
    labels: Mapping[tuple[str, str], Label] | None = None
    inputs: bytes | None = None


def verify(evidence: Evidence, count_tokens: Callable[[str, str], int]) -> tuple[Check, ...]:
    """All checks in a fixed order; `count_tokens` takes a text and an encoding's name."""
    try:
        document: dict[str, Any] = json.loads(evidence.canonical)
        schema = _check_schema(document)
    except (ValueError, RecursionError):
        return (Check("schema", False, "not a JSON document, or one nested too deeply"),)
    if not schema.ok:
        # What follows reads members that the schema promises.
        return (schema,)
    try:
        canonical = canonical_bytes(document)
    except _UNREADABLE as error:
        return (schema, _failed("canonical", error))
    same = canonical == evidence.canonical.strip()
    checks = [
        schema,
        *_check_digests(document),
        Check("canonical", same, "the bytes are the document's RFC 8785 form"),
        *_check_bound(document, evidence),
    ]
    if evidence.texts is not None:
        checks.append(_made("contents", partial(_check_contents, document, evidence.texts)))
    budget = partial(_check_budget, document, evidence.texts, count_tokens)
    return (*checks, _made("budget", budget))


@cache
def _validator() -> Draft202012Validator:
    snapshot, scope = (
        json.loads((_SCHEMAS / name).read_text(encoding="utf-8"))
        for name in ("context-snapshot.schema.json", "execution-scope.schema.json")
    )
    registry = Registry().with_resource(scope["$id"], Resource.from_contents(scope))
    return Draft202012Validator(
        snapshot, registry=registry, format_checker=Draft202012Validator.FORMAT_CHECKER
    )


def schema_errors(document: Any) -> list[str]:
    """What the given schema has against a document, each with its JSON path."""
    return [f"{error.json_path}: {error.message}" for error in _validator().iter_errors(document)]


def _check_schema(document: Any) -> Check:
    errors = schema_errors(document)
    return Check("schema", not errors, errors[0][:300] if errors else "valid")


def _check_digests(document: dict[str, Any]) -> tuple[Check, Check]:
    expected = hash_of(document)
    return (
        _equal("hash", document["hash"], expected),
        _equal("id", document["snapshotId"], snapshot_id_of(expected)),
    )


def _check_bound(document: dict[str, Any], evidence: Evidence) -> list[Check]:
    """What `budget.assembly` binds, as far as it is at hand."""
    request, report = evidence.request, evidence.report

    def equal(name: str, expected: Callable[[], Digest]) -> Check:
        return _equal(name, document["budget"]["assembly"][f"{name}Hash"], expected())

    checks = []
    if request is not None:
        checks.append(_made("request", lambda: equal("request", lambda: digest_bytes(request))))
    if report is not None and evidence.inputs is not None:
        checks.append(_made("inputs", partial(_check_inputs, report, evidence.inputs)))
    if report is not None:
        checks += [
            _made("report", lambda: equal("report", lambda: digest_bytes(report))),
            _made(
                "strategy",
                lambda: equal("strategy", lambda: digest_value(json.loads(report)["strategy"])),
            ),
            _made("scope", lambda: _check_scope(document, json.loads(report))),
            _made("access", lambda: _check_access(document, json.loads(report), evidence)),
        ]
    return checks


def _check_contents(document: dict[str, Any], texts: Mapping[str, str]) -> Check:
    erased = 0
    for item in document["items"]:
        text = texts.get(item["contentHash"])
        if text is None:
            erased += 1
        elif digest_text(text) != item["contentHash"]:
            return Check("contents", False, f"the text of rank {item['rank']} was changed")
    held = len(document["items"]) - erased
    return Check("contents", True, f"{held} texts match their digests, {erased} are erased")


def _check_budget(
    document: dict[str, Any],
    texts: Mapping[str, str] | None,
    count_tokens: Callable[[str, str], int],
) -> Check:
    budget, items = document["budget"], document["items"]
    total = sum(item["tokens"] for item in items)
    fail = partial(Check, "budget", False)
    if budget["usedTokens"] != total:
        return fail(f"usedTokens is {budget['usedTokens']}, the items sum to {total}")
    if total + budget.get("reservedForOutput", 0) > budget["maxTokens"]:
        return fail(f"{total} tokens and the reserve exceed maxTokens")
    places = list(range(1, len(items) + 1))
    if [item["rank"] for item in items] != places or sorted(_positions(items)) != places:
        return fail("the ranks are not 1, 2, 3 and so on, or the positions no order of them")
    if texts is None or any(item["contentHash"] not in texts for item in items):
        return Check("budget", True, f"{total} tokens; not counted again: texts are missing")
    blocks = blocks_of(items, texts)
    marker = fence_marker(blocks, (item["contentHash"] for item in items))
    rendered = render(in_prompt_order(items, blocks), marker, budget["format"])
    counted = count_rendered(rendered, lambda text: count_tokens(text, budget["encoding"]))
    wrong = _wrongly_counted(items, blocks, budget, count_tokens)
    if counted != total and wrong is None:
        wrong = f"the rendered context counts {counted} tokens, the items sum to {total}"
    if wrong is not None:
        return fail(wrong)
    return Check("budget", True, f"{total} tokens, counted again in {budget['encoding']}")


def _wrongly_counted(
    items: Sequence[Mapping[str, Any]],
    blocks: Sequence[Block],
    budget: Mapping[str, Any],
    count_tokens: Callable[[str, str], int],
) -> str | None:
    """The first item whose tokens are not those of its block, and its tier's envelope."""
    open_tiers = set()

    def count(text: str) -> int:
        return count_tokens(text, budget["encoding"])

    for item, block in zip(items, blocks, strict=True):
        tier = block.label.trust_tier
        tokens = header_tokens(block, count) + count(framed_body(block.text)) + footer_tokens(count)
        if tier not in open_tiers:
            tokens += envelope_tokens(tier, budget["format"], count)
        open_tiers.add(tier)
        if tokens != item["tokens"]:
            return f"the item of rank {item['rank']} counts {tokens} tokens, not {item['tokens']}"
    return None


def blocks_of(items: list[dict[str, Any]], texts: Mapping[str, str]) -> tuple[Block, ...]:
    """The blocks of a snapshot's items, from the document and the texts by content hash."""
    return tuple(
        Block(
            item["sourceId"],
            item["sourceRevision"],
            item["chunkId"],
            label_of(item),
            texts[item["contentHash"]],
        )
        for item in items
    )


def in_prompt_order(items: list[dict[str, Any]], blocks: Sequence[Block]) -> list[Block]:
    """The items' blocks as the prompt has them."""
    placed = sorted(zip(_positions(items), blocks, strict=True), key=lambda pair: pair[0])
    return [block for _, block in placed]


def _positions(items: Sequence[Mapping[str, Any]]) -> list[int]:
    """An item without a position stands in the prompt by its rank."""
    return [item.get("position", item["rank"]) for item in items]


def label_of(item: Mapping[str, Any]) -> Label:
    """The label of an item as far as the snapshot holds it: without access lists."""
    return Label(
        project=item["project"],
        knowledge_class=KnowledgeClass(item["class"]),
        classification=Classification(item["classification"]),
        trust_tier=TrustTier(item["trustTier"]),
    )


def _check_inputs(report: bytes, inputs: bytes) -> Check:
    """The recorded answers from outside are those that the report speaks of."""
    recorded = json.loads(inputs)
    # Which sources a view of the past left out is bound by nothing: it would tell of them.
    recorded.pop("hidden", None)
    return _equal("inputs", json.loads(report)["inputs"], digest_value(recorded))


def _check_scope(document: dict[str, Any], report: dict[str, Any]) -> Check:
    """The predicate is the scope's, every leg was given it, and it admits every item."""
    scope, recorded = document["scope"], report["scope"]
    predicate = predicate_of(recorded["predicate"])
    expected = predicate.digest
    if scope["policy"]["predicateHash"] != expected:
        return Check("scope", False, f"predicateHash should be {expected}")
    if {name: value for name, value in recorded.items() if name != "predicate"} != scope:
        return Check("scope", False, "the report speaks of another scope")
    if not _is_predicate_of(scope, predicate):
        return Check("scope", False, "the predicate differs from the scope")
    for leg in report["retrievers"]:
        if leg["status"] != "not-configured" and leg["predicateHash"] != expected:
            return Check("scope", False, f"retriever {leg['name']} was given another predicate")
    for item in document["items"]:
        retrieved = "indexVersion" in item
        if not predicate.admits_label(label_of(item)) or (
            retrieved and not predicate.sources.admit(item["sourceId"])
        ):
            return Check("scope", False, f"the item of rank {item['rank']} is out of scope")
    return Check("scope", True, f"{len(document['items'])} items are admitted by {expected}")


def _check_access(
    document: dict[str, Any],
    report: dict[str, Any],
    evidence: Evidence,
) -> Check:
    """The predicate admits every retrieved item by the label that is stored for it.

    That of a chunk from outside of the index stands in the answer that was recorded.
    """
    predicate = predicate_of(report["scope"]["predicate"])
    if evidence.labels is None:
        return Check("access", True, "not evaluated again: the stored labels are not at hand")
    external = external_legs(report)
    recorded = recorded_labels(json.loads(evidence.inputs or b"{}").get("retrievers", {}))
    retrieved = [item for item in document["items"] if "indexVersion" in item]
    for item in retrieved:
        name, leg = (item["project"], item["sourceId"]), leg_of(item["indexVersion"])
        if leg in external:
            label = recorded.get((leg, *name, item["chunkId"]))
        else:
            label = evidence.labels.get(name)
        if label is None:
            return Check("access", False, f"no label is stored for the item {item['rank']}")
        shown = replace(label, allow=None, deny=())
        if shown != label_of(item) or not predicate.admits(label, item["sourceId"]):
            return Check("access", False, f"the stored label of item {item['rank']} refuses it")
    return Check("access", True, f"the stored labels of {len(retrieved)} items admit them")


def _is_predicate_of(scope: Mapping[str, Any], predicate: Predicate) -> bool:
    groups = tuple(scope["groups"])
    made = AccessScope(scope["subject"], scope.get("agentId"), groups, predicate).to_contract()
    kept = {f"user:{scope['subject']}", *(f"group:{name}" for name in groups)}
    return (
        {**made, "policy": scope["policy"]} == scope
        and predicate.allow_principals == tuple(sorted(kept))
        and kept <= set(predicate.deny_principals)
    )


def predicate_of(document: Mapping[str, Any]) -> Predicate:
    """A predicate from its canonical form."""
    allow, floor = document["sources"]["allow"], document["minTrustTier"]
    return Predicate(
        tenant=document["tenantId"],
        projects=tuple(document["projects"]),
        allow_principals=tuple(document["allowPrincipals"]),
        deny_principals=tuple(document["denyPrincipals"]),
        classes=tuple(KnowledgeClass(name) for name in document["classes"]),
        max_classification=Classification(document["maxClassification"]),
        min_trust_tier=TrustTier(floor) if floor else None,
        sources=SourcePatterns(
            None if allow is None else tuple(allow), tuple(document["sources"]["deny"])
        ),
    )


def _made(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except _UNREADABLE as error:
        return _failed(name, error)


def _failed(name: str, error: Exception) -> Check:
    return Check(name, False, f"cannot be read: {type(error).__name__}: {error}"[:300])


def _equal(name: str, found: object, expected: object) -> Check:
    same = found == expected
    return Check(name, same, str(expected) if same else f"found {found}, recomputed {expected}")
