"""The tenant's audit log: its events, and the seals by which it can be checked elsewhere."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.parts import AuditReading, PartsParameter
from app.api.read_schemas import AuditPage, SealPage
from app.api.responses import (
    decode_cursor,
    encode_cursor,
    invalid_cursor,
    problems,
    read_response,
)
from app.api.strict_model import Instant
from app.api.strict_route import StrictJsonRoute
from app.audit.event import instant
from app.audit.log import EventFilter, seal_all

router = APIRouter(prefix="/audit", tags=["audit"], route_class=StrictJsonRoute)


@router.get(
    "",
    operation_id="listAuditEvents",
    summary="List who did what, newest first",
    responses={200: {"model": AuditPage}, **problems(403, 422, 503)},
)
async def list_events(
    request: Request,
    grant: AuditReading,
    parts: PartsParameter,
    since: Annotated[Instant | None, Query(description="Leave out what was before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=512)] = None,
) -> Response:
    """By when requests arrived. A long one may appear below events that were listed already."""
    before = None if cursor is None else _place(cursor)
    found = await parts.audit.list_events(grant.tenant, EventFilter(since, before, limit + 1))
    page = found[:limit]
    next_cursor = None
    if len(found) > limit:
        next_cursor = encode_cursor(instant(page[-1].at), page[-1].id)
    return read_response(
        request, {"events": [event.document() for event in page], "nextCursor": next_cursor}
    )


@router.get(
    "/seals",
    operation_id="listAuditSeals",
    summary="Export the sealed events with the hashes that chain them",
    responses={200: {"model": SealPage}, **problems(403, 422, 503)},
)
async def list_seals(
    request: Request,
    grant: AuditReading,
    parts: PartsParameter,
    limit: Annotated[int, Query(ge=1, le=20)] = 10,
    cursor: Annotated[str | None, Query(max_length=512)] = None,
) -> Response:
    """From the first seal on. The first page seals what is not sealed yet.

    A seal's `hash` is the SHA-256 of the RFC 8785 bytes of `tenant`, and its `sequence`,
    `sealedAt`, `previous` and `events`.
    """
    after = 0
    if cursor is None:
        await seal_all(parts.audit, grant.tenant, parts.now)
    else:
        after = _sequence(cursor)
    found = await parts.audit.seals(grant.tenant, after, limit + 1)
    page = found[:limit]
    next_cursor = encode_cursor(str(page[-1].sequence)) if len(found) > limit else None
    return read_response(
        request,
        {
            "tenant": grant.tenant,
            "seals": [seal.document() for seal in page],
            "nextCursor": next_cursor,
        },
    )


def _place(cursor: str) -> tuple[datetime, str]:
    time, event_id = decode_cursor(cursor, 2)
    try:
        at = datetime.fromisoformat(time)
        # Only the form that was given out; it is within what PostgreSQL takes.
        if instant(at) != time or str(UUID(event_id)) != event_id:
            raise invalid_cursor()
    except (ValueError, OverflowError) as error:
        raise invalid_cursor() from error
    return at, event_id


def _sequence(cursor: str) -> int:
    (digits,) = decode_cursor(cursor, 1)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise invalid_cursor()
    return int(digits)
