"""What a caller asks for, as the core knows it, and its canonical form.

Guarantees: the canonical request holds digests in place of texts, so that it can be kept
and hashed after its texts are erased; equal requests have equal canonical bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.canonical import JsonObject, JsonValue, digest_text
from app.retrieval.retriever import Pin
from app.scope.access import RequestedScope, SourcePatterns
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier


@dataclass(frozen=True, slots=True)
class InlineItem:
    """A text that the caller brings along; it counts before anything retrieved."""

    source_id: str
    revision: str
    chunk_id: str
    label: Label
    text: str
    provenance: str | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class RequestedBudget:
    """Bounds of a request; None leaves the strategy's own."""

    max_tokens: int | None = None
    reserved_for_output: int | None = None
    encoding: str | None = None
    model: str | None = None
    format: str | None = None


@dataclass(frozen=True, slots=True)
class AsOf:
    """The index as it was: for a snapshot (its hash or id), or at a version of the index."""

    snapshot: str | None = None
    index_version: int | None = None

    def canonical(self) -> JsonObject:
        return {"snapshot": self.snapshot, "indexVersion": self.index_version}


@dataclass(frozen=True, slots=True)
class CreateSnapshot:
    """One request for one attempt; ids are UUIDs in lower case."""

    run_id: str
    step_id: str | None
    attempt_id: str
    strategy: str
    query: str | None
    language: str | None
    scope: RequestedScope
    budget: RequestedBudget
    items: tuple[InlineItem, ...]
    pins: tuple[Pin, ...]
    as_of: AsOf | None = None

    def canonical(self) -> JsonObject:
        return {
            "runId": self.run_id,
            "stepId": self.step_id,
            "attemptId": self.attempt_id,
            "strategy": self.strategy,
            "query": None if self.query is None else digest_text(self.query),
            "language": self.language,
            "scope": _canonical_scope(self.scope),
            "budget": {
                "maxTokens": self.budget.max_tokens,
                "reservedForOutput": self.budget.reserved_for_output,
                "encoding": self.budget.encoding,
                "model": self.budget.model,
                "format": self.budget.format,
            },
            "items": [_canonical_item(item) for item in self.items],
            "pins": [
                {
                    "project": pin.project,
                    "sourceId": pin.source_id,
                    "chunkId": pin.chunk_id,
                    "required": pin.required,
                }
                for pin in self.pins
            ],
            "asOf": None if self.as_of is None else self.as_of.canonical(),
        }

    def texts(self) -> tuple[str, ...]:
        """The texts that only this request holds: the query and the inline items."""
        query = () if self.query is None else (self.query,)
        return (*query, *(item.text for item in self.items))


def request_from(document: Mapping[str, Any], texts: Mapping[str, str]) -> CreateSnapshot:
    """The request of a canonical form, with its texts by digest.

    Raises KeyError for a text that is missing.
    """
    scope, budget, as_of = document["scope"], document["budget"], document["asOf"]
    return CreateSnapshot(
        run_id=document["runId"],
        step_id=document["stepId"],
        attempt_id=document["attemptId"],
        strategy=document["strategy"],
        query=None if document["query"] is None else texts[document["query"]],
        language=document["language"],
        scope=_scope_from(scope),
        budget=RequestedBudget(
            max_tokens=budget["maxTokens"],
            reserved_for_output=budget["reservedForOutput"],
            encoding=budget["encoding"],
            model=budget["model"],
            format=budget["format"],
        ),
        items=tuple(_item_from(item, texts[item["text"]]) for item in document["items"]),
        pins=tuple(
            Pin(pin["project"], pin["sourceId"], pin["chunkId"], pin["required"])
            for pin in document["pins"]
        ),
        as_of=None if as_of is None else AsOf(as_of["snapshot"], as_of["indexVersion"]),
    )


def _scope_from(document: Mapping[str, Any]) -> RequestedScope:
    def names(name: str) -> tuple[str, ...] | None:
        found = document[name]
        return None if found is None else tuple(found)

    classes = names("classes")
    ceiling, floor = document["maxClassification"], document["minTrustTier"]
    allow = document["sources"]["allow"]
    return RequestedScope(
        projects=names("projects"),
        groups=names("groups"),
        classes=None if classes is None else tuple(map(KnowledgeClass, classes)),
        max_classification=ceiling and Classification(ceiling),
        min_trust_tier=floor and TrustTier(floor),
        sources=SourcePatterns(
            None if allow is None else tuple(allow), tuple(document["sources"]["deny"] or ())
        ),
    )


def _item_from(document: Mapping[str, Any], text: str) -> InlineItem:
    allow = document["allow"]
    return InlineItem(
        source_id=document["sourceId"],
        revision=document["sourceRevision"],
        chunk_id=document["chunkId"],
        label=Label(
            project=document["project"],
            knowledge_class=KnowledgeClass(document["class"]),
            classification=Classification(document["classification"]),
            trust_tier=TrustTier(document["trustTier"]),
            allow=None if allow is None else tuple(allow),
            deny=tuple(document["deny"]),
        ),
        text=text,
        provenance=document["provenance"],
        required=document["required"],
    )


def _canonical_scope(scope: RequestedScope) -> JsonObject:
    return {
        "projects": _sorted(scope.projects),
        "groups": _sorted(scope.groups),
        "classes": _sorted(scope.classes),
        "maxClassification": scope.max_classification and scope.max_classification.value,
        "minTrustTier": scope.min_trust_tier and scope.min_trust_tier.value,
        "sources": {
            "allow": _sorted(scope.sources.allow),
            "deny": _sorted(scope.sources.deny),
        },
    }


def _sorted(names: tuple[str, ...] | None) -> JsonValue:
    return None if names is None else sorted({str(name) for name in names})


def _canonical_item(item: InlineItem) -> JsonObject:
    return {
        **item.label.canonical(),
        "sourceId": item.source_id,
        "sourceRevision": item.revision,
        "chunkId": item.chunk_id,
        "text": digest_text(item.text),
        "provenance": item.provenance,
        "required": item.required,
    }
