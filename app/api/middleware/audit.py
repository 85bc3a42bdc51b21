"""Every call of an authenticated caller leaves one event in the audit log.

Guaranteed: no answer leaves before its event is stored, in the transaction of what the call
changed or in one of its own. An event that cannot be stored turns the answer into a 503; an
answer that tells of a failure of ours stays what it is. The event's code is that of the
problem document that goes out. Calls without a valid token pass: they are in metrics and logs.

Not handled: a caller that leaves before the answer. What the call had changed has its event
with it; reads that nobody got have none.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol
from uuid import uuid4

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.audit_trail import Trail
from app.api.problem_document import problem_code
from app.api.problems import instance_of, problem_response, request_id_of
from app.audit.log import AuditLog
from app.audit.sealer import Sealer
from app.errors import ServiceError, UnavailableError
from app.metrics import Metrics
from app.scope.grant import Grant
from app.storage.compaction import Compactor

_log = structlog.get_logger()


class AuditParts(Protocol):
    """What of the running application's parts is needed here."""

    @property
    def audit(self) -> AuditLog: ...
    @property
    def sealer(self) -> Sealer: ...
    @property
    def compactor(self) -> Compactor: ...
    @property
    def now(self) -> Callable[[], datetime]: ...


class AuditMiddleware:
    """Stands inside of authentication, and outside of all that answers the caller."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        grant: Grant | None = scope.get("state", {}).get("grant")
        if scope["type"] != "http" or grant is None:
            await self.app(scope, receive, send)
            return
        parts: AuditParts = scope["app"].state.parts
        trail = Trail(
            scope,
            grant,
            event_id=str(uuid4()),
            at=parts.now(),
            request_id=request_id_of(scope),
        )
        scope["state"]["trail"] = trail
        door = _Door(scope, receive, send, _Recorder(parts, grant.tenant, trail, self._metrics))
        await self.app(scope, receive, door.send)


class _Recorder:
    """Stores the event of one request."""

    def __init__(self, parts: AuditParts, tenant: str, trail: Trail, metrics: Metrics) -> None:
        self._parts = parts
        self._tenant = tenant
        self._trail = trail
        self._metrics = metrics

    async def record(self, status: int, problem_code: str | None) -> UnavailableError | None:
        """None where the answer may go out, else what is to be told in its place."""
        try:
            if not self._trail.stored:
                event = self._trail.answered(status, problem_code)
                await self._parts.audit.append(self._tenant, event)
        except ServiceError as error:
            self._metrics.audit_failures.inc()
            _log.error("audit_failed", code=error.code, status=status)
            if status >= 500:
                return None
            return UnavailableError(
                "This call could not be written to the audit log; try again shortly.",
                code="audit-unavailable",
            )
        self._parts.sealer.wrote(self._tenant)
        self._parts.compactor.saw(self._tenant)
        return None


class _Door:
    """Holds the answer's head back until the event is stored."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, recorder: _Recorder) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._recorder = recorder
        self._head: Message | None = None
        self._is_replaced = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        if self._head is not None:
            head, self._head = self._head, None
            refusal = await self._recorder.record(head["status"], problem_code(head, message))
            if refusal is not None:
                self._is_replaced = True
                response = problem_response(
                    refusal,
                    instance=instance_of(self._scope),
                    request_id=request_id_of(self._scope),
                )
                await response(self._scope, self._receive, self._send)
                return
            await self._send(head)
        if not self._is_replaced:
            await self._send(message)
