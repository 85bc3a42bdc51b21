"""The body of POST /snapshots, and its way into the core."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from app.api.shared_schemas import (
    SNAPSHOT_REF,
    ChunkId,
    Language,
    Project,
    ProvenanceText,
    Revision,
    SourceId,
    project_or_only,
)
from app.api.strict_model import PositiveTokens, StrictModel, Tokens, Uuid
from app.retrieval.retriever import Pin
from app.scope.access import RequestedScope, SourcePatterns
from app.scope.grant import Grant
from app.scope.label import Label
from app.scope.vocabulary import ALL_PROJECTS, Classification, KnowledgeClass, TrustTier
from app.snapshot.request import AsOf, CreateSnapshot, InlineItem, RequestedBudget

MAX_ITEMS = 1000
MAX_PATTERNS = 1000
MAX_NAMES = 1000
MAX_QUERY_CHARS = 32_768

Name = Annotated[str, Field(min_length=1, max_length=128)]
SnapshotRef = Annotated[str, Field(pattern=f"^(?:{SNAPSHOT_REF})$")]


def _visible_ascii(value: str) -> str:
    if _IDEMPOTENCY_KEY.fullmatch(value) is None:
        raise PydanticCustomError(
            "idempotency_key", "Must be 1 to 255 visible ASCII characters, without spaces."
        )
    return value


_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")
IdempotencyKey = Annotated[
    str,
    AfterValidator(_visible_ascii),
    WithJsonSchema({"type": "string", "pattern": f"^{_IDEMPOTENCY_KEY.pattern}$"}),
]
IndexVersionNumber = Annotated[int, Field(ge=0, le=2**53 - 1)]
Pattern = Annotated[str, Field(min_length=1, max_length=1024)]


class SourcesBody(StrictModel):
    """A narrowing to source ids; `*` stands for any run of characters."""

    allow: tuple[Pattern, ...] | None = Field(None, max_length=MAX_PATTERNS)
    deny: tuple[Pattern, ...] = Field((), max_length=MAX_PATTERNS)


class ScopeBody(StrictModel):
    """What to take away from the token's grant; it never adds."""

    projects: tuple[Name, ...] | None = Field(None, max_length=MAX_NAMES)
    groups: tuple[Name, ...] | None = Field(None, max_length=MAX_NAMES)
    classes: tuple[KnowledgeClass, ...] | None = Field(None, max_length=MAX_NAMES)
    max_classification: Classification | None = None
    min_trust_tier: TrustTier | None = None
    sources: SourcesBody = SourcesBody()

    @model_validator(mode="after")
    def _star_stands_alone(self) -> Self:
        projects = self.projects or ()
        if ALL_PROJECTS in projects and set(projects) != {ALL_PROJECTS}:
            raise PydanticCustomError(
                "projects_star", 'In projects, "*" means every project and stands alone.'
            )
        return self

    def to_core(self) -> RequestedScope:
        return RequestedScope(
            projects=self.projects,
            groups=self.groups,
            classes=self.classes,
            max_classification=self.max_classification,
            min_trust_tier=self.min_trust_tier,
            sources=SourcePatterns(self.sources.allow, self.sources.deny),
        )


class BudgetBody(StrictModel):
    """Tokens to spend; what is absent comes from the strategy."""

    max_tokens: PositiveTokens | None = None
    reserved_for_output: Tokens | None = None
    encoding: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="A model's name, in place of its encoding."
    )
    format: Literal["text", "messages"] | None = None

    def to_core(self) -> RequestedBudget:
        return RequestedBudget(
            max_tokens=self.max_tokens,
            reserved_for_output=self.reserved_for_output,
            encoding=self.encoding,
            model=self.model,
            format=self.format,
        )


class ItemBody(StrictModel):
    """A text that comes with the request."""

    class_: KnowledgeClass = Field(alias="class")
    source_id: SourceId
    source_revision: Revision
    chunk_id: ChunkId
    text: str
    project: Project | None = None
    trust_tier: TrustTier | None = Field(None, description="Absent: user, or the grant's.")
    classification: Classification | None = Field(
        None, description="Absent: internal, or the grant's ceiling if lower."
    )
    provenance: ProvenanceText | None = None
    required: bool = True

    def to_core(self, grant: Grant, only_project: str | None, pointer: str) -> InlineItem:
        tier = self.trust_tier or lower_tier(TrustTier.USER, grant)
        return InlineItem(
            source_id=self.source_id,
            revision=self.source_revision,
            chunk_id=self.chunk_id,
            label=Label(
                project=project_or_only(self.project, only_project, f"{pointer}/project"),
                knowledge_class=self.class_,
                classification=self.classification or lower_classification(grant),
                trust_tier=tier,
            ),
            text=self.text,
            provenance=self.provenance,
            required=self.required,
        )


class PinBody(StrictModel):
    """A source that must be in: all of its chunks, or one of them."""

    source_id: SourceId
    project: Project | None = None
    chunk_id: ChunkId | None = None
    required: bool = True


class AsOfBody(StrictModel):
    """The index as it was for a snapshot that the caller can read, or at a version."""

    snapshot: SnapshotRef | None = Field(None, description="A snapshot's hash or id.")
    index_version: IndexVersionNumber | None = Field(
        None, description="Needs the permission `index:write`."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.snapshot is None) == (self.index_version is None):
            raise PydanticCustomError("as_of", "Give either snapshot or indexVersion.")
        return self


class CreateSnapshotBody(StrictModel):
    """One request for one attempt."""

    run_id: Uuid
    step_id: Uuid | None = None
    attempt_id: Uuid
    strategy: Annotated[str, Field(min_length=1, max_length=128)] = "default"
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS)] | None = None
    language: Language | None = None
    scope: ScopeBody = ScopeBody()
    budget: BudgetBody = BudgetBody()
    items: tuple[ItemBody, ...] = Field((), max_length=MAX_ITEMS)
    pins: tuple[PinBody, ...] = Field((), max_length=MAX_ITEMS)
    as_of: AsOfBody | None = None

    def to_core(self, grant: Grant) -> CreateSnapshot:
        """Raises InvalidRequestError where a project is missing."""
        projects = grant.projects if self.scope.projects is None else self.scope.projects
        only = projects[0] if len(set(projects)) == 1 and projects[0] != ALL_PROJECTS else None
        return CreateSnapshot(
            run_id=self.run_id,
            step_id=self.step_id,
            attempt_id=self.attempt_id,
            strategy=self.strategy,
            query=self.query,
            language=self.language,
            scope=self.scope.to_core(),
            budget=self.budget.to_core(),
            items=tuple(
                item.to_core(grant, only, f"/items/{at}") for at, item in enumerate(self.items)
            ),
            pins=tuple(
                Pin(
                    project=project_or_only(pin.project, only, f"/pins/{at}/project"),
                    source_id=pin.source_id,
                    chunk_id=pin.chunk_id,
                    required=pin.required,
                )
                for at, pin in enumerate(self.pins)
            ),
            as_of=None
            if self.as_of is None
            else AsOf(self.as_of.snapshot, self.as_of.index_version),
        )


def lower_tier(usual: TrustTier, grant: Grant) -> TrustTier:
    """The usual tier, or the highest that the grant may assign where that is lower."""
    return max(usual, grant.max_trust_tier, key=lambda tier: tier.rank)


def lower_classification(grant: Grant) -> Classification:
    """`internal`, or the grant's ceiling where that is lower."""
    return min(Classification.INTERNAL, grant.max_classification, key=lambda level: level.rank)
