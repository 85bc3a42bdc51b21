"""The bodies of the index calls, and their way into the core."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from app.api.shared_schemas import (
    ChunkId,
    Language,
    Project,
    ProvenanceText,
    Revision,
    SourceId,
    project_or_only,
)
from app.api.snapshot_schemas import lower_classification, lower_tier
from app.api.strict_model import Instant, StrictModel
from app.errors import InvalidRequestError
from app.indexing.source import ChunkDraft, SourceDraft
from app.scope.grant import Grant
from app.scope.label import Label
from app.scope.vocabulary import ALL_PROJECTS, Classification, KnowledgeClass, TrustTier

MAX_SOURCES = 10_000
MAX_CHUNKS = 10_000
MAX_PRINCIPALS = 1000
MAX_LINKS = 1000

Principal = Annotated[str, Field(pattern=r"^(user|group):.+$", max_length=264)]


class AclBody(StrictModel):
    """Who may read: `user:…` and `group:…`. Deny wins; an empty allow list allows nobody."""

    allow: tuple[Principal, ...] | None = Field(None, max_length=MAX_PRINCIPALS)
    deny: tuple[Principal, ...] = Field((), max_length=MAX_PRINCIPALS)


class ChunkBody(StrictModel):
    chunk_id: ChunkId
    text: str


class SourceBody(StrictModel):
    """One source: a text to be cut, or chunks that the writer cut."""

    source_id: SourceId
    source_revision: Revision
    class_: KnowledgeClass = Field(alias="class")
    project: Project | None = None
    text: str | None = None
    chunks: tuple[ChunkBody, ...] | None = Field(None, max_length=MAX_CHUNKS)
    media_type: Annotated[str, Field(pattern=r"^[\w.+-]+/[\w.+-]+$", max_length=128)] | None = None
    classification: Classification | None = Field(
        None, description="Absent: internal, or the grant's ceiling if lower."
    )
    trust_tier: TrustTier | None = Field(
        None, description="Absent: trusted-knowledge, or the grant's if lower."
    )
    acl: AclBody = AclBody()
    expires_at: Instant | None = None
    language: Language | None = None
    provenance: ProvenanceText | None = None
    links: tuple[SourceId, ...] = Field((), max_length=MAX_LINKS)

    @model_validator(mode="after")
    def _text_or_chunks(self) -> Self:
        if (self.text is None) == (self.chunks is None):
            raise PydanticCustomError(
                "text_or_chunks", "Give either text, which is cut here, or chunks."
            )
        ids = [chunk.chunk_id for chunk in self.chunks or ()]
        if len(set(ids)) < len(ids):
            raise PydanticCustomError("chunk_ids", "Each chunkId stands once in a source.")
        return self

    def to_core(self, grant: Grant, pointer: str) -> SourceDraft:
        only = grant.projects[0] if len(grant.projects) == 1 else None
        only = None if only == ALL_PROJECTS else only
        allow = self.acl.allow
        chunks = None
        if self.chunks is not None:
            chunks = tuple(ChunkDraft(chunk.chunk_id, chunk.text) for chunk in self.chunks)
        return SourceDraft(
            source_id=self.source_id,
            revision=self.source_revision,
            label=Label(
                project=project_or_only(self.project, only, f"{pointer}/project"),
                knowledge_class=self.class_,
                classification=self.classification or lower_classification(grant),
                trust_tier=self.trust_tier or lower_tier(TrustTier.TRUSTED_KNOWLEDGE, grant),
                allow=None if allow is None else tuple(sorted(set(allow))),
                deny=tuple(sorted(set(self.acl.deny))),
            ),
            text=self.text,
            chunks=chunks,
            media_type=self.media_type,
            language=self.language,
            provenance=self.provenance,
            expires_at=self.expires_at,
            links=self.links,
        )


class PutSourcesBody(StrictModel):
    """Sources to add or replace, all or none."""

    sources: tuple[SourceBody, ...] = Field(min_length=1, max_length=MAX_SOURCES)

    def to_core(self, grant: Grant) -> tuple[SourceDraft, ...]:
        """Raises InvalidRequestError for a source that stands twice."""
        drafts = tuple(
            source.to_core(grant, f"/sources/{at}") for at, source in enumerate(self.sources)
        )
        first_at: dict[tuple[str, str], int] = {}
        for at, draft in enumerate(drafts):
            first = first_at.setdefault((draft.label.project, draft.source_id), at)
            if first != at:
                raise InvalidRequestError(
                    f"/sources/{at} is the same source as /sources/{first}: send each once.",
                    pointers=(f"/sources/{at}/sourceId",),
                    code="source-repeated",
                )
        return drafts


class SourceChangeBody(StrictModel):
    """What became of one source."""

    project: str
    source_id: str
    chunks: int
    unchanged: bool


class IndexChangeBody(StrictModel):
    """The tenant's index version after the call."""

    index_version: int
    sources: tuple[SourceChangeBody, ...]


class DeletedBody(StrictModel):
    index_version: int


class IndexedSourceBody(StrictModel):
    """A live source."""

    source_id: str
    source_revision: str
    project: str
    class_: KnowledgeClass = Field(alias="class")
    classification: Classification
    trust_tier: TrustTier
    chunks: int
    media_type: str | None = None
    language: str | None = None
    provenance: str | None = None
    expires_at: Instant | None = None


class SourcePageBody(StrictModel):
    sources: tuple[IndexedSourceBody, ...]
    next_cursor: str | None = None


class IndexBody(StrictModel):
    """The index as the caller's grant sees it."""

    visible_version: str
    sources: int
    chunks: int
    engine: str
    embedding_profile: str | None = None
    index_version: int | None = Field(None, description="Given to those who may write.")
