"""The port that every retriever implements, and the query it is given.

Guarantees asked of an implementation: its backend applies the scope while it searches,
never after; at most k candidates, best first, ties in `Chunk.tie_break` order; scores
are integers; a failure is an error, never an empty list.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.retrieval.candidate import Chunk, Retrieval
from app.scope.access import AccessScope


@dataclass(frozen=True, slots=True)
class IndexView:
    """What one scope sees of the built-in index at one version.

    `index_version` and `label_keys` are internal: they never reach a snapshot. `languages`
    are those of the visible sources, sorted; the empty name stands for sources without one.
    """

    index_version: int
    last_chunk_key: int
    label_keys: tuple[int, ...]
    languages: tuple[str, ...]
    chunks: int
    terms: int
    visible_version: str


@dataclass(frozen=True, slots=True)
class ScopedQuery:
    """A question that cannot be built without a scope.

    `language` is a BCP 47 tag, or None for each source's own; `limit` is the greatest
    number of candidates.
    """

    scope: AccessScope
    view: IndexView
    text: str
    language: str | None
    limit: int


class Retriever(Protocol):
    @property
    def name(self) -> str:
        """Stands before the visible version in an item's `indexVersion`."""

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        """Candidates within the query's scope; raises UnavailableError when it cannot."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A source that must be in: all of its chunks, or the one that `chunk_id` names."""

    project: str
    source_id: str
    chunk_id: str | None = None
    required: bool = True


class IndexViews(Protocol):
    """Opens views of the built-in index and reads pinned sources from them."""

    async def open(self, scope: AccessScope) -> IndexView:
        """The present view of a scope; its labels are evaluated once, here."""

    async def pinned(
        self, scope: AccessScope, view: IndexView, pins: Sequence[Pin]
    ) -> tuple[Chunk, ...]:
        """The chunks of the pinned sources that the scope admits, by source and ordinal."""
