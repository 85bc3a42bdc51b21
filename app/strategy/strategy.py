"""Strategies: named, versioned recipes for assembling a snapshot.

Guarantees: a recipe is validated whole when it loads: unknown keys, keys that stand twice,
and numbers in quotes are refused, and so are retrievers and encodings that this service
does not have. What a recipe says is what its digest covers.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from app.canonical import Digest, JsonObject, digest_value
from app.errors import ConfigurationError, InvalidRequestError
from app.packing.filling import ClassShare, PackingRules, PromptOrder
from app.packing.value import MOST_PRIORITY, ValueRule
from app.retrieval.freshness import StalePolicy
from app.scope.vocabulary import KnowledgeClass

_SHIPPED = Path(__file__).parent / "recipes"

Whole = Annotated[int, Field(strict=True)]
_MOST = 2**31 - 1
APPROXIMATE = "approximate"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class RetrieverStep(_Part):
    """One leg: how many candidates, how long, how much it counts, what if it fails.

    An `optional` one is left out where the service has no such retriever.
    """

    name: str
    limit: Whole = Field(100, ge=1, le=1000)
    weight: Whole = Field(1, ge=1, le=1000)
    deadline_ms: Whole = Field(5000, ge=1, le=60_000)
    on_failure: Literal["fail", "degrade"] = "fail"
    optional: bool = Field(False, strict=True)


class Fusion(_Part):
    """How rankings become one: by their ranks (a greater k levels them), or by their scores."""

    method: Literal["reciprocal-rank", "normalised-scores"] = "reciprocal-rank"
    k: Whole = Field(60, ge=1, le=1000)


class Rerank(_Part):
    """The best `limit` of the fused ranking are put in order by the re-ranking endpoint.

    An `optional` step is left out where the service has no such endpoint.
    """

    limit: Whole = Field(50, ge=1, le=1000)
    deadline_ms: Whole = Field(5000, ge=1, le=60_000)
    on_failure: Literal["fail", "degrade"] = "fail"
    optional: bool = Field(False, strict=True)


class Expansion(_Part):
    """Neighbours of what was found: sources that are linked to the best ones and the pins.

    `seeds` of the ranking are followed for `hops` links; each hop keeps `damping_permille`
    of the score; at most `limit` chunks come in that way. The request goes on without them
    when they are not found in time.
    """

    hops: Whole = Field(1, ge=1, le=4)
    seeds: Whole = Field(10, ge=1, le=100)
    limit: Whole = Field(20, ge=1, le=1000)
    damping_permille: Whole = Field(500, ge=1, le=1000)
    deadline_ms: Whole = Field(5000, ge=1, le=60_000)


class Dedupe(_Part):
    """Texts whose signatures differ in at most so many of 64 bits count as the same; None: only
    equal texts do.
    """

    max_different_bits: Whole | None = Field(None, ge=0, le=16)


class Freshness(_Part):
    """What becomes of a chunk whose source has expired or has a newer revision."""

    stale: StalePolicy = "allow"


class Share(_Part):
    """A class's part of the budget that required items leave, and how many times it counts."""

    min_permille: Whole = Field(0, ge=0, le=1000)
    max_permille: Whole = Field(1000, ge=0, le=1000)
    priority: Whole = Field(1, ge=1, le=MOST_PRIORITY)


class Compression(_Part):
    """Of a candidate without room, what stays of its tokens at least."""

    min_permille: Whole = Field(25, ge=1, le=1000)


class PackingStep(_Part):
    """What is chosen of the candidates, and in which order the prompt has it.

    `value` is what a candidate's worth comes from: its rank, or its score where fusion makes
    scores that say how good it is. Below `min_relevance_permille` of the best one's score
    nothing is taken. `diversity_permille` is how much of its worth a text loses to one like it
    that ranks before it. The order `source` keeps chunks of one source together. With
    `compression` candidates that the rest of the room is too small for are shortened to their
    sentences nearest to the query.
    """

    class_shares: dict[KnowledgeClass, Share] = Field(default_factory=dict)
    max_chunks_per_source: Whole | None = Field(None, ge=1, le=_MOST)
    value: ValueRule = "ranks"
    min_relevance_permille: Whole = Field(0, ge=0, le=1000)
    diversity_permille: Whole = Field(0, ge=0, le=1000)
    order: PromptOrder = "rank"
    compression: Compression | None = None

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
                name: ClassShare(share.min_permille, share.max_permille, share.priority)
                for name, share in self.class_shares.items()
            },
            max_chunks_per_source=self.max_chunks_per_source,
            value=self.value,
            min_relevance_permille=self.min_relevance_permille,
            diversity_permille=self.diversity_permille,
            order=self.order,
            min_compressed_permille=None
            if self.compression is None
            else self.compression.min_permille,
        )


class BudgetDefaults(_Part):
    max_tokens: Whole = Field(8000, ge=1, le=_MOST)
    reserved_for_output: Whole = Field(1000, ge=0, le=_MOST)
    encoding: str = "o200k_base"
    format: Literal["text", "messages"] = "text"


class Strategy(_Part):
    """A recipe as its YAML file has it."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    version: Whole = Field(ge=1, le=_MOST)
    # Neither NUL nor half of a surrogate pair, which YAML can spell and a digest cannot hold.
    description: str = Field(pattern=r"^[^\x00]*$")
    retrievers: tuple[RetrieverStep, ...] = Field(min_length=1)
    fusion: Fusion = Fusion()
    rerank: Rerank | None = None
    expansion: Expansion | None = None
    dedupe: Dedupe = Dedupe()
    freshness: Freshness = Freshness()
    packing: PackingStep = PackingStep()
    budget: BudgetDefaults = BudgetDefaults()

    @field_validator("retrievers")
    @classmethod
    def _each_once(cls, steps: tuple[RetrieverStep, ...]) -> tuple[RetrieverStep, ...]:
        names = [step.name for step in steps]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} stands more than once")
        return steps

    @model_validator(mode="after")
    def _approximate_says_so(self) -> Self:
        """What approximate search finds depends on what a caller may not know about."""
        named = next((step.name for step in self.retrievers if APPROXIMATE in step.name), None)
        if named is not None and APPROXIMATE not in self.id:
            raise ValueError(
                f"the retriever {named!r} is for strategies whose id contains {APPROXIMATE!r}"
            )
        return self

    @model_validator(mode="after")
    def _scores_have_a_meaning(self) -> Self:
        """Reciprocal ranks do not say how good a candidate is."""
        if self.packing.value == "scores" and self.fusion.method != "normalised-scores":
            raise ValueError(
                "packing.value: scores needs fusion.method: normalised-scores; or take ranks"
            )
        return self

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
    def load(
        cls,
        folder: Path | None,
        *,
        retrievers: Collection[str],
        encodings: Collection[str],
        reranks: bool = False,
    ) -> "StrategyCatalog":
        """Read all recipes, which may use these retrievers and encodings, and re-rank or not.

        Raises ConfigurationError naming the file and the field.
        """
        if folder is not None and not folder.is_dir():
            raise ConfigurationError(f"The folder of strategies {folder} does not exist.")
        folders = [_SHIPPED, *([folder] if folder else [])]
        strategies = []
        for path in (path for one in folders for path in sorted(one.glob("*.yaml"))):
            strategy = load_strategy(path)
            for at, step in enumerate(strategy.retrievers):
                if step.optional:
                    continue
                _refuse_unknown(path, f"retrievers.{at}.name", step.name, retrievers)
            if strategy.rerank is not None and not (reranks or strategy.rerank.optional):
                raise ConfigurationError(
                    f"Strategy file {path.name}: rerank: this service has no re-ranking endpoint; "
                    f"set CTXSNAP_RERANKING, or make the step optional."
                )
            _refuse_unknown(path, "budget.encoding", strategy.budget.encoding, encodings)
            strategies.append(strategy)
        return cls(tuple(strategies))

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
    """Raises ConfigurationError with the file, the fields, and what is wrong in them."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_RecipeLoader)  # noqa: S506
        return Strategy.model_validate(content)
    except ValidationError as error:
        faults = (f"{_place(fault['loc'])}: {fault['msg']}" for fault in error.errors())
        raise ConfigurationError(f"Strategy file {path.name}: {'; '.join(faults)}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Strategy file {path.name}: {error}") from error


class _RecipeLoader(yaml.SafeLoader):
    """YAML forbids a key that stands twice in a mapping; PyYAML lets the last one win."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.composer.ComposerError(
                    None, None, f"the key {key.value} stands twice", key.start_mark
                )
            seen.add(key.value)
        return mapping


def _place(steps: Sequence[int | str]) -> str:
    return ".".join(str(step) for step in steps) or "the whole"


def _refuse_unknown(path: Path, field: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ConfigurationError(
            f"Strategy file {path.name}: {field}: {name!r} is not known here; known are: "
            f"{', '.join(sorted(known))}."
        )
