"""One line of the audit log: who asked for what, when, and what came of it.

Guarantees: a document that `document()` gives holds no absent members and no floats, so
that it has one RFC 8785 form, and equals what the API shows.

Not handled: what may stand in `targets`. Names, ids, hashes and counts do; texts and
queries never.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

from app.canonical import JsonValue

UNROUTED = "unrouted"
"""The action of a call that no operation answers; any other action is an operationId."""


class Outcome(StrEnum):
    ALLOWED = "allowed"
    REFUSED = "refused"
    """The caller's fault or lack of rights: an answer from 400 to 499."""
    FAILED = "failed"
    """The service's own: an answer from 500 on."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """`id` is random (it tells nothing of other tenants), `at` when the request arrived."""

    id: str
    at: datetime
    subject: str
    agent: str | None
    action: str
    outcome: Outcome
    code: str | None
    request_id: str | None
    targets: Mapping[str, JsonValue]

    def about(self, **targets: JsonValue) -> Self:
        """The same event with further targets."""
        return replace(self, targets={**self.targets, **targets})

    def document(self) -> dict[str, JsonValue]:
        """As it is shown, exported and hashed."""
        members: dict[str, JsonValue] = {
            "id": self.id,
            "at": instant(self.at),
            "subject": self.subject,
            "agent": self.agent,
            "action": self.action,
            "outcome": self.outcome.value,
            "code": self.code,
            "requestId": self.request_id,
            "targets": dict(self.targets),
        }
        return {name: value for name, value in members.items() if value is not None}


def instant(at: datetime) -> str:
    """RFC 3339 in UTC with all six digits of a second's fraction: one text for one instant."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
