"""What goes into one assembly: the question, its scope, and the answers from outside."""

from dataclasses import dataclass

from app.canonical import Digest, JsonObject
from app.packing.packer import PackingRules
from app.retrieval.candidate import Chunk
from app.retrieval.fan_out import LegOutcome
from app.retrieval.fusion import FusedCandidate
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
    optional_pins: frozenset[tuple[str, str, str]] = frozenset()
    """Identities of pinned chunks that may be left out when they do not fit."""
