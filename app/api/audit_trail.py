"""What one request leaves in the audit log, gathered while it is answered.

Guarantees: targets are names, ids, hashes and counts of bounded length that PostgreSQL and
RFC 8785 can hold. Of the query string only parameters that name something are taken, of
a body nothing but what a route notes.
"""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import parse_qsl

from starlette.types import Scope

from app.api.problem_document import printable
from app.audit.event import UNROUTED, AuditEvent, Outcome
from app.canonical import JsonValue
from app.scope.grant import Grant

NAMING_PARAMETERS = frozenset({"project", "sourceId", "prefix", "runId", "stepId", "attemptId"})
MAX_SOURCES_NAMED = 20
_MAX_NAME_CHARS = 1024


class Trail:
    """One for each request of an authenticated caller; routes add to it what only they know."""

    def __init__(
        self, scope: Scope, grant: Grant, *, event_id: str, at: datetime, request_id: str | None
    ) -> None:
        self._scope = scope
        self._grant = grant
        self._event_id = event_id
        self._at = at
        self._request_id = request_id
        self._noted: dict[str, JsonValue] = {}
        self._code: str | None = None
        self.stored = False

    def note(self, **targets: str | int) -> None:
        """Add what the request is about."""
        self._noted |= {
            name: printable(value, _MAX_NAME_CHARS) if isinstance(value, str) else value
            for name, value in targets.items()
        }

    def note_sources(self, names: Sequence[tuple[str, str]]) -> None:
        """Add how many sources the request is about, and the first of them."""
        self._noted |= {
            "count": len(names),
            "sources": [
                {
                    "project": printable(project, _MAX_NAME_CHARS),
                    "sourceId": printable(source_id, _MAX_NAME_CHARS),
                }
                for project, source_id in names[:MAX_SOURCES_NAMED]
            ],
        }

    def settle(self, code: str | None = None, *, stored: bool) -> None:
        """Tell what an allowed call came to, and whether its event is stored with it."""
        self._code, self.stored = code, stored

    def leave_out(self) -> None:
        """Leave no event: nothing was looked at, and the database is not to be asked."""
        self.stored = True

    def allowed(self, code: str | None = None) -> AuditEvent:
        """The event of a call that succeeds, to be stored in one transaction with its effect."""
        return self._event(Outcome.ALLOWED, code)

    def answered(self, status: int, problem_code: str | None) -> AuditEvent:
        """The event of a call that gets this answer."""
        if status < 400:
            return self._event(Outcome.ALLOWED, self._code)
        outcome = Outcome.REFUSED if status < 500 else Outcome.FAILED
        return self._event(outcome, problem_code or f"http-{status}")

    def _event(self, outcome: Outcome, code: str | None) -> AuditEvent:
        return AuditEvent(
            id=self._event_id,
            at=self._at,
            subject=self._grant.subject,
            agent=self._grant.agent,
            action=_operation(self._scope),
            outcome=outcome,
            code=code,
            request_id=self._request_id,
            targets={**_named_in_address(self._scope), **self._noted},
        )


def _operation(scope: Scope) -> str:
    """The operationId of the route that takes this method; others share its path at most."""
    route = scope.get("route")
    if scope["method"] not in (getattr(route, "methods", None) or ()):
        return UNROUTED
    return getattr(route, "operation_id", None) or UNROUTED


def _named_in_address(scope: Scope) -> dict[str, JsonValue]:
    if _operation(scope) == UNROUTED:
        return {"method": printable(scope["method"], 16), "path": printable(scope["path"], 256)}
    query = parse_qsl(scope["query_string"].decode("latin-1"), errors="replace")
    named = {name: value for name, value in query if name in NAMING_PARAMETERS}
    # Later wins: nothing of the query can pass for a part of the path.
    return {
        name: printable(str(value), _MAX_NAME_CHARS)
        for name, value in (named | scope.get("path_params", {})).items()
    }
