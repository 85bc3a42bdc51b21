"""Errors on the wire: RFC 9457 problem documents, one shape for whatever went wrong.

Guaranteed: every document has `type`, `title`, `status`, `detail` and a stable `code`;
`errors` names the JSON pointers (RFC 6901) of the body, or the parameters, that are to
blame, at most 20, and what to do about each. Input is never sent back whole. A fault of
ours is a 500 that tells nothing but the request id; the log names the type of the exception
and where it was raised, never its text.

Not handled: an error after the response has begun. Its status line cannot be taken back,
so the response is left unfinished, and the server closes the connection.
"""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import errors
from app.api.problem_document import (
    MAX_ERRORS,
    MAX_POINTER_CHARS,
    Problem,
    printable,
    problem_document,
)
from app.errors import ServiceError

_STACK_FRAMES_LOGGED = 8
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

# The nearest class of an error decides; a code in _STATUS_OF_CODE is more special than it.
_STATUS_OF_CLASS: Mapping[type[Exception], int] = {
    errors.ServiceError: 500,
    errors.RequestError: 400,
    errors.MalformedRequestError: 400,
    errors.InvalidRequestError: 422,
    errors.AuthenticationError: 401,
    errors.PermissionMissingError: 403,
    errors.ScopeExceedsGrantError: 403,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.TooLargeError: 413,
    errors.RateLimitedError: 429,
    errors.UnavailableError: 503,
    errors.DeadlineExceededError: 504,
}
_STATUS_OF_CODE: Mapping[str, int] = {
    "method-not-allowed": 405,
    "unsupported-media-type": 415,
}
# Sentences for pydantic's own errors, by their type: what is wanted, and what to do.
_ADVICE: Mapping[str, str] = {
    "missing": "This is required: add it.",
    "extra_forbidden": "This is not known: remove it, or check its spelling.",
    "int_type": "Must be an integer, written without quotes, point or exponent.",
    "string_type": "Must be a string.",
    "bool_type": "Must be true or false, without quotes.",
    "tuple_type": "Must be an array.",
    "list_type": "Must be an array.",
    "dict_type": "Must be an object.",
    "model_type": "Must be an object.",
    "model_attributes_type": "Must be an object.",
    "string_too_long": "Must have at most {max_length} characters: shorten it.",
    "string_too_short": "Must have at least {min_length} characters.",
    "too_long": "Must have at most {max_length} entries: send fewer.",
    "too_short": "Must have at least {min_length} entries: send more.",
    "greater_than": "Must be greater than {gt}: send a greater number.",
    "greater_than_equal": "Must be at least {ge}: send a greater number.",
    "less_than": "Must be less than {lt}: send a smaller number.",
    "less_than_equal": "Must be at most {le}: send a smaller number.",
    "enum": "Must be one of {expected}.",
    "literal_error": "Must be one of {expected}.",
}
# What the framework raises by itself: the code and the sentence for each status.
_FRAMEWORK_ERRORS: Mapping[int, tuple[str, str]] = {
    400: ("malformed-request", "The request could not be read: check its syntax."),
    401: ("authentication-failed", "Send a valid bearer token."),
    404: ("not-found", "There is nothing at this address: check the path."),
    405: ("method-not-allowed", "This address does not take that method: see Allow."),
    413: ("too-large", "The request is larger than this service takes: send less."),
    415: ("unsupported-media-type", "Send the body as application/json in UTF-8."),
}

__all__ = [
    "Problem",
    "ProblemMiddleware",
    "install_problem_handlers",
    "instance_of",
    "problem_response",
    "request_id_of",
]

log = structlog.get_logger()


def problem_response(
    error: ServiceError, *, instance: str | None, request_id: str | None
) -> Response:
    """The response that reports `error`; `instance` is the path that was asked for.

    A 500 tells neither the error's text, code, pointers nor extra members.
    """
    status = _STATUS_OF_CODE.get(error.code) or _nearest(_STATUS_OF_CLASS, error)
    if status == 500:
        log.error("request_failed", **_what_failed(error, request_id), code=error.code)
        return problem_document(500, "internal", _internal_detail(request_id), instance, request_id)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, errors.UnavailableError | errors.RateLimitedError):
        headers["Retry-After"] = str(max(1, error.retry_after_s))
    faults = [{"pointer": pointer, "detail": error.detail} for pointer in error.pointers]
    return problem_document(
        status,
        error.code,
        error.detail,
        instance,
        request_id,
        faults=faults,
        extra=error.extra,
        headers=headers,
    )


def install_problem_handlers(app: FastAPI) -> None:
    """Make `app` answer every error of its routes with a problem document.

    Errors that middlewares raise are outside the reach of handlers: see ProblemMiddleware.
    """
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_any_error)


class ProblemMiddleware:
    """Answers what is raised below it, by middlewares too, and lets nothing through.

    It stands right inside of RequestIdMiddleware, so that a 500 carries the id as well.
    Starlette's own last resort re-raises, and servers then log the exception's text.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception as error:
            request_id = request_id_of(scope)
            if started:
                log.error(  # noqa: TRY400 -- the text of an exception may hold a caller's content
                    "request_failed", **_what_failed(error, request_id), response_started=True
                )
                return
            response = await _on_any_error(Request(scope), error)
            await response(scope, receive, send)


def request_id_of(scope: Scope) -> str | None:
    """The id that RequestIdMiddleware gave to this request, if it has run."""
    value = scope.get("state", {}).get("request_id")
    return value if isinstance(value, str) else None


def instance_of(scope: Scope) -> str:
    """The request's path as a URI reference, cut to a stated length."""
    path = str(scope.get("path", ""))[:MAX_POINTER_CHARS]
    return quote(path, safe="/:@!$&'()*+,;=~", errors="replace")


async def _on_service_error(request: Request, error: Exception) -> Response:
    return problem_response(
        cast("ServiceError", error),
        instance=instance_of(request.scope),
        request_id=request_id_of(request.scope),
    )


async def _on_validation_error(request: Request, error: Exception) -> Response:
    invalid = cast("RequestValidationError", error)
    raised = _without_echoes(cast("Sequence[Mapping[str, object]]", invalid.errors()))
    faults = [_fault(fault, invalid.body) for fault in raised[:MAX_ERRORS]]
    first = faults[0] if faults else {"detail": "The request is not acceptable."}
    where = first.get("pointer") or first.get("parameter") or "The body"
    more = f" ({len(raised)} faults in all; this is the first.)" if len(raised) > 1 else ""
    malformed = any(fault.get("type") == "json_invalid" for fault in raised)
    return problem_document(
        400 if malformed else 422,
        "malformed-request" if malformed else "invalid-request",
        f"{where}: {first['detail']}{more}",
        instance_of(request.scope),
        request_id_of(request.scope),
        faults=faults,
    )


async def _on_http_exception(request: Request, error: Exception) -> Response:
    raised = cast("HTTPException", error)
    status = raised.status_code
    scope = request.scope
    if status < 400:
        return Response(status_code=status, headers=raised.headers)
    code, detail = _FRAMEWORK_ERRORS.get(status, (f"http-{status}", str(raised.detail)))
    headers = dict(raised.headers or {})
    if status == 405:
        # The framework names the methods of one route only, where several share a path.
        headers = {"Allow": ", ".join(_allowed_methods(scope)) or headers.get("Allow", "")}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return problem_document(
        status, code, detail, instance_of(scope), request_id_of(scope), headers=headers
    )


async def _on_any_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ServiceError):
        return await _on_service_error(request, error)
    if isinstance(error, RequestValidationError):
        return await _on_validation_error(request, error)
    if isinstance(error, HTTPException):
        return await _on_http_exception(request, error)
    request_id = request_id_of(request.scope)
    log.error("request_failed", **_what_failed(error, request_id))
    instance = instance_of(request.scope)
    return problem_document(500, "internal", _internal_detail(request_id), instance, request_id)


def _allowed_methods(scope: Scope) -> list[str]:
    router = scope["app"].router
    path = {key: scope[key] for key in ("type", "path", "root_path") if key in scope}
    probes = ((method, {**path, "method": method, "headers": []}) for method in _METHODS)
    return [
        method
        for method, probe in probes
        if any(route.matches(probe)[0] is Match.FULL for route in router.routes)
    ]


def _nearest(statuses: Mapping[type[Exception], int], error: Exception) -> int:
    return next(statuses[kind] for kind in type(error).__mro__ if kind in statuses)


def _what_failed(error: Exception, request_id: str | None) -> dict[str, object]:
    frames = traceback.extract_tb(error.__traceback__)[-_STACK_FRAMES_LOGGED:]
    return {
        "error_type": f"{type(error).__module__}.{type(error).__qualname__}",
        "request_id": request_id,
        "raised_at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def _internal_detail(request_id: str | None) -> str:
    hint = f" and name request {request_id}" if request_id else ""
    return f"The service failed at this request. Try again; if it stays, tell its operator{hint}."


def _without_echoes(faults: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
    """Without arrays that are too short only because their bad entry does not count."""
    places = [_location(fault) for fault in faults]
    return [
        fault
        for fault, place in zip(faults, places, strict=True)
        if fault.get("type") != "too_short"
        or not any(other[: len(place)] == place and other != place for other in places)
    ]


def _location(fault: Mapping[str, object]) -> tuple[int | str, ...]:
    return tuple(cast("Iterable[int | str]", fault.get("loc", ())))


def _fault(fault: Mapping[str, object], body: object) -> dict[str, str]:
    location = _location(fault)
    kind = str(fault.get("type", "invalid"))
    described = {"detail": _sentence(kind, fault), "code": kind.replace("_", "-")}
    if location and location[0] == "body":
        return {"pointer": _pointer(location[1:], body, kind), **described}
    if len(location) > 1:
        return {"parameter": printable(str(location[1]), MAX_POINTER_CHARS), **described}
    return described


def _sentence(kind: str, fault: Mapping[str, object]) -> str:
    context = cast("Mapping[str, object]", fault.get("ctx") or {})
    advice = _ADVICE.get(kind)
    if advice and (context or "{" not in advice):
        return advice.format_map(context)
    return str(fault.get("msg", "Not acceptable.")).removeprefix("Value error, ")


def _pointer(location: Sequence[int | str], body: object, kind: str) -> str:
    """The pointer for pydantic's location, which names branches of unions as well.

    Only steps that exist in the body are real; a missing field is the last step.
    """
    steps: list[str] = []
    node: Any = body
    for depth, step in enumerate(location, start=1):
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            if kind != "missing" or depth < len(location):
                continue
        steps.append(str(step).replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{step}" for step in steps)
