"""Strategies: named, versioned recipes for assembling a snapshot.

Guarantees: a recipe is validated whole when it loads, unknown keys included; what it
says is what its digest covers.
"""

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from app.canonical import Digest, JsonObject, digest_value
from app.errors import ConfigurationError, InvalidRequestError
from app.packing.packer import ClassShare, PackingRules
from app.scope.vocabulary import KnowledgeClass

_SHIPPED = Path(__file__).parent / "recipes"


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class RetrieverStep(_Part):
    """One leg: how many candidates, how long, how much it counts, what if it fails."""

    name: str
    limit: int = Field(100, ge=1, le=1000)
    weight: int = Field(1, ge=1, le=1000)
    deadline_ms: int = Field(5000, ge=1, le=60_000)
    on_failure: Literal["fail", "degrade"] = "fail"


class Fusion(_Part):
    """Reciprocal rank fusion; a greater k levels the ranks."""

    k: int = Field(60, ge=1, le=1000)


class Share(_Part):
    min_permille: int = Field(0, ge=0, le=1000)
    max_permille: int = Field(1000, ge=0, le=1000)


class PackingStep(_Part):
    class_shares: dict[KnowledgeClass, Share] = Field(default_factory=dict)
    max_chunks_per_source: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _shares_can_be_met(self) -> Self:
        if sum(share.min_permille for share in self.class_shares.values()) > 1000:
            raise ValueError("the minimum shares of all classes exceed 1000 per mille")
        for name, share in self.class_shares.items():
            if share.min_permille > share.max_permille:
                raise ValueError(f"class {name}: the minimum share exceeds the maximum")
        return self

    def rules(self) -> PackingRules:
        return PackingRules(
            class_shares={
                name: ClassShare(share.min_permille, share.max_permille)
                for name, share in self.class_shares.items()
            },
            max_chunks_per_source=self.max_chunks_per_source,
        )


class BudgetDefaults(_Part):
    max_tokens: int = Field(8000, ge=1)
    reserved_for_output: int = Field(1000, ge=0)
    encoding: str = "o200k_base"
    format: Literal["text", "messages"] = "text"


class Strategy(_Part):
    """A recipe as its YAML file has it."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    version: int = Field(ge=1)
    description: str
    retrievers: tuple[RetrieverStep, ...] = Field(min_length=1)
    fusion: Fusion = Fusion()
    packing: PackingStep = PackingStep()
    budget: BudgetDefaults = BudgetDefaults()

    @property
    def name(self) -> str:
        """`id@version`, as a snapshot records it."""
        return f"{self.id}@{self.version}"

    def canonical(self) -> JsonObject:
        document: JsonObject = self.model_dump(mode="json", by_alias=True)
        return document

    def digest(self) -> Digest:
        return digest_value(self.canonical())


class StrategyCatalog:
    """The strategies that a service offers: those that ship, and those of a folder."""

    def __init__(self, strategies: tuple[Strategy, ...]) -> None:
        self._by_name: dict[str, Strategy] = {}
        # Ascending versions: the plain id ends up naming the newest.
        for strategy in sorted(strategies, key=lambda one: (one.id, one.version)):
            if strategy.name in self._by_name:
                raise ConfigurationError(f"Two strategies are named {strategy.name}.")
            self._by_name[strategy.name] = strategy
            self._by_name[strategy.id] = strategy

    @classmethod
    def load(cls, folder: Path | None, retrievers: frozenset[str]) -> "StrategyCatalog":
        """Read all recipes; every retriever they name must be one of `retrievers`."""
        folders = [_SHIPPED, *([folder] if folder else [])]
        catalog = cls(
            tuple(load_strategy(path) for one in folders for path in sorted(one.glob("*.yaml")))
        )
        for strategy in catalog.all():
            for step in strategy.retrievers:
                if step.name not in retrievers:
                    raise ConfigurationError(
                        f"Strategy {strategy.name} names the retriever {step.name!r}, which is "
                        f"not configured; known are: {', '.join(sorted(retrievers))}."
                    )
        return catalog

    def all(self) -> tuple[Strategy, ...]:
        """Every strategy once, by id and version."""
        every = (one for name, one in self._by_name.items() if name == one.name)
        return tuple(sorted(every, key=lambda one: (one.id, one.version)))

    def resolve(self, name: str) -> Strategy:
        """By `id` (the newest version) or `id@version`; InvalidRequestError when unknown."""
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(one.name for one in self.all())
            raise InvalidRequestError(
                f"Unknown strategy; known are: {known}.",
                pointers=("/strategy",),
                code="unknown-strategy",
            ) from None


def load_strategy(path: Path) -> Strategy:
    """Raises ConfigurationError with the file and what is wrong in it."""
    try:
        return Strategy.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Strategy file {path.name}: {error}") from error
