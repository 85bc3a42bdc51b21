"""Answers of the API: JSON bytes as they are, cursors, and entity tags."""

import base64
import binascii
import json
from collections.abc import Mapping

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.api.negotiation import prefers_text
from app.api.text_tables import VIEWS, as_text
from app.canonical import digest_bytes
from app.errors import InvalidRequestError

PRIVATE = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization"}

PROBLEMS = {
    400: "Not JSON, or not in UTF-8",
    401: "No valid token",
    403: "The token does not grant this",
    404: "Unknown, or not for this caller",
    409: "Contradicts what is stored",
    413: "Beyond a limit on size",
    415: "Not a media type that this call takes",
    422: "A field is not acceptable",
    429: "Too many requests",
    500: "A fault of the service; its log tells more of the request's id",
    503: "A part is down or overloaded; try again after Retry-After seconds",
    504: "The time allowed ran out",
}


def problems(*statuses: int) -> dict[int | str, dict[str, object]]:
    """The statuses of the problem documents that an operation can answer, for OpenAPI."""
    return {status: {"description": PROBLEMS[status]} for status in (401, *statuses)}


def json_response(
    content: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json", headers=headers)


def body_tag(body: bytes) -> str:
    """The entity tag of a representation that nothing else names."""
    return digest_bytes(body)


def tagged_response(
    request: Request,
    body: bytes,
    *,
    tag: str | None = None,
    media_type: str = "application/json",
) -> Response:
    """The body with its entity tag; 304 without it when the caller has that already.

    JSON becomes a table where the operation has one and the caller would rather have text.
    """
    operation = getattr(request.scope.get("route"), "operation_id", None)
    wants_text = operation in VIEWS and prefers_text(request.headers.getlist("accept"))
    if wants_text and media_type == "application/json":
        body, tag = as_text(str(operation), orjson.loads(body)).encode(), None
        media_type = "text/plain"
    tag = tag or body_tag(body)
    headers = {**PRIVATE, "ETag": f'"{tag}"'}
    held = {value.strip() for value in request.headers.get("if-none-match", "").split(",")}
    if held & {f'"{tag}"', f'W/"{tag}"', "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def read_response(request: Request, content: object) -> Response:
    """JSON, or a table, for a call that reads, with its entity tag."""
    return tagged_response(request, orjson.dumps(content))


def encode_cursor(*values: str) -> str:
    """An opaque place in a listing."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, length: int) -> tuple[str, ...]:
    """The values of a cursor of `length` values.

    Raises InvalidRequestError for one that was not made by `encode_cursor`.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise invalid_cursor() from error
    if (
        not isinstance(values, list)
        or len(values) != length
        or not all(isinstance(value, str) and "\0" not in value for value in values)
    ):
        raise invalid_cursor()
    try:
        "".join(values).encode()
    except UnicodeEncodeError as error:
        raise invalid_cursor() from error
    return tuple(values)


def invalid_cursor() -> InvalidRequestError:
    """What to raise for a cursor that is none of the listing's."""
    return InvalidRequestError(
        "cursor: not one that this service gave out; leave it out to start from the beginning.",
        code="invalid-cursor",
    )
