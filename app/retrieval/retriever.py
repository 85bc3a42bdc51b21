"""The port that every retriever implements, and the query it is given.

Guarantees asked of an implementation: its backend applies the scope while it searches,
never after; at most k candidates, best first, ties in `Chunk.tie_break` order; scores
are integers; a failure is an error, never an empty list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.canonical import JsonObject
from app.retrieval.candidate import Chunk, Retrieval
from app.scope.access import AccessScope
from app.storage.labels import IndexVersion


@dataclass(frozen=True, slots=True)
class IndexView:
    """What one scope sees of the built-in index at one version.

    `index_version` and `label_keys` are internal: they never reach a snapshot. `languages`
    are those of the visible sources, sorted; the empty name stands for sources without one.
    `hidden_source_keys` are sources of those labels, in a view of the past, that the scope
    does not admit any more.
    """

    index_version: int
    last_chunk_key: int
    label_keys: tuple[int, ...]
    languages: tuple[str, ...]
    chunks: int
    terms: int
    visible_version: str
    hidden_source_keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ScopedQuery:
    """A question that cannot be built without a scope.

    `language` is a BCP 47 tag, or None for each source's own; `limit` is the greatest
    number of candidates. `recorded` holds, in a replay, what the retriever was answered
    from outside the first time: it asks nobody then. `deadline` is the event loop's time at which
    nobody waits for the answer any more.
    """

    scope: AccessScope
    view: IndexView
    text: str
    language: str | None
    limit: int
    recorded: JsonObject | None = None
    deadline: float | None = field(default=None, compare=False)

    def remaining_s(self, now: float, *, at_most: float) -> float:
        """Seconds until the deadline, at least 0."""
        left = at_most if self.deadline is None else self.deadline - now
        return max(min(left, at_most), 0.0)


class Retriever(Protocol):
    @property
    def name(self) -> str:
        """Stands before the visible version in an item's `indexVersion`."""

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        """Candidates within the query's scope; raises UnavailableError when it cannot."""


SCOPE_PARTS = ("projects", "principals", "classes", "classification", "trustTier", "sources")
"""What a backend has to filter by: the parts of a predicate, beside its tenant."""


class ExternalBackend(Retriever, Protocol):
    """A retriever whose chunks are not in the built-in index."""

    async def filters(self) -> frozenset[str]:
        """The SCOPE_PARTS that it applies while it searches.

        Raises UnavailableError when it cannot tell now.
        """


@dataclass(frozen=True, slots=True)
class Pin:
    """A source that must be in: all of its chunks, or the one that `chunk_id` names."""

    project: str
    source_id: str
    chunk_id: str | None = None
    required: bool = True


class IndexViews(Protocol):
    """Opens views of the built-in index and reads pinned sources from them."""

    async def open(
        self,
        scope: AccessScope,
        at: IndexVersion | None = None,
        *,
        admitted_now: AccessScope | None = None,
        hidden: tuple[int, ...] = (),
    ) -> IndexView:
        """A scope's view, at present or at a version; its labels are evaluated once, here.

        With `admitted_now`, what was visible at the version is left out where the label that
        it has now (or had last) is not in that scope; `hidden` names sources to leave out by
        key, as an earlier view did.
        Raises VersionNotKeptError for a version that the index does not have any more, or
        not yet.
        """

    async def has_erased(self, scope: AccessScope, view: IndexView) -> bool:
        """Whether something that the view showed was erased since."""

    async def pinned(
        self, scope: AccessScope, view: IndexView, pins: Sequence[Pin]
    ) -> tuple[Chunk, ...]:
        """The chunks of the pinned sources that the scope admits, by source and ordinal."""
