"""Health, readiness and metrics: open to those who run the service."""

import re

from tests.api.service import Api, question


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
