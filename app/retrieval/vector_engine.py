"""The port to an engine that searches copies of the index's vectors.

Guarantees asked of an implementation: labels are a filter of the search itself; a collection
holds nothing but vectors with the keys of their chunks and labels, no text and no name.

Its word decides nothing: what it finds is looked up in the index, under the scope and at the
version, and is ranked by exact products (`adapters.postgres.vector_engine`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.indexing.embedding import HalfVector


@dataclass(frozen=True, slots=True)
class EngineVector:
    """The vector of one chunk; it never changes under its key."""

    chunk_key: int
    label_key: int
    vector: HalfVector


@dataclass(frozen=True, slots=True)
class VectorExport:
    """What a round changed in an engine's collection, and how many vectors it holds by now."""

    added: int
    removed: int
    vectors: int


class VectorEngine(Protocol):
    """Each call raises RetrieverUnavailableError when it gets no usable answer."""

    @property
    def name(self) -> str:
        """As strategies name the leg that searches in it."""

    async def ping(self) -> None:
        """Whether it answers, and is what it is taken for."""

    async def version(self, collection: str) -> int | None:
        """The index version up to which the collection is whole; None where there is none."""

    async def nearest(
        self, collection: str, vector: HalfVector, label_keys: Sequence[int], places: int
    ) -> tuple[int, ...]:
        """Keys of at most so many chunks of these labels, the greatest inner products."""

    async def keys(self, collection: str) -> frozenset[int]:
        """Every chunk that it holds."""

    async def create(self, collection: str, dimensions: int, /) -> None:
        """A collection without a version, unless it is there."""

    async def add(self, collection: str, vectors: Sequence[EngineVector]) -> None:
        """Add vectors; those that are there stay."""

    async def remove(self, collection: str, chunk_keys: Collection[int]) -> None:
        """Remove chunks for good; those that are not there are none."""

    async def mark(self, collection: str, version: int) -> None:
        """Tell that it is whole up to this index version."""
