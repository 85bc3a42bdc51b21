"""The chain of seals: pure hashing, and checking what was exported.

A seal covers a batch of events and the seal before it. Its hash is `sha256:` and the
SHA-256 of the RFC 8785 bytes of `{"tenant", "sequence", "sealedAt", "previous", "events"}`,
where `previous` is the hash of the seal before, null for the first, whose sequence is 1.

Guarantees: whoever changes, drops, adds, moves or reorders a sealed event or a seal breaks
the check, unless every later seal is made anew as well.

Not handled: that, and seals cut off at the end. Both need a head (the last seal's hash)
that was kept elsewhere; `ChainCheck.holds` tells whether it is still in the chain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.audit.event import AuditEvent, instant
from app.canonical import Digest, JsonObject, JsonValue, digest_value


@dataclass(frozen=True, slots=True)
class Seal:
    """A sealed batch; `events` are those still there of the `count` that were sealed."""

    sequence: int
    sealed_at: datetime
    previous: Digest | None
    hash: Digest
    count: int
    events: tuple[AuditEvent, ...]

    def document(self) -> dict[str, JsonValue]:
        """As it is exported: all that recomputing the hash takes, but the tenant's name."""
        return {
            "sequence": self.sequence,
            "sealedAt": instant(self.sealed_at),
            "previous": self.previous,
            "hash": self.hash,
            "count": self.count,
            "events": [event.document() for event in self.events],
        }


def seal_hash(
    tenant: str,
    sequence: int,
    sealed_at: str,
    previous: Digest | None,
    events: Sequence[JsonObject],
) -> Digest:
    """Raises TypeError or ValueError for what has no RFC 8785 form."""
    return digest_value(
        {
            "tenant": tenant,
            "sequence": sequence,
            "sealedAt": sealed_at,
            "previous": previous,
            "events": list(events),
        }
    )


class ChainCheck:
    """Checks exported seals one by one, from the first on; they are not kept."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._sealed: set[str] = set()
        self._hashes: set[str] = set()
        self.faults: list[str] = []
        self.sequence = 0
        self.head: Digest | None = None

    @property
    def sealed(self) -> int:
        """How many different events the seals so far hold."""
        return len(self._sealed)

    def covers(self, event_id: str) -> bool:
        return event_id in self._sealed

    def holds(self, head: str) -> bool:
        """Whether a hash that was noted earlier is one of this chain's."""
        return head in self._hashes

    def take(self, seal: Mapping[str, Any]) -> None:
        """Add the next seal, a document as `Seal.document` gives it; faults are kept."""
        sequence, events = seal.get("sequence"), seal.get("events")
        where = f"seal {sequence}"
        if not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
            self.faults.append(f"{where}: holds no list of events")
            return
        if sequence != self.sequence + 1:
            self.faults.append(f"{where}: stands where seal {self.sequence + 1} should")
        if seal.get("previous") != self.head:
            self.faults.append(f"{where}: does not name the seal before it")
        if seal.get("count") != len(events):
            self.faults.append(f"{where}: {len(events)} events are there of {seal.get('count')}")
        if seal.get("hash") != self._recomputed(seal):
            self.faults.append(f"{where}: its hash is not that of its events")
        self._count(where, events)
        self.sequence = sequence if isinstance(sequence, int) else self.sequence + 1
        self.head = Digest(str(seal.get("hash")))
        self._hashes.add(self.head)

    def _recomputed(self, seal: Mapping[str, Any]) -> Digest | None:
        try:
            return seal_hash(
                self._tenant,
                seal["sequence"],
                seal["sealedAt"],
                # What the seal says, so that one fault is not told as two.
                seal["previous"],
                seal["events"],
            )
        except (KeyError, TypeError, ValueError, RecursionError):
            return None

    def _count(self, where: str, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            event_id = str(event.get("id"))
            if event_id in self._sealed:
                self.faults.append(f"{where}: event {event_id} is sealed twice")
            self._sealed.add(event_id)
