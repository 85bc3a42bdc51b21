"""The port to the audit log: events are added and sealed; nothing is changed or taken away.

Guarantees asked of every implementation: an event that was appended is sealed exactly once,
however many append and seal at the same time and in whatever order they commit; appending
never waits for sealing; nothing of one tenant shows in another's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from app.audit.chain import Seal
from app.audit.event import AuditEvent

BATCH_EVENTS = 1000
"""Most events of one seal."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Events from `since` on, newest first; `before` is (at, id) of the last one seen."""

    since: datetime | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 100


class AuditLog(Protocol):
    async def append(self, tenant: str, event: AuditEvent) -> None:
        """Store an event; one that is there already, known by `at` and `id`, stays as it is.

        Raises UnavailableError when it could not be stored.
        """

    async def list_events(self, tenant: str, wanted: EventFilter) -> tuple[AuditEvent, ...]:
        """By `at` and `id`, the latest first."""

    async def seal(self, tenant: str, sealed_at: datetime) -> int:
        """Seal up to BATCH_EVENTS committed events in one step; returns how many."""

    async def seals(self, tenant: str, after: int, limit: int) -> tuple[Seal, ...]:
        """The seals whose sequence is beyond `after`, in order, with their events."""


async def seal_all(log: AuditLog, tenant: str, now: Callable[[], datetime]) -> int:
    """Seal batch by batch what was committed when this was called; returns how many."""
    total = 0
    while True:
        sealed = await log.seal(tenant, now())
        total += sealed
        if sealed < BATCH_EVENTS:
            return total
