"""Everything that reads snapshots back: authorised first, 304 for who holds the bytes already."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.audit_trail import Trail
from app.api.openapi_document import SNAPSHOT_SCHEMA, TEXT_SCHEMA
from app.api.parts import AuditReading, Parts, PartsParameter, SnapshotReading, TrailParameter
from app.api.read_schemas import (
    Contents,
    DiffAnswer,
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
    read_response,
    tagged_response,
)
from app.api.shared_schemas import MAX_SOURCE_ID_CHARS, SNAPSHOT_REF
from app.api.snapshot_parts import contents_document, prompt_document
from app.api.strict_model import Uuid
from app.api.strict_route import StrictJsonRoute
from app.canonical import Digest
from app.errors import NotFoundError
from app.replay import replay
from app.scope.grant import Grant
from app.snapshot.diff import Difference
from app.storage.snapshots import SnapshotFilter, SnapshotSummary, StoredSnapshot

router = APIRouter(prefix="/snapshots", tags=["snapshots"], route_class=StrictJsonRoute)

_REF = re.compile(SNAPSHOT_REF)


@router.get(
    "",
    operation_id="listSnapshots",
    summary="List snapshots, newest first",
    responses={200: {"model": SnapshotPage}, **problems(403, 422, 503)},
)
async def list_snapshots(
    request: Request,
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
    return read_response(
        request, {"snapshots": [_summary(one) for one in page], "nextCursor": next_cursor}
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


async def _found(
    ref: str, grant: Grant, parts: Parts, trail: Trail, *, target: str = "snapshot"
) -> StoredSnapshot:
    """The snapshot of a hash or an id; anything else is unknown like any other."""
    if not _REF.fullmatch(ref):
        raise NotFoundError("No such snapshot.")
    stored = await parts.reader.get(grant, ref.lower())
    trail.note(**{target: stored.hash})
    return stored


@router.get(
    "/{ref}",
    operation_id="getSnapshot",
    summary="Read a snapshot",
    responses={
        200: {
            "description": "The snapshot",
            "content": {"application/json": SNAPSHOT_SCHEMA},
        },
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
    """Byte-identical to what was returned first; `ref` is the hash or the snapshot id.

    As `text/plain` it is a table for people.
    """
    stored = await _found(ref, grant, parts, trail)
    return tagged_response(request, stored.canonical, tag=stored.hash)


@router.get(
    "/{ref}/contents",
    operation_id="getSnapshotContents",
    summary="Read the texts of a snapshot",
    responses={200: {"model": Contents}, **problems(403, 404, 503)},
)
async def get_contents(
    ref: str,
    request: Request,
    grant: SnapshotReading,
    parts: PartsParameter,
    trail: TrailParameter,
) -> Response:
    texts = await parts.reader.contents(grant, await _found(ref, grant, parts, trail))
    return read_response(request, {"contents": contents_document(texts)})


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
    ref: str,
    request: Request,
    grant: SnapshotReading,
    parts: PartsParameter,
    trail: TrailParameter,
) -> Response:
    """In the snapshot's format: a text, or `{"messages": […]}`."""
    prompt = await parts.reader.prompt(grant, await _found(ref, grant, parts, trail))
    if isinstance(prompt, str):
        body = prompt.encode()
        return tagged_response(request, body, media_type="text/plain")
    return read_response(request, prompt_document(prompt))


@router.get(
    "/{ref}/report",
    operation_id="getSnapshotReport",
    summary="Read how a snapshot came about",
    responses={200: {"model": ReportAnswer}, **problems(403, 404, 503)},
)
async def get_report(
    ref: str,
    request: Request,
    grant: SnapshotReading,
    parts: PartsParameter,
    trail: TrailParameter,
) -> Response:
    """`report` is bound to the snapshot by hash, `timings` (milliseconds) are not."""
    stored = await _found(ref, grant, parts, trail)
    timings = json_response(dict(stored.timings_ms)).body
    body = b'{"report":%b,"timings":%b}' % (stored.report, bytes(timings))
    return tagged_response(request, body)


@router.get(
    "/{ref}/verify",
    operation_id="verifySnapshot",
    summary="Check a snapshot again from its stored bytes",
    responses={200: {"model": Verification}, **problems(403, 404, 503)},
)
async def verify_snapshot(
    ref: str,
    request: Request,
    grant: SnapshotReading,
    parts: PartsParameter,
    trail: TrailParameter,
) -> Response:
    checks = await parts.reader.verify(grant, await _found(ref, grant, parts, trail))
    return read_response(
        request,
        {
            "ok": all(check.ok for check in checks),
            "checks": [
                {"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks
            ],
        },
    )


@router.get(
    "/{ref}/diff/{other}",
    operation_id="diffSnapshots",
    summary="Compare the items of two snapshots, with the cause of each difference",
    responses={200: {"model": DiffAnswer}, **problems(403, 404, 503)},
)
async def diff_snapshots(
    ref: str,
    other: str,
    request: Request,
    grant: SnapshotReading,
    parts: PartsParameter,
    trail: TrailParameter,
) -> Response:
    """From `ref` to `other`; each of them a hash or an id that the caller can read.

    Of what was added, removed or changed one cause is told, the first that holds: what the
    request brought or pinned (`query`), another revision of the source, the index at the same
    revision, the other scope, a retriever that failed (`degraded`), the `budget` or the
    `strategy` that left it out; else the first of query, strategy, scope, degraded and index in
    which the two snapshots differ at all.
    """
    before = await _found(ref, grant, parts, trail)
    after = await _found(other, grant, parts, trail, target="otherSnapshot")
    return read_response(request, _diff_document(await parts.reader.diff(before, after)))


def _diff_document(differences: Sequence[Difference]) -> dict[str, object]:
    items: dict[str, list[object]] = {kind: [] for kind in ("added", "removed", "moved", "changed")}
    causes = []
    for one in differences:
        name = _item_name(one)
        sides = {"before": one.before, "after": one.after}
        shown = {side: _item_side(item) for side, item in sides.items() if item is not None}
        items[one.kind].append({**name, **shown})
        if one.cause is not None:
            causes.append({"item": name, "cause": one.cause, "detail": one.detail})
    return {"items": items, "causes": causes}


def _item_name(one: Difference) -> dict[str, object]:
    item = one.after or one.before or {}
    return {name: item[name] for name in ("project", "sourceId", "chunkId")}


def _item_side(item: Mapping[str, object]) -> dict[str, object]:
    return {name: item[name] for name in ("rank", "sourceRevision", "contentHash")}


@router.get(
    "/{ref}/explain",
    operation_id="explainSnapshot",
    summary="Explain why a source is in a snapshot or out of it",
    responses={200: {"model": ExplanationAnswer}, **problems(403, 404, 422, 503)},
)
async def explain_snapshot(
    ref: str,
    request: Request,
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
    return read_response(
        request,
        {
            "stages": [
                {"stage": one.stage, "outcome": one.outcome, "detail": one.detail} for one in stages
            ]
        },
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
