"""Shortened items: how they are made, what is recorded of them, and their texts from that.

A shortened text is not stored: the report, which the snapshot binds, tells what was kept of
which text of the source. So nothing remains of it where the source is erased.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from app.canonical import Digest, JsonObject, digest_from_bytes, digest_to_bytes
from app.indexing.analysis import analyze
from app.indexing.outline import Format, format_of
from app.packing.compression import Shortened, Span, cut, shorten
from app.retrieval.candidate import Chunk
from app.scope.vocabulary import KnowledgeClass
from app.snapshot.material import Material

COMPRESSION = "compression"
"""The member of a report that tells of shortened items."""


@dataclass(frozen=True, slots=True)
class Shortener:
    """Shortens candidates of one assembly to what is nearest to its query."""

    material: Material
    count_tokens: Callable[[str], int]

    def shorten(self, chunk: Chunk, body_tokens: int, room_tokens: int) -> Shortened | None:
        """To at most so many tokens of the text inside its fence; None: it cannot be.

        Query and text are read in the languages in which the lexical leg reads them.
        """
        request, least = self.material.request, self.material.recipe.rules.min_compressed_permille
        floor_tokens = max(-(-body_tokens * (least or 0) // 1000), 1)
        if request.query is None or room_tokens < floor_tokens:
            return None
        return shorten(
            chunk.text,
            _format(chunk),
            frozenset(analyze(request.query, request.language or chunk.language)),
            room_tokens=room_tokens,
            floor_tokens=floor_tokens,
            terms_of=lambda text: analyze(text, chunk.language),
            count_tokens=self.count_tokens,
        )


def _format(chunk: Chunk) -> Format:
    if chunk.media_type is None and chunk.label.knowledge_class is KnowledgeClass.CODE:
        return Format.CODE
    return format_of(chunk.media_type)


@dataclass(frozen=True, slots=True)
class Compression:
    """One shortened item: the digest of the whole text, and what was kept of it."""

    rank: int
    original: Digest
    spans: tuple[Span, ...]

    def canonical(self) -> JsonObject:
        return {
            "rank": self.rank,
            "originalHash": self.original,
            "spans": [list(span) for span in self.spans],
        }

    def text(self, original: str) -> str:
        return cut(original, self.spans)


def compressions(report: Mapping[str, Any]) -> dict[int, Compression]:
    """The shortened items of a report, by rank.

    Raises AttributeError, LookupError, TypeError or ValueError for one that was tampered with.
    """
    return {
        one["rank"]: Compression(
            one["rank"],
            digest_from_bytes(digest_to_bytes(one["originalHash"])),
            tuple((index(start), index(end)) for start, end in one["spans"]),
        )
        for one in report.get(COMPRESSION, {}).get("items", ())
    }
