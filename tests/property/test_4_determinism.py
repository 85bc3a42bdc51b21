"""Property 4: the same request over the same visible index gives the same bytes."""

import asyncio
import hashlib
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_lifespan import LifespanManager
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.postgres.embedded import EmbeddedDatabase
from app.adapters.postgres.schema import migrate
from app.config import Settings
from app.main import create_app
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import Caller, Json, situations
from tests.scratch_database import scratch_database

_LOCALES = ("C", "C.UTF-8", "POSIX", "tr_TR.UTF-8", "de_DE.ISO-8859-1", "ja_JP.EUC-JP", "")
_ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati", "Antarctica/Troll")
_ENVIRONMENTS = tuple(
    {
        "PYTHONHASHSEED": str(at * 977),
        "LC_ALL": _LOCALES[at % len(_LOCALES)],
        "TZ": _ZONES[at % len(_ZONES)],
    }
    for at in range(20)
)


@pytest.fixture(scope="module")
async def twin(
    service: Service, migrated: EmbeddedDatabase, data_dir: Path
) -> AsyncIterator[Service]:
    """The same service on another database, so that one tenant's name can have two histories."""
    async with scratch_database(migrated) as scratch:
        await migrate(scratch.owner_url, serving_role="ctxsnap_service")
        values: dict[str, Any] = {"database_url": scratch.serving_url, "data_dir": data_dir}
        app = create_app(Settings(**values, log_level="warning"))
        async with (
            LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client,
        ):
            yield Service(client, service.token, service.make_tenant)


@sized(40, full=1_000)
@given(situation=situations(), seed=st.integers(0, 2**32))
async def test_the_way_to_an_index_does_not_matter_only_what_is_in_it(
    service: Service, twin: Service, situation: tuple[list[Json], Caller, Json], seed: int
) -> None:
    """Sources one by one in another order, with detours, next to another tenant's."""
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    straight = await service.assemble(tenant, caller, request)

    shuffled = random.Random(seed)
    order = shuffled.sample(sources, len(sources))
    await twin.index(service.make_tenant(), order)
    for source in order:
        if shuffled.random() < 0.5:
            detour = {**source, "sourceRevision": "9", "acl": {"deny": []}}
            await twin.index(tenant, [detour])
        if shuffled.random() < 0.3:
            await twin.index(tenant, [source])
            await twin.delete(tenant, source["project"], source["sourceId"])
        await twin.index(tenant, [source])
    winding = await twin.assemble(tenant, caller, request)
    assert straight.status_code == winding.status_code == 201
    assert winding.content == straight.content


async def _digests(
    environment: dict[str, str], database: EmbeddedDatabase, data_dir: Path, calls: list[Any]
) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.property.assembling_process",
        database.serving_url,
        str(data_dir),
        environment["PYTHONHASHSEED"],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
    )
    output, _ = await process.communicate(json.dumps(calls).encode())
    assert process.returncode == 0
    return output.decode().splitlines()


@pytest.mark.parametrize("processes", [3, pytest.param(20, marks=pytest.mark.long)])
async def test_other_processes_with_other_seeds_locales_and_zones_give_the_same_bytes(
    service: Service, migrated: EmbeddedDatabase, data_dir: Path, processes: int
) -> None:
    """Many chunks score the same, and each process mixes what its retrievers answer."""
    tenant = service.make_tenant()
    texts = ["cancel a booking", "cancel an order", "refund the booking", "İstanbul ŞEKER straße"]
    await service.index(
        tenant,
        [
            {
                "project": project,
                "sourceId": f"{name}.md",
                "sourceRevision": "1",
                "class": "documents",
                "text": texts[at % len(texts)],
                "acl": {"allow": ["group:eng", "user:ana"]},
            }
            for at, (project, name) in enumerate((p, n) for p in ("a", "b") for n in "zyxwvu")
        ],
    )
    caller = Caller("ana", ["*"], ["eng", "ops"], None, "restricted")
    calls, expected = [], []
    for at, query in enumerate(("cancel", "refund order booking", "istanbul seker strasse")):
        request = {
            "runId": f"00000000-0000-4000-8000-{at:012}",
            "attemptId": f"00000000-0000-4000-9000-{at:012}",
            "query": query,
        }
        answer = await service.assemble(tenant, caller, request)
        digest = hashlib.sha256(answer.content).hexdigest()
        expected.append(f"200 {digest}")
        headers = service.token.headers(tenant, **caller.claims())
        calls.append({"request": request, "headers": headers})
    for environment in _ENVIRONMENTS[:processes]:
        assert await _digests(environment, migrated, data_dir, calls) == expected
