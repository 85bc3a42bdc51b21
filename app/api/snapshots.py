"""POST /snapshots and everything that reads snapshots back."""

import re
from datetime import UTC, datetime
from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from app.api.audit_trail import Trail
from app.api.openapi_document import SNAPSHOT_SCHEMA, TEXT_SCHEMA
from app.api.parts import (
    Assembler,
    AuditReading,
    MetricsParameter,
    Parts,
    PartsParameter,
    SnapshotReading,
    TrailParameter,
)
from app.api.read_schemas import (
    Contents,
    ExplanationAnswer,
    Messages,
    ReplayAnswer,
    ReportAnswer,
    SnapshotPage,
    Verification,
)
from app.api.responses import (
    PRIVATE,
    decode_cursor,
    encode_cursor,
    invalid_cursor,
    json_response,
    problems,
    tagged_response,
)
from app.api.shared_schemas import MAX_SOURCE_ID_CHARS, SNAPSHOT_REF
from app.api.snapshot_examples import CREATE_SNAPSHOT_EXAMPLES
from app.api.snapshot_schemas import CreateSnapshotBody
from app.api.strict_model import Uuid
from app.api.strict_route import StrictJsonRoute
from app.canonical import Digest
from app.errors import NotFoundError
from app.metrics import Metrics
from app.pipeline import Answer, Call, create_snapshot
from app.replay import replay
from app.scope.grant import Grant
from app.storage.snapshots import SnapshotFilter, SnapshotSummary, StoredSnapshot

_log = structlog.get_logger()

router = APIRouter(prefix="/snapshots", tags=["snapshots"], route_class=StrictJsonRoute)

_REF = re.compile(SNAPSHOT_REF)


@router.post(
    "",
    operation_id="createSnapshot",
    status_code=201,
    summary="Assemble the snapshot of one attempt",
    responses={
        201: {"description": "A new snapshot", "content": {"application/json": SNAPSHOT_SCHEMA}},
        200: {
            "description": "The snapshot that this request has already",
            "content": {"application/json": SNAPSHOT_SCHEMA},
        },
        **problems(400, 403, 409, 413, 415, 422, 429, 503, 504),
    },
    openapi_extra={
        "requestBody": {"content": {"application/json": {"examples": CREATE_SNAPSHOT_EXAMPLES}}}
    },
)
async def post_snapshot(
    body: CreateSnapshotBody,
    grant: Assembler,
    parts: PartsParameter,
    metrics: MetricsParameter,
    trail: TrailParameter,
    refresh: Annotated[bool, Query(description="Assemble anew, also for a repeat.")] = False,
) -> Response:
    """Retrieve, rank and pack what this attempt may know, and keep exactly that.

    The same body under the same scope returns the first snapshot.
    """
    trail.note(runId=body.run_id, attemptId=body.attempt_id)
    if parts.backlog is not None:
        parts.backlog.met(grant.tenant)
    call = Call(
        grant,
        body.to_core(grant),
        evaluated_at=parts.now(),
        refresh=refresh,
        event=trail.allowed("assembled"),
    )
    answer = await create_snapshot(parts.services, call)
    trail.note(snapshot=answer.hash)
    trail.settle("assembled" if answer.created else "repeat", stored=answer.created)
    _account(answer, metrics)
    return _snapshot_response(answer)


def _account(answer: Answer, metrics: Metrics) -> None:
    """Count and log legs that failed, or returned what the scope does not admit."""
    for leg in answer.degraded:
        metrics.degraded.labels(leg.name, leg.status).inc()
        _log.warning(
            "retriever_failed",
            retriever=leg.name,
            status=leg.status,
            error_type=type(leg.failure).__name__,
        )
    for leg in answer.outcomes:
        if leg.dropped:
            metrics.out_of_scope.labels(leg.name).inc(leg.dropped)
            _log.error("retriever_left_its_scope", retriever=leg.name, dropped=leg.dropped)


def _snapshot_response(answer: Answer) -> Response:
    headers = {
        **PRIVATE,
        "Location": f"/snapshots/{answer.hash}",
        "ETag": f'"{answer.hash}"',
    }
    if answer.degraded:
        headers["Snapshot-Degraded"] = ", ".join(
            f"{leg.name}; reason={leg.status}" for leg in answer.degraded
        )
    return Response(
        answer.canonical,
        status_code=201 if answer.created else 200,
        media_type="application/json",
        headers=headers,
    )


@router.get(
    "",
    operation_id="listSnapshots",
    summary="List snapshots, newest first",
    responses={200: {"model": SnapshotPage}, **problems(403, 422, 503)},
)
async def list_snapshots(
    grant: SnapshotReading,
    parts: PartsParameter,
    run_id: Annotated[Uuid | None, Query(alias="runId")] = None,
    step_id: Annotated[Uuid | None, Query(alias="stepId")] = None,
    attempt_id: Annotated[Uuid | None, Query(alias="attemptId")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=512)] = None,
) -> Response:
    before = None if cursor is None else _place(cursor)
    wanted = SnapshotFilter(run_id, step_id, attempt_id, before, limit + 1)
    found = await parts.reader.list_snapshots(grant, wanted)
    page = found[:limit]
    next_cursor = None
    if len(found) > limit:
        next_cursor = encode_cursor(page[-1].created_at.isoformat(), page[-1].hash)
    return json_response(
        {"snapshots": [_summary(one) for one in page], "nextCursor": next_cursor},
        headers=PRIVATE,
    )


def _place(cursor: str) -> tuple[datetime, Digest]:
    time, digest = decode_cursor(cursor, 2)
    try:
        instant = datetime.fromisoformat(time)
        if instant.tzinfo is None or not digest.startswith("sha256:") or not _REF.fullmatch(digest):
            raise invalid_cursor()
        # In UTC: PostgreSQL takes fewer offsets than Python.
        return instant.astimezone(UTC), Digest(digest)
    except (ValueError, OverflowError) as error:
        raise invalid_cursor() from error


def _summary(one: SnapshotSummary) -> dict[str, object]:
    return {
        "hash": one.hash,
        "snapshotId": one.snapshot_id,
        "runId": one.run_id,
        "stepId": one.step_id,
        "attemptId": one.attempt_id,
        "createdAt": one.created_at.isoformat().replace("+00:00", "Z"),
        "usedTokens": one.used_tokens,
        "degraded": list(one.degraded),
    }


async def _found(ref: str, grant: Grant, parts: Parts, trail: Trail) -> StoredSnapshot:
    """The snapshot of a hash or an id; anything else is unknown like any other."""
    if not _REF.fullmatch(ref):
        raise NotFoundError("No such snapshot.")
    stored = await parts.reader.get(grant, ref.lower())
    trail.note(snapshot=stored.hash)
    return stored


@router.get(
    "/{ref}",
    operation_id="getSnapshot",
    summary="Read a snapshot",
    responses={
        200: {"description": "The snapshot", "content": {"application/json": SNAPSHOT_SCHEMA}},
        **problems(403, 404, 503),
    },
)
async def get_snapshot(
    ref: str,
    request: Request,
    grant: SnapshotReading,
    parts: PartsParameter,
    trail: TrailParameter,
) -> Response:
    """Byte-identical to what was returned first; `ref` is the hash or the snapshot id."""
    stored = await _found(ref, grant, parts, trail)
    return tagged_response(request, stored.canonical, stored.hash)


@router.get(
    "/{ref}/contents",
    operation_id="getSnapshotContents",
    summary="Read the texts of a snapshot",
    responses={200: {"model": Contents}, **problems(403, 404, 503)},
)
async def get_contents(
    ref: str, grant: SnapshotReading, parts: PartsParameter, trail: TrailParameter
) -> Response:
    texts = await parts.reader.contents(grant, await _found(ref, grant, parts, trail))
    contents = [
        {
            "rank": one.rank,
            "contentHash": one.content_hash,
            "text": one.text,
            "erased": one.text is None,
        }
        for one in texts
    ]
    return json_response({"contents": contents}, headers=PRIVATE)


@router.get(
    "/{ref}/prompt",
    operation_id="getSnapshotPrompt",
    summary="Read what goes to the model",
    responses={
        200: {"model": Messages, "content": {"text/plain": TEXT_SCHEMA}},
        **problems(403, 404, 503),
    },
)
async def get_prompt(
    ref: str, grant: SnapshotReading, parts: PartsParameter, trail: TrailParameter
) -> Response:
    """In the snapshot's format: a text, or `{"messages": […]}`."""
    prompt = await parts.reader.prompt(grant, await _found(ref, grant, parts, trail))
    if isinstance(prompt, str):
        return PlainTextResponse(prompt, headers=PRIVATE)
    return json_response({"messages": prompt}, headers=PRIVATE)


@router.get(
    "/{ref}/report",
    operation_id="getSnapshotReport",
    summary="Read how a snapshot came about",
    responses={200: {"model": ReportAnswer}, **problems(403, 404, 503)},
)
async def get_report(
    ref: str, grant: SnapshotReading, parts: PartsParameter, trail: TrailParameter
) -> Response:
    """`report` is bound to the snapshot by hash, `timings` (milliseconds) are not."""
    stored = await _found(ref, grant, parts, trail)
    timings = json_response(dict(stored.timings_ms)).body
    body = b'{"report":%b,"timings":%b}' % (stored.report, bytes(timings))
    return Response(body, media_type="application/json", headers=PRIVATE)


@router.get(
    "/{ref}/verify",
    operation_id="verifySnapshot",
    summary="Check a snapshot again from its stored bytes",
    responses={200: {"model": Verification}, **problems(403, 404, 503)},
)
async def verify_snapshot(
    ref: str, grant: SnapshotReading, parts: PartsParameter, trail: TrailParameter
) -> Response:
    checks = await parts.reader.verify(grant, await _found(ref, grant, parts, trail))
    return json_response(
        {
            "ok": all(check.ok for check in checks),
            "checks": [
                {"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks
            ],
        },
        headers=PRIVATE,
    )


@router.get(
    "/{ref}/explain",
    operation_id="explainSnapshot",
    summary="Explain why a source is in a snapshot or out of it",
    responses={200: {"model": ExplanationAnswer}, **problems(403, 404, 422, 503)},
)
async def explain_snapshot(
    ref: str,
    grant: AuditReading,
    parts: PartsParameter,
    trail: TrailParameter,
    project: Annotated[str, Query(min_length=1, max_length=128)],
    source_id: Annotated[
        str, Query(alias="sourceId", min_length=1, max_length=MAX_SOURCE_ID_CHARS)
    ],
) -> Response:
    """Stage by stage, up to the one that decided; needs `audit:read`."""
    stored = await _found(ref, grant, parts, trail)
    stages = await parts.reader.explain(grant, stored, project, source_id)
    return json_response(
        {
            "stages": [
                {"stage": one.stage, "outcome": one.outcome, "detail": one.detail} for one in stages
            ]
        },
        headers=PRIVATE,
    )


@router.post(
    "/{ref}/replay",
    operation_id="replaySnapshot",
    summary="Assemble a snapshot again and compare",
    responses={200: {"model": ReplayAnswer}, **problems(403, 404, 503)},
)
async def replay_snapshot(
    ref: str, grant: AuditReading, parts: PartsParameter, trail: TrailParameter
) -> Response:
    """From what was stored with it, at its version of the index; needs `audit:read`.

    Nothing is stored. Where the result differs, the first stage that does and why.
    """
    result = await replay(parts.services, await _found(ref, grant, parts, trail))
    answer: dict[str, object] = {"match": result.match}
    if not result.match:
        answer["firstDifference"] = {"stage": result.stage, "reason": result.reason}
    if result.hash is not None:
        answer["hash"] = result.hash
    return json_response(answer, headers=PRIVATE)
