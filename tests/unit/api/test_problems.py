"""Problem documents: every error of the tree on the wire, and what they never give away."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest
import structlog
from fastapi import APIRouter, FastAPI, HTTPException, Query
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app import errors
from app.api.middleware.request_id import RequestIdMiddleware
from app.api.problems import (
    Problem,
    ProblemMiddleware,
    install_problem_handlers,
    problem_response,
)
from app.errors import ServiceError


def document(response: Response) -> dict[str, Any]:
    members = json.loads(bytes(response.body).decode("utf-8"))
    assert isinstance(members, dict)
    Problem.model_validate_json(bytes(response.body))
    return members


def report(error: ServiceError) -> tuple[Response, dict[str, Any]]:
    response = problem_response(error, instance="/snapshots", request_id="r-1")
    return response, document(response)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.MalformedRequestError("x"), 400, "malformed-request"),
        (errors.AuthenticationError("x"), 401, "authentication-failed"),
        (errors.PermissionMissingError("x"), 403, "permission-missing"),
        (errors.ScopeExceedsGrantError("x"), 403, "scope-exceeds-grant"),
        (errors.NotFoundError("x"), 404, "not-found"),
        (errors.ConflictError("x"), 409, "conflict"),
        (errors.TooLargeError("x"), 413, "too-large"),
        (errors.MalformedRequestError("x", code="unsupported-media-type"), 415, None),
        (errors.InvalidRequestError("x"), 422, "invalid-request"),
        (errors.PinUnavailableError("x"), 422, "pin-unavailable"),
        (errors.BudgetTooSmallError(10, 5), 422, "budget-too-small"),
        (errors.RateLimitedError("x"), 429, "rate-limited"),
        (errors.UnavailableError("x"), 503, "unavailable"),
        (errors.RetrieverUnavailableError("x"), 503, "retriever-unavailable"),
        (errors.DeadlineExceededError("x"), 504, "deadline-exceeded"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ServiceError) else None,
)
def test_each_error_has_its_status_and_a_stable_code(
    error: ServiceError, status: int, code: str | None
) -> None:
    response, members = report(error)
    assert response.status_code == members["status"] == status
    assert response.headers["content-type"] == "application/problem+json"
    assert members["code"] == (code or error.code)
    assert members["type"] == f"urn:ctxsnap:problem:{members['code']}"
    assert members["detail"] == error.detail
    assert members["instance"] == "/snapshots"
    assert members["requestId"] == "r-1"
    assert members["title"]


def _error_classes(root: type[ServiceError]) -> Iterator[type[ServiceError]]:
    yield root
    for below in root.__subclasses__():
        yield from _error_classes(below)


# The command line has errors of its own, which take other arguments.
@pytest.mark.parametrize(
    "kind", [one for one in _error_classes(ServiceError) if one.__module__ == "app.errors"]
)
def test_no_request_error_becomes_a_500_and_no_other_a_4xx(kind: type[ServiceError]) -> None:
    error = kind(1, 2) if kind is errors.BudgetTooSmallError else kind("x")
    response, _ = report(error)
    assert (400 <= response.status_code < 500) == isinstance(error, errors.RequestError)


def test_a_401_names_the_scheme_and_a_503_the_time_to_wait() -> None:
    assert report(errors.AuthenticationError("x"))[0].headers["www-authenticate"] == "Bearer"
    assert report(errors.UnavailableError("x", retry_after_s=7))[0].headers["retry-after"] == "7"
    assert report(errors.UnavailableError("x", retry_after_s=0))[0].headers["retry-after"] == "1"


def test_pointers_and_extra_members_are_given_and_standard_members_win() -> None:
    _, members = report(errors.BudgetTooSmallError(1200, 1000))
    assert members["requiredTokens"] == 1200
    assert [fault["pointer"] for fault in members["errors"]] == ["/budget/maxTokens"]
    extra = {"status": 200, "known": ("a", "b"), "id": UUID(int=1), "n": 0.5}
    _, members = report(errors.InvalidRequestError("x", extra=extra))
    assert members["status"] == 422
    assert members["known"] == ["a", "b"]
    assert members["n"] == 0.5
    assert members["id"] == str(UUID(int=1))


@pytest.mark.parametrize(
    "error",
    [
        errors.CorruptRecordError("secret", pointers=("/secret",), extra={"secret": 1}),
        errors.ConfigurationError("secret", code="secret"),
        ServiceError("secret"),
    ],
)
def test_a_500_gives_nothing_inner_away_and_is_logged(error: ServiceError) -> None:
    with structlog.testing.capture_logs() as logs:
        response, members = report(error)
    assert response.status_code == 500
    assert members["code"] == "internal"
    assert "secret" not in bytes(response.body).decode()
    assert [entry["event"] for entry in logs] == ["request_failed"]
    assert logs[0]["error_type"].endswith(type(error).__name__)


def test_hostile_values_are_cut_and_made_printable() -> None:
    hostile = "\ud83d\0\x1b[31m\u202e" + "x" * 1_000_000
    loop: list[object] = []
    loop.append(loop)
    error = errors.InvalidRequestError(
        hostile,
        pointers=("/" + hostile,) * 1_000,
        code=hostile,
        extra={
            hostile: hostile,
            "n": 10**5_000,
            "nan": float("nan"),
            "o": object(),
            "l": loop,
            "m": {"k": [hostile] * 100_000},
        },
    )
    response, members = report(error)
    text = bytes(response.body).decode("utf-8")
    assert len(text) < 200_000
    assert "\0" not in text
    assert "\u202e" not in text
    assert members["detail"].startswith("\\ud83d\\x00\\x1b[31m\\u202exxx")
    assert len(members["errors"]) == 20
    assert members["nan"] == "nan"
    assert members["o"] == "a value of type object"


@pytest.fixture
def app() -> FastAPI:
    router = APIRouter()

    @router.get("/things")
    async def read_things(limit: int = Query(default=1, ge=1, le=10)) -> int:
        return limit

    @router.put("/things")
    async def put_things(body: dict[str, list[int | bool]]) -> None: ...

    @router.get("/fails/{how}")
    async def fail(how: str) -> None:
        raise {
            "value": ValueError("secret"),
            "known": errors.ConflictError("The key was used with another body."),
            "http": HTTPException(418, detail="Short and stout."),
            "group": ExceptionGroup("secret", [ValueError("secret")]),
        }[how]

    @router.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> Any:
            yield b"part"
            raise ValueError("secret")

        return StreamingResponse(parts())

    app = FastAPI()
    app.include_router(router, prefix="/v1")
    install_problem_handlers(app)
    app.add_middleware(ProblemMiddleware)
    app.add_middleware(RequestIdMiddleware)
    return app


@pytest.fixture
async def client(app: FastAPI) -> Any:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_errors_of_the_routes_are_answered_as_problems(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/fails/known")
    assert response.status_code == 409
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["instance"] == "/v1/fails/known"
    assert response.json()["requestId"] == response.headers["x-request-id"]
    assert response.headers["cache-control"] == "no-store"
    assert (await client.get("/v1/fails/http")).json()["detail"] == "Short and stout."


@pytest.mark.parametrize("how", ["value", "group"])
async def test_an_unknown_exception_is_a_500_that_is_logged_without_its_text(
    client: httpx.AsyncClient, how: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        response = await client.get(f"/v1/fails/{how}", headers={"x-request-id": "mine"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "mine"
    assert "secret" not in response.text + repr(logs)
    assert response.json()["code"] == "internal"
    assert "mine" in response.json()["detail"]
    (entry,) = logs
    assert entry["event"] == "request_failed"
    assert entry["error_type"] in ("builtins.ValueError", "builtins.ExceptionGroup")
    assert any("test_problems.py" in frame for frame in entry["raised_at"])


async def test_the_handlers_alone_answer_an_unknown_exception_too() -> None:
    app = FastAPI()
    install_problem_handlers(app)

    @app.get("/")
    async def fail() -> None:
        raise ValueError("secret")

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/")
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "secret" not in response.text


async def test_errors_of_middlewares_are_answered_as_problems() -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        raise errors.AuthenticationError("No token.")

    transport = httpx.ASGITransport(app=RequestIdMiddleware(ProblemMiddleware(refuse)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/a\u202eb")
    assert response.status_code == 401
    assert response.json()["instance"] == "/a%E2%80%AEb"
    assert response.json()["requestId"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("status", "code"), [(401, "authentication-failed"), (415, "unsupported-media-type")]
)
async def test_the_frameworks_own_errors_are_problems_wherever_they_are_raised(
    status: int, code: str
) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        raise HTTPException(status)

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=ProblemMiddleware(refuse)), base_url="http://test"
    ) as client:
        response = await client.get("/")
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)


async def test_an_answer_that_is_no_error_stays_as_it_is() -> None:
    app = FastAPI()
    install_problem_handlers(app)

    @app.get("/")
    async def unchanged() -> None:
        raise HTTPException(304, headers={"etag": '"x"'})

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://test"
    ) as client:
        response = await client.get("/")
    assert (response.status_code, response.content) == (304, b"")
    assert response.headers["etag"] == '"x"'


async def test_an_error_after_the_response_began_is_logged_and_leaves_it_unfinished() -> None:
    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("secret")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with structlog.testing.capture_logs() as logs:
        await ProblemMiddleware(stream)(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert logs[0]["response_started"] is True
    assert "secret" not in repr(logs)


async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_all_that_are_allowed(
    client: httpx.AsyncClient,
) -> None:
    response = await client.get("/v1/nothing")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")
    response = await client.delete("/v1/things")
    assert (response.status_code, response.json()["code"]) == (405, "method-not-allowed")
    assert response.headers["allow"] == "GET, PUT"


async def test_faults_of_parameters_name_the_parameter_and_the_limit(
    client: httpx.AsyncClient,
) -> None:
    response = await client.get("/v1/things", params={"limit": 11})
    assert response.status_code == 422
    (fault,) = response.json()["errors"]
    assert fault["parameter"] == "limit"
    assert fault["detail"] == "Must be at most 10: send a smaller number."
    assert "pointer" not in fault


async def test_pointers_leave_out_what_pydantic_adds_for_branches_of_unions(
    client: httpx.AsyncClient,
) -> None:
    response = await client.put("/v1/things", json={"a/b": [1, "secret-value"]})
    assert response.status_code == 422
    assert {fault["pointer"] for fault in response.json()["errors"]} == {"/a~1b/1"}
    assert "secret-value" not in response.text


async def test_at_most_twenty_faults_are_listed(client: httpx.AsyncClient) -> None:
    response = await client.put("/v1/things", json={"a": [[]] * 500})
    assert len(response.json()["errors"]) == 20
    assert "1000 faults in all" in response.json()["detail"]


async def test_a_body_that_stock_fastapi_cannot_parse_is_malformed(
    client: httpx.AsyncClient,
) -> None:
    response = await client.put(
        "/v1/things", content=b"{", headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()["code"]) == (400, "malformed-request")


async def test_a_fault_of_a_listed_type_without_its_limits_keeps_its_own_words() -> None:
    app = FastAPI()
    install_problem_handlers(app)

    @app.get("/")
    async def fail() -> None:
        fault = {"type": "too_long", "loc": ("body", "x"), "msg": "Value error, Own words."}
        raise RequestValidationError([fault])

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/")
    assert response.json()["errors"][0]["detail"] == "Own words."


def test_the_schema_of_the_model_has_neither_nulls_nor_references_to_outside() -> None:
    text = json.dumps(Problem.model_json_schema())
    assert "null" not in text
    assert "http" not in text
    example = Problem.model_validate_json(
        bytes(problem_response(errors.NotFoundError("x"), instance=None, request_id=None).body)
    )
    assert example.request_id is None


def test_times_in_extra_members_are_written_out() -> None:
    at = datetime(2025, 1, 31, tzinfo=UTC)
    _, members = report(errors.InvalidRequestError("x", extra={"at": at}))
    assert members["at"] == str(at)
