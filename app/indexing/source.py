"""Sources as written and as prepared for the index.

Guarantees: a prepared source carries everything that is stored, computed without I/O;
equal sources have equal digests and equal fingerprints in every process.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from app.canonical import Digest, JsonObject, digest_to_bytes, digest_value
from app.scope.label import Label

LANES = 4
_LANE_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class ChunkDraft:
    """A piece that the writer cut itself."""

    chunk_id: str
    text: str


@dataclass(frozen=True, slots=True)
class SourceDraft:
    """A source as its writer sent it: either `text` (to be cut here) or `chunks`."""

    source_id: str
    revision: str
    label: Label
    text: str | None = None
    chunks: tuple[ChunkDraft, ...] | None = None
    media_type: str | None = None
    language: str | None = None
    provenance: str | None = None
    expires_at: datetime | None = None
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """A chunk with what is stored beside it.

    `body_tokens` counts the text as it stands inside its fence, per encoding. `terms`
    holds (term key, frequency), sorted by key; `length` is the sum of the frequencies;
    `signature` is what `indexing.signature` makes of the text.
    """

    chunk_id: str
    text: str
    content_hash: Digest
    body_tokens: Mapping[str, int]
    terms: tuple[tuple[int, int], ...]
    length: int
    signature: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedSource:
    """A source ready to be stored; `engine` names the analyzer and chunker that made it."""

    draft: SourceDraft
    chunks: tuple[PreparedChunk, ...]
    engine: str

    @property
    def key(self) -> tuple[str, str]:
        return self.draft.label.project, self.draft.source_id

    @property
    def length(self) -> int:
        """The number of terms in all chunks."""
        return sum(chunk.length for chunk in self.chunks)

    def fingerprint(self) -> Digest:
        """The digest of what a reader can see of this source.

        The access list is left out: two sources that read the same are the same to a
        reader, whoever else may read them.
        """
        label = dict(self.draft.label.canonical())
        del label["allow"], label["deny"]
        return digest_value({**label, **self._attributes()})

    def digest(self) -> Digest:
        """The digest that tells whether anything has changed, access list included."""
        return digest_value(
            {
                "label": self.draft.label.canonical(),
                "engine": self.engine,
                **self._attributes(),
            }
        )

    def _attributes(self) -> JsonObject:
        draft = self.draft
        return {
            "sourceId": draft.source_id,
            "sourceRevision": draft.revision,
            "mediaType": draft.media_type,
            "language": draft.language,
            "provenance": draft.provenance,
            "expiresAt": draft.expires_at.isoformat() if draft.expires_at else None,
            "links": list(draft.links),
            "chunks": [[chunk.chunk_id, chunk.content_hash] for chunk in self.chunks],
        }


@dataclass(frozen=True, slots=True)
class LiveSum:
    """Sums over live sources: an additive multiset hash and the counts that BM25 needs.

    `lanes` are four unsigned 64-bit sums of fingerprints, of sources and of heads that make
    them stale, modulo 2^64 (the additive hash of Bellare and Micciancio, 1997, in lanes):
    equal multisets have equal sums, whatever the order of their changes. It tells content
    apart; it is no commitment against a writer who searches for collisions: item texts are
    bound by their own digests.
    """

    sources: int = 0
    chunks: int = 0
    terms: int = 0
    lanes: tuple[int, ...] = (0,) * LANES

    def plus(self, other: "LiveSum") -> "LiveSum":
        return self._combined(other, 1)

    def minus(self, other: "LiveSum") -> "LiveSum":
        return self._combined(other, -1)

    def _combined(self, other: "LiveSum", sign: int) -> "LiveSum":
        return LiveSum(
            self.sources + sign * other.sources,
            self.chunks + sign * other.chunks,
            self.terms + sign * other.terms,
            add_lanes(self.lanes, other.lanes, sign),
        )

    @property
    def is_empty(self) -> bool:
        return self == LiveSum()

    def visible_version(self) -> str:
        """The fingerprint of what is visible: 32 hexadecimal digits."""
        digest = digest_value(
            {
                "sources": self.sources,
                "chunks": self.chunks,
                "terms": self.terms,
                "lanes": [str(lane) for lane in self.lanes],
            }
        )
        return digest_to_bytes(digest)[:16].hex()


def live_sum(source: PreparedSource) -> LiveSum:
    """What one live source adds to its label's sums."""
    return LiveSum(
        1, len(source.chunks), source.length, lanes_of(digest_to_bytes(source.fingerprint()))
    )


def head_sum(project: str, source_id: str, revision: str, head_revision: str | None) -> LiveSum:
    """What a head adds to the sums of a live source's label: nothing unless they differ.

    A head of the source's own revision makes nothing stale, and one without a source is
    counted once there is one: what shows in the sums is what a reader can notice.
    """
    if head_revision in (None, revision):
        return LiveSum()
    digest = digest_value({"head": [project, source_id, head_revision]})
    return LiveSum(lanes=lanes_of(digest_to_bytes(digest)))


def add_lanes(mine: tuple[int, ...], theirs: tuple[int, ...], sign: int) -> tuple[int, ...]:
    """Lane by lane, modulo 2^64; a sign of -1 takes them away."""
    return tuple((a + sign * b) % _LANE_MODULUS for a, b in zip(mine, theirs, strict=True))


def lanes_of(digest: bytes) -> tuple[int, ...]:
    """The lanes of a fingerprint of 32 bytes."""
    return struct.unpack(f">{LANES}Q", digest)


def lanes_to_signed(lanes: tuple[int, ...]) -> list[int]:
    """Lanes as PostgreSQL's signed bigints."""
    return [lane - _LANE_MODULUS if lane >= _LANE_MODULUS // 2 else lane for lane in lanes]


def lanes_from_signed(values: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    return tuple(int(value) % _LANE_MODULUS for value in values)
