"""The snapshot document: its members, canonical bytes, hash and id.

Guarantees: the bytes depend on the values alone; `hash` covers every member but itself
and `snapshotId`, which follows from it. No floats, no clock.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.canonical import Digest, JsonObject, JsonValue, canonical_bytes, digest_bytes
from app.canonical import digest_to_bytes as raw_digest
from app.scope.label import Label


@dataclass(frozen=True, slots=True)
class Item:
    """One text in the snapshot; `index_version` is None for inline items.

    `position` is its place in the prompt where that is not its rank. `original_tokens` is what a
    shortened one would have cost whole; None: it is whole.
    """

    source_id: str
    revision: str
    chunk_id: str
    label: Label
    content_hash: Digest
    tokens: int
    rank: int
    index_version: str | None
    provenance: str | None
    position: int | None = None
    original_tokens: int | None = None

    def to_contract(self) -> JsonObject:
        document: dict[str, JsonValue] = {
            "class": self.label.knowledge_class.value,
            "project": self.label.project,
            "sourceId": self.source_id,
            "sourceRevision": self.revision,
            "chunkId": self.chunk_id,
            "tokens": self.tokens,
            "rank": self.rank,
            "trustTier": self.label.trust_tier.value,
            "classification": self.label.classification.value,
            "contentHash": self.content_hash,
        }
        if self.original_tokens is not None:
            document["compressed"] = True
            document["originalTokens"] = self.original_tokens
        if self.index_version is not None:
            document["indexVersion"] = self.index_version
        if self.provenance is not None:
            document["provenance"] = self.provenance
        if self.position is not None:
            document["position"] = self.position
        return document


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What was considered and left out: reason and detail; `chunk_id` None: the source."""

    project: str
    source_id: str
    reason: str
    detail: str
    chunk_id: str | None = None

    def to_contract(self) -> JsonObject:
        document: dict[str, JsonValue] = {
            "project": self.project,
            "sourceId": self.source_id,
            "reason": self.reason,
            "detail": self.detail,
        }
        if self.chunk_id is not None:
            document["chunkId"] = self.chunk_id
        return document


@dataclass(frozen=True, slots=True)
class Budget:
    """The bounds that were packed into; tokens in `encoding`."""

    max_tokens: int
    reserved_for_output: int
    encoding: str
    format: str
    usual_reserve: int | None = None
    """The strategy's reserve, where the request named none: then at most a quarter is kept."""

    @property
    def capacity_tokens(self) -> int:
        return self.max_tokens - self.reserved_for_output

    def sufficient_max_tokens(self, needed_tokens: int) -> int:
        """The smallest `maxTokens` of which the reserve leaves `needed_tokens`."""
        if self.usual_reserve is None:
            return needed_tokens + self.reserved_for_output
        # Three quarters are left, until the strategy's own reserve is the smaller one.
        return min((4 * needed_tokens - 1) // 3, needed_tokens + self.usual_reserve)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The digests that bind a snapshot to its question, and the legs it did without."""

    request_hash: Digest
    strategy_hash: Digest
    report_hash: Digest
    degraded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A finished snapshot: `canonical` are the RFC 8785 bytes of the whole document."""

    snapshot_id: str
    hash: Digest
    canonical: bytes


def build_snapshot(
    *,
    ids: Mapping[str, str],
    scope: JsonObject,
    strategy: str,
    budget: Budget,
    provenance: Provenance,
    items: Sequence[Item],
    exclusions: Sequence[Exclusion],
) -> Snapshot:
    """Put the document together; `ids` holds runId, attemptId and stepId where given."""
    document: dict[str, JsonValue] = {
        **ids,
        "scope": scope,
        "strategy": strategy,
        "budget": {
            "maxTokens": budget.max_tokens,
            "usedTokens": sum(item.tokens for item in items),
            "reservedForOutput": budget.reserved_for_output,
            "encoding": budget.encoding,
            "format": budget.format,
            "assembly": {
                "requestHash": provenance.request_hash,
                "strategyHash": provenance.strategy_hash,
                "reportHash": provenance.report_hash,
                "degraded": list(provenance.degraded),
            },
        },
        "items": [item.to_contract() for item in items],
        "exclusions": [exclusion.to_contract() for exclusion in exclusions],
    }
    digest = hash_of(document)
    identifier = snapshot_id_of(digest)
    whole = canonical_bytes({**document, "hash": digest, "snapshotId": identifier})
    return Snapshot(identifier, digest, whole)


def hash_of(document: JsonObject) -> Digest:
    """The hash that a snapshot document must have."""
    covered = {
        name: value for name, value in document.items() if name not in ("hash", "snapshotId")
    }
    return digest_bytes(canonical_bytes(covered))


def snapshot_id_of(digest: Digest) -> str:
    """The hash's first 16 bytes as a UUIDv8 (RFC 9562, section 5.8)."""
    raw = bytearray(raw_digest(digest)[:16])
    raw[6] = 0x80 | raw[6] & 0x0F
    raw[8] = 0x80 | raw[8] & 0x3F
    return str(uuid.UUID(bytes=bytes(raw)))
