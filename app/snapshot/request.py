"""What a caller asks for, as the core knows it, and its canonical form.

Guarantees: the canonical request holds digests in place of texts, so that it can be kept
and hashed after its texts are erased; equal requests have equal canonical bytes.
"""

from dataclasses import dataclass

from app.canonical import JsonObject, JsonValue, digest_text
from app.retrieval.retriever import Pin
from app.scope.access import RequestedScope
from app.scope.label import Label


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
        }

    def texts(self) -> tuple[str, ...]:
        """The texts that only this request holds: the query and the inline items."""
        query = () if self.query is None else (self.query,)
        return (*query, *(item.text for item in self.items))


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
