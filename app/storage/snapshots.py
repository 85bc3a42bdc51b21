"""The port to stored snapshots. There is no update and no delete.

Guarantees asked of every implementation: a snapshot is stored whole or not at all;
storing the same one again changes nothing; reading tells nothing about a snapshot that
the reader's predicate does not admit today, not even that it exists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Protocol

from app.audit.event import AuditEvent
from app.canonical import Digest
from app.scope.access import Predicate
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass


@dataclass(frozen=True, slots=True)
class InlineBounds:
    """What a reader must be allowed beside the sources: for inline items and named sources.

    `projects` may hold "*", for every project; a classification of None: no inline items.
    """

    projects: tuple[str, ...]
    classes: tuple[KnowledgeClass, ...]
    classification: Classification | None


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """Everything that is stored for one snapshot.

    `request`, `report` and `inputs` (answers from outside, by retriever) are canonical bytes.
    A reader's predicate has to admit each of `external_labels`, which are those of chunks that
    no source in the index stands for.
    """

    hash: Digest
    snapshot_id: str
    run_id: str
    step_id: str | None
    attempt_id: str
    canonical: bytes
    request: bytes
    report: bytes
    timings_ms: Mapping[str, int]
    index_version: int
    evaluated_at: datetime
    engine: str
    used_tokens: int
    degraded: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    inline: InlineBounds
    texts: tuple[tuple[Digest, str], ...]
    inputs: bytes = b"{}"
    external_labels: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot as it was stored."""

    hash: Digest
    canonical: bytes
    request: bytes
    report: bytes
    timings_ms: Mapping[str, int]
    index_version: int
    created_at: datetime
    evaluated_at: datetime
    engine: str
    inputs: bytes


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """A line of a listing."""

    hash: Digest
    snapshot_id: str
    run_id: str
    step_id: str | None
    attempt_id: str
    created_at: datetime
    used_tokens: int
    degraded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SnapshotFilter:
    """Which snapshots to list, newest first; `before` is the last line that was seen."""

    run_id: str | None = None
    step_id: str | None = None
    attempt_id: str | None = None
    before: tuple[datetime, Digest] | None = None
    limit: int = 50


class PutOutcome(Enum):
    STORED = auto()
    ALREADY_STORED = auto()
    """The same snapshot was there: nothing changed."""
    REPEAT_TAKEN = auto()
    """Another snapshot was the request's first: nothing was stored but the idempotency key."""
    KEY_TAKEN = auto()
    """The idempotency key was used before: nothing was stored."""


@dataclass(frozen=True, slots=True)
class TextKey:
    """Where an item's text is kept: by its source, or with the snapshot (source None)."""

    digest: Digest
    source: tuple[str, str] | None


class SnapshotStore(Protocol):
    async def put_if_absent(
        self,
        tenant: str,
        record: SnapshotRecord,
        repeat_key: bytes,
        event: AuditEvent | None = None,
        idempotency_key: bytes | None = None,
    ) -> PutOutcome:
        """Store a snapshot unless its request has one already, known by `repeat_key`.

        When it is STORED, and only then, so is the event, in the same transaction; there,
        too, an idempotency key comes to stand for the request.
        """

    async def put(
        self, tenant: str, record: SnapshotRecord, event: AuditEvent | None = None
    ) -> PutOutcome:
        """Store a snapshot whatever its request has; the event as above."""

    async def find_repeat(self, predicate: Predicate, repeat_key: bytes) -> StoredSnapshot | None:
        """The first snapshot of a request, if the predicate admits it today."""

    async def find_key(self, tenant: str, idempotency_key: bytes) -> bytes | None:
        """The repeat key of the request that an idempotency key was first used for."""

    async def put_key(self, tenant: str, idempotency_key: bytes, repeat_key: bytes) -> bool:
        """Let a key stand for a request that has a snapshot; False if it was used before."""

    async def get(self, predicate: Predicate, ref: str) -> StoredSnapshot | None:
        """By hash or snapshot id, if the predicate admits it today."""

    async def list_snapshots(
        self, predicate: Predicate, wanted: SnapshotFilter
    ) -> tuple[SnapshotSummary, ...]:
        """Those that the predicate admits today, newest first."""

    async def texts(
        self, tenant: str, snapshot: Digest, keys: Sequence[TextKey]
    ) -> Mapping[TextKey, str]:
        """The texts that are still there; erased ones are missing."""
