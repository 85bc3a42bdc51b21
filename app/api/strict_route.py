"""The route class of the API: reads the body and the query string without guessing.

Guaranteed: a body is `application/json` (or `+json`) in UTF-8, else 415; it holds strict JSON
(`app.api.strict_json`), else 400 or 422; a required body is not empty, else 400. Query
parameters that the operation does not know, single ones that come twice, those that are not
UTF-8 or hold NUL, integers in anything but plain digits, and booleans other than `true` and
`false` are 422 and named; NUL in the path as well. Bodies beyond 64 KiB are parsed and
validated in a thread. Dependencies, validation and its errors are FastAPI's own. Of a caller
whom a dependency marked by `before_body` refuses, the body is not even read.

A body that an operation does not declare, as on GET, is not looked at.

Not handled: the size of bodies (`app.api.middleware.body_limit`), compressed bodies (415),
forms, and query parameters of dependencies that are given to `include_router` alone: they
count as unknown, since the route never sees them.
"""

import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qsl

from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from app.api.strict_json import parse_json, parse_ndjson
from app.errors import MalformedRequestError, RequestError

NDJSON = "application/x-ndjson"
_INLINE_BYTES = 64 * 1024
_NDJSON_MEMBER = "__ndjson_member__"
_BEFORE_BODY = "__before_body__"

_DIGITS = re.compile(r"-?[0-9]+")
_WORDS = re.compile(r"true|false")

_Validate = Callable[..., tuple[Any, list[dict[str, Any]]]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., object])
Check = TypeVar("Check", bound=Callable[[Request], Awaitable[object]])


def accepts_ndjson(member: str) -> Callable[[Endpoint], Endpoint]:
    """Let an operation take NDJSON too: its lines become the array `member` of the body.

    Stands between the router's decorator and the function, so that the model behind it sees
    the same `{member: [...]}` from either media type.
    """

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _NDJSON_MEMBER, member)
        return endpoint

    return mark


def before_body(check: Check) -> Check:
    """Let a dependency that looks at the request alone refuse it before its body is read."""
    setattr(check, _BEFORE_BODY, True)
    return check


@dataclass(frozen=True, slots=True)
class _Parameter:
    """What a query parameter of this annotation may look like."""

    annotation: object

    @property
    def is_repeatable(self) -> bool:
        return _is_sequence(self.annotation)

    def fault_of(self, value: str) -> tuple[str, str] | None:
        """The kind of the fault and a sentence; None for what validation may look at.

        Left to itself, it takes 1.0 and 1_0 for integers, and 1 and on for booleans.
        """
        if "\0" in value:
            return "nul", "Must not hold NUL."
        types = _scalars(self.annotation)
        if int in types and not _DIGITS.fullmatch(value):
            return "int_parsing", "Must be an integer, written in plain digits."
        if bool in types and not _WORDS.fullmatch(value):
            return "bool_parsing", "Must be true or false."
        return None


class StrictJsonRoute(APIRoute):
    """Use as `APIRouter(route_class=StrictJsonRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, behind the checks that the module promises."""
        validate_and_call = super().get_route_handler()
        known = dict(_query_parameters(self.dependant))
        body_field = self.body_field
        # FastAPI gives several body parameters a model of its own, which validates as a whole.
        is_single = any(field is body_field for field in self.dependant.body_params)
        validate = body_field.validate if is_single and body_field else None
        ndjson_member: str | None = getattr(self.endpoint, _NDJSON_MEMBER, None)
        calls = [dependency.call for dependency in self.dependant.dependencies]
        checks = [call for call in calls if call and getattr(call, _BEFORE_BODY, False)]

        async def handle(request: Request) -> Response:
            _check_parameters(request, known)
            if body_field is None:
                return await validate_and_call(request)
            for check in checks:
                await check(request)
            media_type = _media_type(request, takes_ndjson=ndjson_member is not None)
            body = await _read(request)
            if not body and not body_field.field_info.is_required():
                return await validate_and_call(request)
            _check_presence(body, media_type)
            parse: Callable[[bytes], JsonValue] = parse_json
            if media_type == NDJSON and ndjson_member is not None:
                parse = _lines_as(ndjson_member)
            if len(body) > _INLINE_BYTES:
                value = await run_in_threadpool(_parse_and_validate, parse, body, validate)
            else:
                value = parse(body)
            return await validate_and_call(_ParsedRequest(request, body, value))

        return handle


class _ParsedRequest(Request):
    """The same request, its body read and parsed; it calls itself JSON, as FastAPI expects."""

    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        others = [pair for pair in request.scope["headers"] if pair[0].lower() != b"content-type"]
        headers = [*others, (b"content-type", b"application/json")]
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._raw = body
        self._value = value

    async def body(self) -> bytes:
        """The bytes as they came."""
        return self._raw

    async def json(self) -> Any:
        """What was made of them."""
        return self._value


def _parse_and_validate(
    parse: Callable[[bytes], JsonValue], body: bytes, validate: _Validate | None
) -> Any:
    """The model where the body is valid, which FastAPI then takes as it is; else the value.

    FastAPI validates on the event loop; the faults of an invalid value are left to it, so
    that they are reported in the same order as those of short bodies.
    """
    value = parse(body)
    if validate is None:
        return value
    model, faults = validate(value, loc=("body",))
    return value if faults else model


async def _read(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise MalformedRequestError("The connection ended before the body was complete.") from error


def _media_type(request: Request, *, takes_ndjson: bool) -> str | None:
    """The body's media type, None if none is given; 415 unless it is one that is taken."""
    values = request.headers.getlist("content-type")
    encodings = {value.strip().lower() for value in request.headers.getlist("content-encoding")}
    if encodings - {"identity"}:
        raise _unsupported("The body is compressed: send it without Content-Encoding.")
    if not values:
        return None
    essence, *parameters = (part.strip().lower() for part in values[0].split(";"))
    charsets = [part[8:].strip('"') for part in parameters if part.startswith("charset=")]
    is_json = essence == "application/json" or (
        essence.startswith("application/") and essence.endswith("+json")
    )
    known = is_json or (takes_ndjson and essence == NDJSON)
    if len(values) > 1 or not known or any(name not in ("utf-8", "utf8") for name in charsets):
        also = f" or {NDJSON}" if takes_ndjson else ""
        raise _unsupported(f"Send the body as application/json{also} in UTF-8.")
    return NDJSON if essence == NDJSON else "application/json"


def _unsupported(detail: str) -> MalformedRequestError:
    return MalformedRequestError(detail, code="unsupported-media-type")


def _check_presence(body: bytes, media_type: str | None) -> None:
    if not body:
        raise MalformedRequestError("The body is empty: send a JSON object.")
    if media_type is None:
        raise _unsupported("The body has no Content-Type: send it as application/json in UTF-8.")


def _lines_as(member: str) -> Callable[[bytes], JsonValue]:
    def parse(body: bytes) -> JsonValue:
        try:
            return {member: parse_ndjson(body)}
        except RequestError as error:
            raise type(error)(
                error.detail,
                pointers=tuple(f"/{member}{pointer}" for pointer in error.pointers),
                code=error.code,
                extra=error.extra,
            ) from error

    return parse


def _check_parameters(request: Request, known: Mapping[str, _Parameter]) -> None:
    faults = [
        _fault("path", name, "nul", "Must not hold NUL.")
        for name, value in request.path_params.items()
        if isinstance(value, str) and "\0" in value
    ]
    raw = request.scope.get("query_string", b"").decode("latin-1")
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        pairs = []
        faults.append(_fault("query", "query", "encoding", "The query string must be UTF-8."))
    seen: set[str] = set()
    for name, value in pairs:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            sentence = f"This parameter is not known here: remove it. Known: {names}."
            faults.append(_fault("query", name, "extra_forbidden_parameter", sentence))
        elif name in seen and not known[name].is_repeatable:
            faults.append(_fault("query", name, "repeated", "Must be given once only."))
        elif fault := known[name].fault_of(value):
            faults.append(_fault("query", name, *fault))
        seen.add(name)
    if faults:
        raise RequestValidationError(faults)


def _fault(place: str, name: str, kind: str, sentence: str) -> dict[str, object]:
    return {"type": kind, "loc": (place, name), "msg": sentence}


def _query_parameters(dependant: Dependant) -> Iterator[tuple[str, _Parameter]]:
    """All query parameters by their names, those of dependencies too."""
    for field in dependant.query_params:
        fields = getattr(field.field_info.annotation, "model_fields", None)
        if fields is None:
            name = field.validation_alias or field.alias
            yield name, _Parameter(field.field_info.annotation)
            continue
        for name, info in fields.items():
            yield info.alias or name, _Parameter(info.annotation)
    for dependency in dependant.dependencies:
        yield from _query_parameters(dependency)


def _is_sequence(annotation: object) -> bool:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(_is_sequence(branch) for branch in get_args(annotation))
    if origin is Annotated:
        return _is_sequence(get_args(annotation)[0])
    return origin in (list, tuple, set, frozenset, Sequence)


def _scalars(annotation: object) -> set[object]:
    """The types that one value may be read into."""
    parts = get_args(annotation)
    if not parts:
        return {annotation}
    if get_origin(annotation) is Annotated:
        return _scalars(parts[0])
    return set().union(*(_scalars(part) for part in parts))
