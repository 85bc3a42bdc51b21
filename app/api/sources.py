"""Writing and reading the built-in index."""

import asyncio
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.parts import IndexReading, IndexWriting, Parts, PartsParameter, TrailParameter
from app.api.responses import (
    decode_cursor,
    encode_cursor,
    json_response,
    problems,
    read_response,
)
from app.api.shared_schemas import MAX_SOURCE_ID_CHARS
from app.api.source_examples import PUT_SOURCES_EXAMPLES, PUT_SOURCES_LINES_EXAMPLES
from app.api.source_schemas import (
    DeletedBody,
    IndexBody,
    IndexChangeBody,
    PutSourcesBody,
    ReindexedBody,
    SourcePageBody,
)
from app.api.strict_route import StrictJsonRoute, accepts_ndjson
from app.indexing.index import IndexedSource, SourceFilter
from app.indexing.preparation import ENGINE
from app.retrieval.freshness import staleness
from app.scope.access import whole_grant
from app.scope.grant import Grant
from app.scope.vocabulary import Permission
from app.scope.writing import refuse_beyond_grant

EMBEDDING_GRACE_S = 1.0
"""A writer waits so long for its chunks' vectors; what takes longer comes in the background."""

router = APIRouter(tags=["index"], route_class=StrictJsonRoute)

_PROJECT = Query(min_length=1, max_length=128)
_SOURCE_ID = Query(alias="sourceId", min_length=1, max_length=MAX_SOURCE_ID_CHARS)
ProjectQuery = Annotated[str, _PROJECT]
SourceIdQuery = Annotated[str, _SOURCE_ID]


@router.put(
    "/sources",
    operation_id="putSources",
    summary="Add or replace sources, all or none",
    responses={
        200: {"model": IndexChangeBody, "description": "The change"},
        **problems(400, 403, 413, 415, 422, 503),
    },
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {"examples": PUT_SOURCES_EXAMPLES},
                "application/x-ndjson": {
                    "schema": {
                        "type": "string",
                        "format": "binary",
                        "description": "One source a line",
                    },
                    "examples": PUT_SOURCES_LINES_EXAMPLES,
                },
            }
        }
    },
)
@accepts_ndjson("sources")
async def put_sources(
    body: PutSourcesBody, grant: IndexWriting, parts: PartsParameter, trail: TrailParameter
) -> Response:
    """One call is one index version; sending what is there already changes nothing."""
    drafts = body.to_core(grant)
    trail.note_sources([(draft.label.project, draft.source_id) for draft in drafts])
    refuse_beyond_grant(grant, tuple(draft.label for draft in drafts), "/sources")
    prepared = await asyncio.to_thread(lambda: [parts.preparer.prepare(one) for one in drafts])
    change = await parts.index.put_sources(grant, prepared, trail.allowed())
    trail.settle(stored=change.changed)
    if change.changed:
        await _await_vectors(parts, grant.tenant)
    return json_response(
        {
            "indexVersion": change.index_version,
            "sources": [
                {
                    "project": one.project,
                    "sourceId": one.source_id,
                    "chunks": one.chunks,
                    "unchanged": one.unchanged,
                }
                for one in change.sources
            ],
        }
    )


@router.get(
    "/sources",
    operation_id="listSources",
    summary="List what is indexed, within the grant",
    responses={200: {"model": SourcePageBody}, **problems(403, 422, 503)},
)
async def list_sources(
    request: Request,
    grant: IndexReading,
    parts: PartsParameter,
    project: Annotated[str | None, _PROJECT] = None,
    source_id: Annotated[str | None, _SOURCE_ID] = None,
    prefix: Annotated[str | None, Query(max_length=MAX_SOURCE_ID_CHARS)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    # The longest source id with its project, each character escaped.
    cursor: Annotated[str | None, Query(max_length=16_384)] = None,
) -> Response:
    after = None
    if cursor is not None:
        after_id, after_project = decode_cursor(cursor, 2)
        after = (after_id, after_project)
    wanted = SourceFilter(project, source_id, prefix, after, limit + 1)
    found = await parts.index.list_sources(whole_grant(grant).predicate, wanted)
    page = found[:limit]
    next_cursor = None
    if len(found) > limit:
        next_cursor = encode_cursor(page[-1].source_id, page[-1].label.project)
    now = parts.now()
    return read_response(
        request, {"sources": [_source(one, now) for one in page], "nextCursor": next_cursor}
    )


def _source(one: IndexedSource, now: datetime) -> dict[str, object]:
    stale = staleness(one.revision, one.head_revision, one.expires_at, now)
    document: dict[str, object] = {
        "sourceId": one.source_id,
        "sourceRevision": one.revision,
        "project": one.label.project,
        "class": one.label.knowledge_class,
        "classification": one.label.classification,
        "trustTier": one.label.trust_tier,
        "chunks": one.chunks,
        "mediaType": one.media_type,
        "language": one.language,
        "provenance": one.provenance,
        "expiresAt": one.expires_at,
        # A head of this very revision is no news.
        "headRevision": None if one.head_revision == one.revision else one.head_revision,
        "stale": stale is not None,
    }
    return {name: value for name, value in document.items() if value is not None}


@router.delete(
    "/sources",
    operation_id="deleteSource",
    summary="End a source: it is no longer retrieved, old snapshots keep working",
    responses={200: {"model": DeletedBody}, **problems(403, 404, 422, 503)},
)
async def delete_source(
    grant: IndexWriting,
    parts: PartsParameter,
    trail: TrailParameter,
    project: ProjectQuery,
    source_id: SourceIdQuery,
    erase: Annotated[
        bool,
        Query(
            description="Remove the texts of all its revisions for good, and all that was made "
            "of them; also where the source was deleted before."
        ),
    ] = False,
) -> Response:
    # Outside of the grant: word for word what an unknown source gets.
    known = project if grant.covers_project(project) else ""
    code = "erased" if erase else None
    end = parts.index.erase_source if erase else parts.index.delete_source
    version = await end(grant, known, source_id, trail.allowed(code))
    trail.settle(code, stored=True)
    return json_response({"indexVersion": version})


@router.get(
    "/index",
    operation_id="getIndex",
    summary="Counts and visible version of the index, within the grant",
    responses={200: {"model": IndexBody}, **problems(403, 503)},
)
async def get_index(request: Request, grant: IndexReading, parts: PartsParameter) -> Response:
    found = await parts.index.describe(whole_grant(grant).predicate)
    document: dict[str, object] = {
        "visibleVersion": found.visible.visible_version(),
        "sources": found.visible.sources,
        "chunks": found.visible.chunks,
        "engine": ENGINE,
        "embeddingProfile": await _embedding_profile(parts, grant),
    }
    if grant.allows(Permission.INDEX_WRITE):
        document["indexVersion"] = found.index_version
    return read_response(request, document)


async def _embedding_profile(parts: Parts, grant: Grant) -> dict[str, object] | None:
    """The profile that chunks are embedded under, and how many of those in scope are."""
    if parts.backlog is None:
        return None
    view = await parts.services.views.open(whole_grant(grant))
    profile = parts.backlog.profile
    return {
        "id": profile.id,
        "model": profile.model,
        "dimensions": profile.dimensions,
        "vectors": await parts.backlog.done(grant.tenant, view.label_keys, view.index_version),
        "chunks": view.chunks,
    }


@router.post(
    "/index/reindex",
    operation_id="reindexSources",
    summary="Prepare sources anew that an earlier engine prepared",
    responses={200: {"model": ReindexedBody}, **problems(403, 422, 503)},
)
async def reindex_sources(
    grant: IndexWriting,
    parts: PartsParameter,
    trail: TrailParameter,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most sources of this call.")] = 100,
) -> Response:
    """One batch, the oldest first: call again until nothing remains.

    Revision, label and chunk ids that the writer gave stay.
    """
    outdated = await parts.index.outdated_sources(grant, ENGINE, limit)
    trail.note_sources([(one.draft.label.project, one.draft.source_id) for one in outdated.sources])
    prepared = await asyncio.to_thread(
        lambda: [(one, parts.preparer.prepare(one.draft)) for one in outdated.sources]
    )
    change = await parts.index.reindex(grant, prepared, trail.allowed())
    trail.settle(stored=change.sources > 0)
    if change.sources:
        await _await_vectors(parts, grant.tenant)
    return json_response(
        {
            "reindexed": change.sources,
            "remaining": outdated.count - change.sources,
            "indexVersion": change.index_version,
        }
    )


async def _await_vectors(parts: Parts, tenant: str) -> None:
    if parts.backlog is not None:
        await parts.backlog.settle(tenant, within_s=EMBEDDING_GRACE_S)
