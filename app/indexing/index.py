"""The port to the built-in index: writing sources, listing them, opening a view.

Guarantees asked of every implementation: a change is one transaction and one new index
version, or none at all; a view is what one scope sees at one version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from app.audit.event import AuditEvent
from app.indexing.source import LiveSum, PreparedSource, SourceDraft
from app.scope.access import Predicate
from app.scope.grant import Grant
from app.scope.label import Label


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What became of one source of a call."""

    project: str
    source_id: str
    chunks: int
    unchanged: bool


@dataclass(frozen=True, slots=True)
class IndexChange:
    """The index version after a call, and each source in the order of the call."""

    index_version: int
    sources: tuple[SourceChange, ...]

    @property
    def changed(self) -> bool:
        """Whether the call made a new version."""
        return not all(source.unchanged for source in self.sources)


@dataclass(frozen=True, slots=True)
class Head:
    """That a source has this revision by now, whether it is indexed or not."""

    project: str
    source_id: str
    revision: str

    @property
    def key(self) -> tuple[str, str]:
        return self.project, self.source_id


@dataclass(frozen=True, slots=True)
class HeadsChange:
    """The index version after a call; `unchanged` are the heads that stood already."""

    index_version: int
    unchanged: frozenset[Head]


@dataclass(frozen=True, slots=True)
class OutdatedSource:
    """A live source that another engine prepared, as its writer sent it.

    `source_key` tells whether it is still the same one.
    """

    source_key: int
    draft: SourceDraft


@dataclass(frozen=True, slots=True)
class Outdated:
    """How many there are, and the first of them."""

    count: int
    sources: tuple[OutdatedSource, ...]


@dataclass(frozen=True, slots=True)
class Reindexed:
    """The index version after a batch, and how many of its sources were put anew."""

    index_version: int
    sources: int


@dataclass(frozen=True, slots=True)
class IndexedSource:
    """A live source as it is listed; `head_revision` is what the index was told last, if
    anything.
    """

    source_id: str
    revision: str
    label: Label
    chunks: int
    media_type: str | None
    language: str | None
    provenance: str | None
    expires_at: datetime | None
    head_revision: str | None


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Which live sources to list, after (source id, project) in code-point order."""

    project: str | None = None
    source_id: str | None = None
    prefix: str | None = None
    after: tuple[str, str] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """What a scope sees of the index, and the version for those who may write."""

    index_version: int
    visible: LiveSum


class SourceIndex(Protocol):
    async def put_sources(
        self, grant: Grant, sources: Sequence[PreparedSource], event: AuditEvent | None = None
    ) -> IndexChange:
        """Add or replace sources, all or none.

        Where something changed, and only then, the event is stored in the same transaction.

        Raises ScopeExceedsGrantError when a source that would be replaced lies above the
        writer's ceilings.
        """

    async def delete_source(
        self, grant: Grant, project: str, source_id: str, event: AuditEvent | None = None
    ) -> int:
        """End a source and return the new index version; stores the event with it.

        Raises NotFoundError when there is none within the writer's ceilings.
        """

    async def erase_source(
        self, grant: Grant, project: str, source_id: str, event: AuditEvent | None = None
    ) -> int:
        """End a source if it is live, remove its texts and all that was made of them for
        good, in every revision, and return the index version; stores the event with it.

        What was erased before, and not put again since, stays as it is.
        Raises NotFoundError when there never was one within the writer's ceilings.
        """

    async def outdated_sources(self, grant: Grant, engine: str, limit: int) -> Outdated:
        """Live sources that the grant may replace and that another engine prepared, the
        oldest first: at most `limit`, and fewer where they are large.
        """

    async def reindex(
        self,
        grant: Grant,
        prepared: Sequence[tuple[OutdatedSource, PreparedSource]],
        event: AuditEvent | None = None,
    ) -> Reindexed:
        """Put outdated sources anew, all that are still as they were read, or none.

        Where something changed, and only then, the event is stored in the same transaction.
        """

    async def put_heads(
        self, grant: Grant, heads: Sequence[Head], event: AuditEvent | None = None
    ) -> HeadsChange:
        """Take note of newer revisions, all or none; each source stands once.

        Nothing tells whether a source is indexed. A head stays when its source is deleted.
        Where something changed, and only then, the event is stored in the same transaction.
        """

    async def list_sources(
        self, predicate: Predicate, wanted: SourceFilter
    ) -> tuple[IndexedSource, ...]:
        """Live sources that the predicate admits, by source id and project."""

    async def describe(self, predicate: Predicate) -> IndexDescription:
        """Counts, sums and version of what the predicate admits."""
