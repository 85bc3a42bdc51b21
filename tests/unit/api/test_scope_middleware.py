"""Nobody reaches the application without a grant, and nobody learns what is behind the door."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from app.adapters.development_key import DevelopmentKey, select_issuers
from app.adapters.jose import TokenVerifier
from app.api.middleware.scope import ScopeEnforcementMiddleware
from app.errors import AuthenticationError, UnavailableError
from app.scope.claims import ClaimNames
from app.scope.grant import Grant

NOW_S = 1_800_000_000
KEY = DevelopmentKey(b"0123456789abcdef0123456789abcdef")
PUBLIC = frozenset({"/healthz", "/openapi.json"})


def token(**changes: object) -> str:
    return KEY.sign({"sub": "ana", "tenant_id": "acme", "exp": NOW_S + 60, **changes})


def verifier() -> TokenVerifier:
    return TokenVerifier(select_issuers((), KEY), clock=lambda: float(NOW_S), monotonic=lambda: 0.0)


async def show(request: Request) -> JSONResponse:
    grant: Grant | None = getattr(request.state, "grant", None)
    return JSONResponse({"path": request.url.path, "subject": grant and grant.subject})


class App:
    """Routes behind the middleware, in the place that it has in the service."""

    def __init__(self, *, request_id: str | None = "request-1", **options: object) -> None:
        self.reached = 0
        self.request_id = request_id
        self.routes = Starlette(
            routes=[Route(path, show, methods=["GET", "POST"]) for path in ("/snapshots", *PUBLIC)]
        )
        settings: dict[str, object] = {
            "verifier": verifier(),
            "claim_names": ClaimNames(),
            "public_paths": PUBLIC,
            **options,
        }
        self.guarded = ScopeEnforcementMiddleware(self.count, **settings)  # type: ignore[arg-type]

    async def count(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached += 1
        await self.routes(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.request_id is not None:
            scope["state"] = {"request_id": self.request_id}
        await self.guarded(scope, receive, send)


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as opened:
        yield opened


def problem(response: httpx.Response) -> dict[str, object]:
    assert response.status_code == 401
    assert response.headers["Content-Type"] == "application/problem+json"
    document = response.json()
    assert document["code"] == "authentication-failed"
    assert document["status"] == 401
    assert isinstance(document, dict)
    return document


async def test_a_valid_token_reaches_the_route_with_its_grant(client: httpx.AsyncClient) -> None:
    response = await client.get("/snapshots", headers={"Authorization": f"Bearer {token()}"})
    assert response.status_code == 200
    assert response.json() == {"path": "/snapshots", "subject": "ana"}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
async def test_the_scheme_is_read_in_any_case(client: httpx.AsyncClient, scheme: str) -> None:
    response = await client.get("/snapshots", headers={"authorization": f"{scheme} {token()}"})
    assert response.status_code == 200


async def test_a_grant_is_stored_where_no_state_was_before() -> None:
    transport = httpx.ASGITransport(app=App(request_id=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        good = await client.get("/snapshots", headers={"Authorization": f"Bearer {token()}"})
        bad = await client.get("/snapshots")
    assert good.json()["subject"] == "ana"
    assert "requestId" not in problem(bad)


async def test_a_request_without_a_token_is_challenged_without_an_error_code(
    app: App, client: httpx.AsyncClient
) -> None:
    response = await client.post("/snapshots?secret=1", content=b"{}")
    document = problem(response)
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert document["requestId"] == "request-1"
    assert document["instance"] == "/snapshots"
    assert app.reached == 0


async def test_a_token_that_is_not_valid_is_told_why_in_the_challenge_too(
    app: App, client: httpx.AsyncClient
) -> None:
    expired = token(exp=NOW_S - 60)
    response = await client.get("/snapshots", headers={"Authorization": f"Bearer {expired}"})
    assert problem(response)["detail"] == "The token has expired."
    assert response.headers["WWW-Authenticate"] == (
        'Bearer error="invalid_token", error_description="The token has expired."'
    )
    assert app.reached == 0


async def test_claims_that_make_no_grant_are_401_and_named(
    app: App, client: httpx.AsyncClient
) -> None:
    response = await client.get(
        "/snapshots", headers={"Authorization": f"Bearer {token(groups='s3cret')}"}
    )
    assert '"groups"' in str(problem(response)["detail"])
    assert "s3cret" not in response.text
    assert "error_description=\"The claim 'groups' must be" in response.headers["WWW-Authenticate"]
    assert app.reached == 0


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YW5hOmFuYQ==",
        "Token {token}",
        "{token}",
        "Bearer{token}",
        "Bearer {token} x",
        "Bearer {token},Bearer {token}",
        'Bearer "{token}"',
        "Bearer\t{token}",
        "Bearer é",
    ],
)
async def test_a_header_that_holds_no_bearer_token_is_refused(
    app: App, client: httpx.AsyncClient, header: str
) -> None:
    value = header.format(token=token()).encode("latin-1")
    response = await client.get("/snapshots", headers=[(b"Authorization", value)])
    problem(response)
    assert response.headers["WWW-Authenticate"].startswith('Bearer error="invalid_token"')
    assert app.reached == 0


async def test_two_authorization_headers_are_refused_even_when_both_are_good(
    app: App, client: httpx.AsyncClient
) -> None:
    good = ("Authorization", f"Bearer {token()}")
    for other in (good, ("authorization", "Basic eDp5"), ("AUTHORIZATION", "")):
        for headers in ([good, other], [other, good]):
            assert "once" in str(problem(await client.get("/snapshots", headers=headers))["detail"])
    assert app.reached == 0


async def test_a_token_elsewhere_than_in_the_header_is_not_looked_at(
    app: App, client: httpx.AsyncClient
) -> None:
    problem(await client.get(f"/snapshots?access_token={token()}"))
    problem(await client.post("/snapshots", data={"access_token": token()}))
    problem(await client.get("/snapshots", headers={"Cookie": f"access_token={token()}"}))
    problem(await client.get("/snapshots", headers={"X-Authorization": f"Bearer {token()}"}))
    assert app.reached == 0


async def test_unknown_paths_answer_word_for_word_like_known_ones(
    client: httpx.AsyncClient,
) -> None:
    bodies = set()
    for method in ("GET", "POST", "DELETE", "PATCH"):
        for path in ("/snapshots", "/unknown"):
            response = await client.request(method, path)
            bodies.add(json.dumps(problem(response) | {"instance": None}))
    assert len(bodies) == 1
    found = await client.get("/unknown", headers={"Authorization": f"Bearer {token()}"})
    assert found.status_code == 404


@pytest.mark.parametrize("path", sorted(PUBLIC))
async def test_a_public_path_needs_no_token_and_gets_no_grant(
    client: httpx.AsyncClient, path: str
) -> None:
    for headers in ({}, {"Authorization": f"Bearer {token()}"}, {"Authorization": "nonsense"}):
        response = await client.get(path, headers=headers)
        assert response.json() == {"path": path, "subject": None}


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/",
        "//healthz",
        "/healthz/../snapshots",
        "/healthz%0A",
        "/healthz%00",
        "/healthz;x",
        "/HEALTHZ",
        "/healthz%2Fx",
        "/healthz/x",
        "/",
    ],
)
async def test_only_the_exact_public_path_is_public(
    app: App, client: httpx.AsyncClient, path: str
) -> None:
    problem(await client.get(httpx.URL("http://test").copy_with(raw_path=path.encode())))
    assert app.reached == 0


class FailingVerifier:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def verify(self, token: str) -> dict[str, object]:
        raise self.error


async def test_a_detail_cannot_break_out_of_the_challenge_header() -> None:
    error = AuthenticationError('a "quoted\\" detail\r\nSet-Cookie: x=1; é')
    transport = httpx.ASGITransport(app=App(verifier=FailingVerifier(error)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/snapshots", headers={"Authorization": "Bearer abc"})
    challenge = response.headers["WWW-Authenticate"]
    assert challenge.startswith('Bearer error="invalid_token", error_description="a \'quoted')
    assert challenge.endswith("Set-Cookie: x=1; '\"")
    assert challenge.count('"') == 4
    assert challenge.isascii()
    assert challenge.isprintable()
    assert "Set-Cookie" not in response.headers


@pytest.mark.parametrize("error", [UnavailableError("down"), RuntimeError("fault")])
async def test_what_is_no_matter_of_the_token_is_left_to_the_layer_above(error: Exception) -> None:
    app = App(verifier=FailingVerifier(error))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with pytest.raises(type(error)):
            await client.get("/snapshots", headers={"Authorization": "Bearer abc"})
    assert app.reached == 0


async def receive_nothing() -> Message:
    raise AssertionError("nothing is read")


async def test_lifespan_events_pass() -> None:
    seen: list[str] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def send(message: Message) -> None:
        raise AssertionError(message)

    guarded = ScopeEnforcementMiddleware(
        inner, verifier=verifier(), claim_names=ClaimNames(), public_paths=PUBLIC
    )
    await guarded({"type": "lifespan"}, receive_nothing, send)
    assert seen == ["lifespan"]


async def test_nothing_but_http_and_lifespan_passes(app: App) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {token()}".encode())]
    websocket = {"type": "websocket", "path": "/healthz", "headers": headers}
    await app(websocket, receive_nothing, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    with pytest.raises(AuthenticationError):
        await app({"type": "other", "path": "/healthz", "headers": headers}, receive_nothing, send)
    assert app.reached == 0
