"""Who gets in and where to: tokens, permissions, methods and addresses."""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from asgi_lifespan import LifespanManager

from app.adapters.development_key import DevelopmentKey
from app.config import IssuerSettings, Settings
from app.main import create_app
from tests.api.service import (
    Api,
    Json,
    assert_problem,
    question,
    source,
)

REF = "sha256:" + "0" * 64


CALLS_AND_PERMISSIONS = [
    ("POST", "/snapshots", "snapshots:assemble"),
    ("GET", "/snapshots", "snapshots:read"),
    *(
        ("GET", f"/snapshots/{REF}{part}", "snapshots:read")
        for part in ("", "/contents", "/prompt", "/report", "/verify")
    ),
    ("GET", "/strategies", "snapshots:assemble"),
    ("GET", "/strategies/default", "snapshots:assemble"),
    ("PUT", "/sources", "index:write"),
    ("GET", "/sources", "index:read"),
    ("DELETE", "/sources?project=booking&sourceId=a.md", "index:write"),
    ("GET", "/index", "index:read"),
]


@pytest.mark.parametrize(("method", "path", "permission"), CALLS_AND_PERMISSIONS)
async def test_each_call_needs_its_permission(
    api: Api, method: str, path: str, permission: str
) -> None:
    await api.index(source("a.md", "x"))
    everything = {one for _, _, one in CALLS_AND_PERMISSIONS} | {"audit:read"}
    body = question(None) if method == "POST" else {"sources": [source("b.md", "x")]}

    async def call(scope: str | None) -> httpx.Response:
        sent = {"json": body} if method in ("POST", "PUT") else {}
        headers = api.headers(scope=scope)
        return await api.client.request(method, path, headers=headers, **sent)  # type: ignore[arg-type]

    for scope in (" ".join(everything - {permission}), "", None, permission.upper()):
        problem = assert_problem(await call(scope), 403, "permission-missing")
        assert permission in problem["detail"]
    assert await api.index_version() == 1
    assert (await call(permission)).status_code in (200, 201, 404)


def _segment(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _bad_tokens(key: DevelopmentKey, good: Mapping[str, Any]) -> dict[str, str]:
    now = int(time.time())
    signed = key.sign(good)
    header, payload, signature = signed.split(".")
    unsigned = f"{_segment({'alg': 'none', 'typ': 'JWT'})}.{payload}."
    other = DevelopmentKey(secret=b"x" * 32)
    stranger = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return {
        "alg none": unsigned,
        "another key": other.sign(good),
        "another payload": f"{header}.{_segment({**stranger, 'tenant_id': 'other'})}.{signature}",
        "another algorithm": f"{_segment({'alg': 'HS512'})}.{payload}.{signature}",
        "expired": key.sign({**good, "exp": now - 3600}),
        "not yet": key.sign({**good, "nbf": now + 3600}),
        "no expiry": key.sign({name: good[name] for name in good if name != "exp"}),
        "no tenant": key.sign({name: good[name] for name in good if name != "tenant_id"}),
        "no subject": key.sign({name: good[name] for name in good if name != "sub"}),
        "a tenant that is a number": key.sign({**good, "tenant_id": 7}),
        "projects in a string": key.sign({**good, "projects": "*"}),
        "star among projects": key.sign({**good, "projects": ["*", "booking"]}),
        "an unknown class": key.sign({**good, "classes": ["novel"]}),
        "an unknown classification": key.sign({**good, "max_classification": "secret"}),
        "permissions in an array": key.sign({**good, "scope": ["index:read"]}),
        "no JWT": "x.y.z",
        "one part": "opaque-token",
    }


BAD_TOKENS = tuple(_bad_tokens(DevelopmentKey(secret=b"y" * 32), {"exp": 0}))


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_a_token_that_is_not_valid_is_401(
    api: Api, development_key: DevelopmentKey, name: str
) -> None:
    now = int(time.time())
    good: Json = {
        "sub": "ana",
        "tenant_id": api.tenant,
        "projects": ["*"],
        "scope": "index:read",
        "exp": now + 600,
    }
    accepted = {"Authorization": f"Bearer {development_key.sign(good)}"}
    assert (await api.client.get("/index", headers=accepted)).status_code == 200
    bad = _bad_tokens(development_key, good)[name]
    answer = await api.client.get("/index", headers={"Authorization": f"Bearer {bad}"})
    assert_problem(answer, 401, "authentication-failed", path="/index")
    assert answer.headers["www-authenticate"].startswith('Bearer error="invalid_token"')
    assert bad not in answer.text


@pytest.mark.parametrize("path", ["/index", "/snapshots", "/nowhere", f"/snapshots/{REF}", "/"])
async def test_without_a_token_nothing_tells_what_exists(api: Api, path: str) -> None:
    for headers in ({}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer"}):
        answer = await api.client.get(path, headers=headers)
        assert_problem(answer, 401, "authentication-failed", path=path)
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/snapshots", {"GET", "POST"}),
        ("DELETE", "/snapshots", {"GET", "POST"}),
        ("PUT", f"/snapshots/{REF}", {"GET"}),
        ("DELETE", f"/snapshots/{REF}", {"GET"}),
        ("PATCH", f"/snapshots/{REF}", {"GET"}),
        ("POST", "/sources", {"GET", "PUT", "DELETE"}),
        ("DELETE", "/index", {"GET"}),
        ("POST", "/healthz", {"GET"}),
        ("BREW", "/index", {"GET"}),
    ],
)
async def test_another_method_is_405_with_those_allowed(
    api: Api, method: str, path: str, allowed: set[str]
) -> None:
    answer = await api.client.request(method, path, headers=api.headers())
    assert_problem(answer, 405, "method-not-allowed", path=path)
    assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    "path",
    ["/", "/nowhere", "/snapshots/", "/sources/a.md", f"/snapshots/{REF}/nothing", "//index"],
)
async def test_an_unknown_address_is_404(api: Api, path: str) -> None:
    answer = await api.client.get(f"http://service{path}", headers=api.headers())
    assert_problem(answer, 404, "not-found")


async def test_a_request_id_is_kept_or_made(api: Api) -> None:
    headers = {**api.headers(), "X-Request-Id": "mine-1"}
    answer = await api.client.get("/nowhere", headers=headers)
    assert assert_problem(answer, 404, "not-found")["requestId"] == "mine-1"
    headers["X-Request-Id"] = 'no id"\t'
    answer = await api.client.get("/nowhere", headers=headers)
    assert assert_problem(answer, 404, "not-found")["requestId"] != 'no id"\t'


async def test_a_key_server_that_has_not_answered_yet_is_503_and_makes_no_token_invalid(
    api: Api, service_settings: Settings, unused_tcp_port: int
) -> None:
    """Whether a token is good cannot be told then; another issuer's is still refused."""
    issuer = IssuerSettings(
        issuer="https://issuer.example",
        audiences=("ctxsnap",),
        jwks_url=f"http://127.0.0.1:{unused_tcp_port}/jwks.json",
    )
    app = create_app(service_settings.model_copy(update={"issuers": (issuer,)}))
    claims = _segment({"iss": issuer.issuer, "aud": "ctxsnap", "exp": int(time.time()) + 600})
    token = f"{_segment({'alg': 'RS256', 'kid': 'first'})}.{claims}.{'A' * 342}"
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://own") as client,
    ):
        answer = await client.get("/index", headers={"Authorization": f"Bearer {token}"})
        assert_problem(answer, 503, "unavailable", path="/index")
        assert 1 <= int(answer.headers["retry-after"]) <= 10
        assert "www-authenticate" not in answer.headers
        other = await client.get("/index", headers=api.headers())
        assert_problem(other, 401, "authentication-failed")
        assert (await client.get("/healthz")).status_code == 200
