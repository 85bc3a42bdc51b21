"""Health, readiness and metrics: open to those who run the service."""

import re
import socket
from typing import Any

import httpx
import pytest
from asgi_lifespan import LifespanManager

from app.config import Settings
from app.main import create_app
from tests.api.counting import count
from tests.api.service import Api, item, question


async def test_health_and_readiness_need_no_token(api: Api) -> None:
    health = await api.client.get("/healthz")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    ready = await api.client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["ready"] is True
    checks = {check["name"]: check for check in ready.json()["checks"]}
    assert {"database", "migrations", "role"} <= set(checks)
    assert all(check["ok"] and check["detail"] for check in checks.values())


async def test_metrics_count_requests_by_route_and_status(api: Api) -> None:
    async def counted(labels: str) -> float:
        answer = await api.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found = re.search(
            rf"^ctxsnap_http_requests_total\{{{labels}\}} (\S+)$", answer.text, re.MULTILINE
        )
        return float(found[1]) if found else 0

    created = 'method="POST",route="/snapshots",status="201"'
    read = 'method="GET",route="/snapshots/{ref}",status="200"'
    before = [await counted(labels) for labels in (created, read)]
    snapshot = await api.assemble(question(None))
    await api.get(f"/snapshots/{snapshot['hash']}")
    assert [await counted(labels) for labels in (created, read)] == [one + 1 for one in before]
    text = (await api.client.get("/metrics")).text
    assert snapshot["hash"] not in text
    assert api.tenant not in text
    assert "ctxsnap_http_request_seconds_bucket" in text


async def test_the_service_starts_and_counts_without_a_network(
    api: Api, service_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the database's own socket, in a folder of this machine, is reached."""
    asked = question(None, items=[item("t", "<|endoftext|> 日本語 words " * 50)])
    online = await api.assemble(asked)
    plain = socket.socket

    def local_only(family: int = -1, *arguments: Any, **named: Any) -> socket.socket:
        assert family == socket.AF_UNIX, "a socket to the network was opened"
        return plain(family, *arguments, **named)

    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "socket", local_only)
    app = create_app(service_settings)
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://own") as client,
    ):
        answer = await client.post(
            "/snapshots", json=asked, headers=api.headers(), params={"refresh": "true"}
        )
        assert answer.json() == online
        prompt = await client.get(f"/snapshots/{online['hash']}/prompt", headers=api.headers())
    assert count(prompt.text, "o200k_base") == online["budget"]["usedTokens"]
