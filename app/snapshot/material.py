"""What goes into one assembly: the question, its scope, and the answers from outside."""

from dataclasses import dataclass, field
from datetime import datetime

from app.canonical import Digest, JsonObject
from app.packing.filling import PackingRules
from app.retrieval.candidate import Chunk
from app.retrieval.fan_out import LegOutcome
from app.retrieval.freshness import StalePolicy
from app.retrieval.fusion import FusedCandidate, FusionMethod
from app.retrieval.reranking import Reranking
from app.scope.access import AccessScope
from app.snapshot.request import CreateSnapshot, InlineItem
from app.snapshot.snapshot import Budget, Exclusion


@dataclass(frozen=True, slots=True)
class Recipe:
    """What assembly needs of a strategy."""

    name: str
    digest: Digest
    document: JsonObject
    rules: PackingRules
    fusion_k: int
    stale: StalePolicy = "allow"
    fusion_method: FusionMethod = "reciprocal-rank"
    max_different_bits: int | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """Everything that went in: the question, its scope, and the answers from outside."""

    request: CreateSnapshot
    scope: AccessScope
    recipe: Recipe
    budget: Budget
    engine: str
    visible_version: str
    inline: tuple[InlineItem, ...]
    pinned: tuple[Chunk, ...]
    outcomes: tuple[LegOutcome, ...]
    ranked: tuple[FusedCandidate, ...]
    refused: tuple[Exclusion, ...]
    evaluated_at: datetime
    inputs: JsonObject = field(default_factory=dict)
    """Answers from outside, by retriever, and what else a replay needs to know."""
    not_configured: tuple[str, ...] = ()
    """Optional legs of the strategy that the service does not have."""
    optional_pins: frozenset[tuple[str, str, str]] = frozenset()
    """Identities of pinned chunks that may be left out when they do not fit."""
    reranking: Reranking | None = None
    """None where the strategy has no such step, or there is no query."""

    @property
    def all_outcomes(self) -> tuple[LegOutcome, ...]:
        """Of the legs, and of the re-ranking where it failed."""
        failed = None if self.reranking is None else self.reranking.failed
        return self.outcomes if failed is None else (*self.outcomes, failed)
