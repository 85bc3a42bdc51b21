"""POST /snapshots: assembling, by the request or by the caller's own key for it."""

import json
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from app.api.accounting import account
from app.api.openapi_document import SNAPSHOT_ANSWER_SCHEMA
from app.api.parts import Assembler, MetricsParameter, PartsParameter, TrailParameter
from app.api.responses import PRIVATE, body_tag, problems
from app.api.snapshot_examples import CREATE_SNAPSHOT_EXAMPLES
from app.api.snapshot_parts import Include, with_parts
from app.api.snapshot_schemas import CreateSnapshotBody, IdempotencyKey
from app.api.strict_route import StrictJsonRoute
from app.pipeline import Answer, Call, create_snapshot
from app.storage.snapshots import StoredSnapshot

_KEY = "Idempotency-Key"
_ANSWER = {"application/json": SNAPSHOT_ANSWER_SCHEMA}

router = APIRouter(prefix="/snapshots", tags=["snapshots"], route_class=StrictJsonRoute)


@router.post(
    "",
    operation_id="createSnapshot",
    status_code=201,
    summary="Assemble the snapshot of one attempt",
    responses={
        201: {"description": "A new snapshot", "content": _ANSWER},
        200: {
            "description": "The snapshot that this request has already, or one of a dry run",
            "content": _ANSWER,
        },
        **problems(400, 403, 409, 413, 415, 422, 429, 503, 504),
    },
    openapi_extra={
        "requestBody": {"content": {"application/json": {"examples": CREATE_SNAPSHOT_EXAMPLES}}}
    },
)
async def post_snapshot(
    request: Request,
    body: CreateSnapshotBody,
    grant: Assembler,
    parts: PartsParameter,
    metrics: MetricsParameter,
    trail: TrailParameter,
    refresh: Annotated[bool, Query(description="Assemble anew, also for a repeat.")] = False,
    dry_run: Annotated[
        bool, Query(alias="dryRun", description="Assemble anew, and store nothing.")
    ] = False,
    include: Annotated[
        Include | None,
        Query(description="What to send along: contents, report, prompt, with commas between."),
    ] = None,
    idempotency_key: Annotated[
        IdempotencyKey | None,
        Header(alias=_KEY, description="Stands for this request, for its tenant and subject."),
    ] = None,
) -> Response:
    """Retrieve, rank and pack what this attempt may know, and keep exactly that.

    The same body under the same scope returns the first snapshot, and so does the same
    Idempotency-Key; with another body it is 409. With `include`, or in a dry run, the snapshot
    is the member `snapshot` of the answer.
    """
    trail.note(runId=body.run_id, attemptId=body.attempt_id)
    if include is not None:
        trail.note(include=include)
    _check_key(request, dry_run=dry_run)
    if parts.backlog is not None:
        parts.backlog.met(grant.tenant)
    call = Call(
        grant,
        body.to_core(grant),
        evaluated_at=parts.now(),
        refresh=refresh,
        dry_run=dry_run,
        idempotency_key=idempotency_key,
        event=trail.allowed("assembled"),
    )
    answer = await create_snapshot(parts.services, call)
    trail.note(snapshot=answer.hash)
    trail.settle(_outcome(answer, dry_run=dry_run), stored=answer.created)
    account(answer, metrics)
    content, tag = answer.canonical, str(answer.hash)
    if include is not None or dry_run:
        content = await with_parts(answer, include, grant, parts.reader)
        tag = body_tag(content)
    headers = {**PRIVATE, "ETag": f'"{tag}"', **_degraded(answer)}
    if not dry_run:
        headers["Location"] = f"/snapshots/{answer.hash}"
    status = 201 if answer.created else 200
    return Response(content, status, media_type="application/json", headers=headers)


def _check_key(request: Request, *, dry_run: bool) -> None:
    """Raises RequestValidationError for a key that comes twice, or with a dry run."""
    sent = len(request.headers.getlist(_KEY))
    fault = None
    if sent > 1:
        fault = ("repeated", "Must be given once only.")
    elif sent and dry_run:
        fault = ("dry_run", "A dry run stores nothing to come back to: leave the key out.")
    if fault:
        raise RequestValidationError([{"type": fault[0], "loc": ("header", _KEY), "msg": fault[1]}])


def _outcome(answer: Answer, *, dry_run: bool) -> str:
    if dry_run:
        return "dry-run"
    return "assembled" if answer.created else "repeat"


def _degraded(answer: Answer) -> dict[str, str]:
    """The header that names the legs without an answer, of a repeat as of its first answer."""
    failed = {leg.name: leg.status for leg in answer.degraded}
    if isinstance(answer.source, StoredSnapshot):
        failed = json.loads(answer.source.inputs).get("failed", {})
    told = ", ".join(f"{name}; reason={status}" for name, status in sorted(failed.items()))
    return {"Snapshot-Degraded": told} if told else {}
