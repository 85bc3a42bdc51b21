"""What retrievers return: chunks with their facts, scored and ordered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from app.canonical import Digest, JsonObject
from app.errors import ServiceError
from app.scope.label import Label


class InvalidAnswerError(ServiceError):
    """A retriever returned what cannot be right."""

    code = "invalid-answer"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of one source revision, with everything that later stages need.

    `body_tokens` counts the text inside its fence per encoding, where that is stored.
    `head_revision` is the newest revision that the index was told of, where it was told of
    any. `signature` is what `indexing.signature` makes of the text. An `external` chunk is not in
    the built-in index: its text and its label are kept with the snapshot. `media_type` and
    `language` are its source's, as far as the index knows them.
    """

    tenant: str
    project: str
    source_id: str
    revision: str
    chunk_id: str
    ordinal: int
    label: Label
    content_hash: Digest
    text: str
    provenance: str | None = None
    body_tokens: Mapping[str, int] = field(default_factory=dict)
    expires_at: datetime | None = None
    head_revision: str | None = None
    signature: int | None = None
    external: bool = False
    media_type: str | None = None
    language: str | None = None

    @property
    def tie_break(self) -> tuple[str, str, int]:
        """The order of equal scores: source id, project, ordinal, in code-point order."""
        return self.source_id, self.project, self.ordinal

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.project, self.source_id, self.chunk_id


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk as one retriever ranked it: `rank` counts from 1, `score` is an integer."""

    chunk: Chunk
    score: int
    rank: int


@dataclass(frozen=True, slots=True)
class Retrieval:
    """One retriever's answer, best first, and the version of what it could see.

    `inputs` are answers from outside that it used (a query vector): they are stored with
    the snapshot, and given back to it as `ScopedQuery.recorded` by a replay. `facts` go
    into the report. `external` tells that the chunks are not in the built-in index; what was
    answered is then the input.
    """

    candidates: tuple[Candidate, ...]
    visible_version: str
    inputs: JsonObject | None = None
    facts: JsonObject = field(default_factory=dict)
    external: bool = False
