"""Telling the index which revisions of sources are the newest."""

from fastapi import APIRouter
from starlette.responses import Response

from app.api.head_schemas import PUT_HEADS_EXAMPLES, HeadsChangeBody, PutHeadsBody
from app.api.parts import IndexWriting, PartsParameter, TrailParameter
from app.api.responses import json_response, problems
from app.api.strict_route import StrictJsonRoute
from app.scope.writing import refuse_other_projects

router = APIRouter(tags=["index"], route_class=StrictJsonRoute)


@router.put(
    "/sources/heads",
    operation_id="putSourceHeads",
    summary="Tell of newer revisions, all or none",
    responses={
        200: {"model": HeadsChangeBody, "description": "The change"},
        **problems(400, 403, 413, 415, 422, 503),
    },
    openapi_extra={
        "requestBody": {"content": {"application/json": {"examples": PUT_HEADS_EXAMPLES}}}
    },
)
async def put_heads(
    body: PutHeadsBody, grant: IndexWriting, parts: PartsParameter, trail: TrailParameter
) -> Response:
    """Until a source is indexed at its head's revision, what is indexed of it is stale.

    A head may be put before its source is indexed, and stays when it is deleted. One call
    is one index version; sending what is there already changes nothing.
    """
    heads = body.to_core(grant)
    trail.note_sources([head.key for head in heads])
    refuse_other_projects(grant, tuple(head.project for head in heads), "/heads")
    change = await parts.index.put_heads(grant, heads, trail.allowed())
    trail.settle(stored=len(change.unchanged) < len(heads))
    return json_response(
        {
            "indexVersion": change.index_version,
            "heads": [
                {
                    "project": head.project,
                    "sourceId": head.source_id,
                    "unchanged": head in change.unchanged,
                }
                for head in heads
            ],
        }
    )
