"""What the routes work with; `app.bootstrap` puts it together."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from app.api.audit_trail import Trail
from app.api.middleware.scope import TokenVerifier
from app.api.strict_route import before_body
from app.audit.log import AuditLog
from app.audit.sealer import Sealer
from app.errors import PermissionMissingError
from app.gathering import Services
from app.indexing.backlog import EmbeddingBacklog
from app.indexing.index import SourceIndex
from app.indexing.preparation import SourcePreparer
from app.metrics import Metrics
from app.rate_limits import RateLimiter
from app.readiness import Readiness
from app.reading import SnapshotReader
from app.scope.grant import Grant
from app.scope.vocabulary import Permission
from app.storage.compaction import Compactor


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that the routes need, wired and running."""

    services: Services
    reader: SnapshotReader
    index: SourceIndex
    preparer: SourcePreparer
    verifier: TokenVerifier
    audit: AuditLog
    sealer: Sealer
    backlog: EmbeddingBacklog | None
    compactor: Compactor
    rate_limiter: RateLimiter
    readiness: Callable[[], Awaitable[tuple[Readiness, ...]]]
    now: Callable[[], datetime]


# As coroutines: a plain function would take a turn in the thread pool.
async def parts_of(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def metrics_of(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


async def trail_of(request: Request) -> Trail:
    trail: Trail = request.state.trail
    return trail


def permitted(permission: Permission) -> Callable[[Request], Awaitable[Grant]]:
    """A dependency that gives the caller's grant, or refuses one without the permission."""

    @before_body
    async def grant_of(request: Request) -> Grant:
        grant: Grant = request.state.grant
        if not grant.allows(permission):
            raise PermissionMissingError(
                f"This call needs the permission {permission.value}, which the token's scope "
                f"claim does not name."
            )
        return grant

    return grant_of


PartsParameter = Annotated[Parts, Depends(parts_of)]
TrailParameter = Annotated[Trail, Depends(trail_of)]
MetricsParameter = Annotated[Metrics, Depends(metrics_of)]
Assembler = Annotated[Grant, Depends(permitted(Permission.SNAPSHOTS_ASSEMBLE))]
SnapshotReading = Annotated[Grant, Depends(permitted(Permission.SNAPSHOTS_READ))]
AuditReading = Annotated[Grant, Depends(permitted(Permission.AUDIT_READ))]
IndexWriting = Annotated[Grant, Depends(permitted(Permission.INDEX_WRITE))]
IndexReading = Annotated[Grant, Depends(permitted(Permission.INDEX_READ))]
