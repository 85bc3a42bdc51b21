"""The bodies of the index calls, and their way into the core."""

from collections.abc import Sequence
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
MAX_SOURCE_BYTES = 8 * 1024 * 1024
"""Of all texts of one source, in UTF-8: a larger one is a load, not a document."""
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
        chunks = self.chunks or ()
        if len({chunk.chunk_id for chunk in chunks}) < len(chunks):
            raise PydanticCustomError("chunk_ids", "Each chunkId stands once in a source.")
        texts = (self.text or "", *(chunk.text for chunk in chunks))
        if sum(len(text.encode()) for text in texts) > MAX_SOURCE_BYTES:
            raise PydanticCustomError(
                "source_too_long",
                "Must have texts of at most {max_bytes} bytes in UTF-8 in all: split the source.",
                {"max_bytes": MAX_SOURCE_BYTES},
            )
        return self

    def to_core(self, grant: Grant, pointer: str) -> SourceDraft:
        allow = self.acl.allow
        chunks = None
        if self.chunks is not None:
            chunks = tuple(ChunkDraft(chunk.chunk_id, chunk.text) for chunk in self.chunks)
        return SourceDraft(
            source_id=self.source_id,
            revision=self.source_revision,
            label=Label(
                project=project_or_only(self.project, only_project(grant), f"{pointer}/project"),
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
        refuse_repeated([(draft.label.project, draft.source_id) for draft in drafts], "/sources")
        return drafts


def only_project(grant: Grant) -> str | None:
    """The project that may be left out: the only one that the grant names."""
    only = grant.projects[0] if len(grant.projects) == 1 else None
    return None if only == ALL_PROJECTS else only


def refuse_repeated(names: Sequence[tuple[str, str]], pointer: str) -> None:
    """Raise InvalidRequestError where `<pointer>/<position>` names a source once more."""
    first_at: dict[tuple[str, str], int] = {}
    for at, name in enumerate(names):
        first = first_at.setdefault(name, at)
        if first != at:
            raise InvalidRequestError(
                f"{pointer}/{at} is the same source as {pointer}/{first}: send each once.",
                pointers=(f"{pointer}/{at}/sourceId",),
                code="source-repeated",
            )


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


class ReindexedBody(StrictModel):
    """What one batch came to; `remaining` are left within the caller's rights."""

    reindexed: int
    remaining: int
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
    head_revision: str | None = Field(
        None, description="A newer revision that the index was told of."
    )
    stale: bool = Field(description="Expired by now, or a newer revision is known.")


class SourcePageBody(StrictModel):
    sources: tuple[IndexedSourceBody, ...]
    next_cursor: str | None = None


class EmbeddingProfileBody(StrictModel):
    """How chunks become vectors, and how far that has come within the caller's grant."""

    id: str
    model: str
    dimensions: int
    vectors: int = Field(description="Chunks that have a vector under this profile.")
    chunks: int = Field(description="Chunks that are to have one.")


class IndexBody(StrictModel):
    """The index as the caller's grant sees it."""

    visible_version: str
    sources: int
    chunks: int
    engine: str
    embedding_profile: EmbeddingProfileBody | None = None
    index_version: int | None = Field(None, description="Given to those who may write.")
