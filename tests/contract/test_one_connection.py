"""Tenants that follow each other on one connection to the database get their own alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_lifespan import LifespanManager

from app.adapters.development_key import DevelopmentKey
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.config import Settings
from app.main import create_app
from tests.api.service import Api, question, source, source_ids
from tests.tokens import TokenFactory


@pytest.fixture(scope="module")
async def narrow_client(
    migrated: EmbeddedDatabase, data_dir: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """A service of its own with a single connection."""
    values: dict[str, Any] = {
        "database_url": migrated.serving_url,
        "data_dir": data_dir,
        "database_pool_size": 1,
    }
    app = create_app(Settings(**values, log_level="warning", audit_seal_interval_s=3600))
    async with LifespanManager(app, startup_timeout=60, shutdown_timeout=60):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as opened:
            yield opened


@pytest.fixture
async def both(
    narrow_client: httpx.AsyncClient,
    development_key: DevelopmentKey,
    make_tenant: Callable[[], str],
) -> tuple[Api, Api]:
    token = TokenFactory(development_key)
    ana = Api(narrow_client, token, make_tenant, make_tenant())
    eve = ana.elsewhere()
    for one, name in ((ana, "ana.md"), (eve, "eve.md")):
        await one.index(source(name, f"words of {name}"))
    return ana, eve


async def _sees_only(api: Api, name: str) -> None:
    assert source_ids(await api.read("/sources"), "sources") == [name]
    assert (await api.read("/index"))["sources"] == 1
    snapshot = await api.assemble(question("words"))
    assert source_ids(snapshot) == [name]
    contents = await api.read(f"/snapshots/{snapshot['hash']}/contents")
    assert [one["text"] for one in contents["contents"]] == [f"words of {name}"]
    listed = (await api.read("/snapshots"))["snapshots"]
    for one in listed:
        assert source_ids(await api.read(f"/snapshots/{one['hash']}")) == [name]
    events = (await api.read("/audit", {"limit": 1000}))["events"]
    hashes = {event["targets"].get("snapshot") for event in events} - {None}
    assert hashes == {one["hash"] for one in listed}


async def test_after_every_way_a_call_can_end_the_next_tenant_sees_its_own(
    both: tuple[Api, Api],
) -> None:
    ana, eve = both
    await _sees_only(eve, "eve.md")
    refused = [source("ana.md", "x"), source("bad", "x", trustTier="agent")]
    assert (await ana.put(*refused, max_trust_tier="user")).status_code == 403
    await _sees_only(eve, "eve.md")
    assert (await ana.get(f"/snapshots/sha256:{'0' * 64}")).status_code == 404
    assert (await ana.delete("booking", "eve.md")).status_code == 404
    await _sees_only(eve, "eve.md")
    await ana.index(source("ana.md", "words of ana.md"))
    await _sees_only(ana, "ana.md")


async def test_a_caller_that_leaves_early_leaves_nothing_of_its_tenant_behind(
    both: tuple[Api, Api],
) -> None:
    ana, eve = both
    for steps in range(0, 40, 4):
        call = asyncio.create_task(ana.post(question("words")))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert source_ids(await eve.read("/sources"), "sources") == ["eve.md"]
    await _sees_only(eve, "eve.md")
    assert source_ids(await ana.assemble(question("words"))) == ["ana.md"]


async def test_tenants_that_wait_for_the_connection_at_once_get_their_own(
    both: tuple[Api, Api],
) -> None:
    made = await asyncio.gather(*(both[at % 2].assemble(question("words")) for at in range(10)))
    assert [source_ids(one) for one in made] == [["ana.md"], ["eve.md"]] * 5
    for at, snapshot in enumerate(made):
        assert (await both[1 - at % 2].get(f"/snapshots/{snapshot['hash']}")).status_code == 404
