"""The RFC 9457 problem document: its schema, and the response that holds one.

Guaranteed: whatever goes in, the response is valid I-JSON of bounded size. Texts are cut to
a stated length and made printable (lone surrogates, NUL and other controls become escapes);
numbers that JSON clients cannot read exactly, and values of unknown types, are described.

Not handled: which error gets which status; see `app.api.problems`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message

from app import visible

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 20
MAX_POINTER_CHARS = 256
_MAX_DETAIL_CHARS = 1_000
_MAX_FAULT_CHARS = 500
_MAX_NAME_CHARS = 64
_MAX_EXTRA_MEMBERS = 100
_MAX_EXTRA_DEPTH = 6
_MAX_EXACT_INT = 2**53 - 1
_TITLES: Mapping[int, str] = {
    400: "Malformed request",
    401: "Authentication failed",
    403: "Not permitted",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    422: "Invalid request",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
    504: "Deadline exceeded",
}


class ProblemError(BaseModel):
    """One fault of the request: where it is and what to do about it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # The factories keep `"default": null` out of the schema: absent members are left out.
    pointer: str | SkipJsonSchema[None] = Field(
        default_factory=lambda: None,
        description="JSON pointer (RFC 6901) into the request's body",
        examples=["/budget/maxTokens"],
    )
    parameter: str | SkipJsonSchema[None] = Field(
        default_factory=lambda: None,
        description="Name of the query, path or header parameter",
        examples=["limit"],
    )
    detail: str = Field(examples=["Must be at most 2147483647: send a smaller number."])
    code: str | SkipJsonSchema[None] = Field(
        default_factory=lambda: None, examples=["less_than_equal"]
    )


class Problem(BaseModel):
    """An RFC 9457 problem document (`application/problem+json`)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(examples=["urn:ctxsnap:problem:invalid-request"])
    title: str = Field(examples=["Invalid request"])
    status: int = Field(ge=400, le=599, examples=[422])
    detail: str = Field(examples=["/budget/maxTokens: Must be an integer."])
    instance: str | SkipJsonSchema[None] = Field(
        default_factory=lambda: None,
        description="The path that was asked for",
        examples=["/snapshots"],
    )
    code: str = Field(
        description="Stable, for programs; `type` ends in it. Others may be added.",
        examples=["invalid-request", "budget-too-small", "scope-exceeds-grant", "not-found"],
    )
    request_id: str | SkipJsonSchema[None] = Field(
        default_factory=lambda: None,
        alias="requestId",
        description="The same as the response's X-Request-Id",
    )
    errors: tuple[ProblemError, ...] | SkipJsonSchema[None] = Field(
        default_factory=lambda: None, max_length=MAX_ERRORS
    )


def printable(text: str, max_chars: int = _MAX_DETAIL_CHARS) -> str:
    """`text` cut to `max_chars` characters, what cannot be shown written as an escape."""
    cut = text if len(text) <= max_chars else text[: max_chars - 1] + "…"
    return visible.printable(cut)


def problem_document(
    status: int,
    code: str,
    detail: str,
    instance: str | None,
    request_id: str | None,
    *,
    faults: Sequence[Mapping[str, str]] = (),
    extra: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """One document; standard members win over `extra` ones of the same name."""
    stable_code = re.sub(r"[^a-z0-9-]", "-", code.lower())[:_MAX_NAME_CHARS]
    document: dict[str, object] = {
        "type": f"urn:ctxsnap:problem:{stable_code}",
        "title": _TITLES.get(status, "Request refused"),
        "status": status,
        "detail": printable(detail),
        "instance": None if instance is None else printable(instance),
        "code": stable_code,
        "requestId": None if request_id is None else printable(request_id),
        "errors": [
            {
                member: printable(
                    text, _MAX_FAULT_CHARS if member == "detail" else MAX_POINTER_CHARS
                )
                for member, text in fault.items()
            }
            for fault in faults[:MAX_ERRORS]
        ]
        or None,
    }
    members = {member: value for member, value in document.items() if value is not None}
    for member, value in list((extra or {}).items())[:_MAX_EXTRA_MEMBERS]:
        members.setdefault(printable(str(member), _MAX_NAME_CHARS), _plain(value))
    return Response(
        json.dumps(members, ensure_ascii=False, allow_nan=False),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def problem_code(head: Message, body: Message) -> str | None:
    """The code of a problem document among an answer's messages; ours come in one piece."""
    if Headers(raw=head["headers"]).get("content-type") != MEDIA_TYPE:
        return None
    return str(json.loads(body["body"])["code"])


def _plain(value: object, depth: int = 1) -> object:
    """`value` as JSON that any client can read; what JSON has no word for becomes its type."""
    if value is None or isinstance(value, bool | int | float):
        return _exact(value)
    if isinstance(value, str | date | UUID):
        return printable(str(value))
    if depth < _MAX_EXTRA_DEPTH and isinstance(value, Mapping):
        some = list(value.items())[:_MAX_EXTRA_MEMBERS]
        return {
            printable(str(key), _MAX_NAME_CHARS): _plain(member, depth + 1) for key, member in some
        }
    if depth < _MAX_EXTRA_DEPTH and isinstance(value, tuple | list | set | frozenset):
        entries = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_plain(entry, depth + 1) for entry in list(entries)[:_MAX_EXTRA_MEMBERS]]
    return f"a value of type {type(value).__name__}"


def _exact(value: float | None) -> float | str | None:
    if isinstance(value, int) and abs(value) > _MAX_EXACT_INT:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
