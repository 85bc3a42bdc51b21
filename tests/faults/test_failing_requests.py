"""Ten thousand requests that fail, each in its way: no memory is kept, and no task goes on."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.config import EmbeddingSettings, Settings
from tests.api.service import Api, Json, item, question, source
from tests.recipes import calling, serving, write_recipes

REQUESTS, WARM_UP, AT_ONCE = 10_000, 3_000, 10
ALLOWED_BYTES = 24 << 20
"""What an allocator may keep of its arenas; a kilobyte a request would be 10 MB."""

_STATM = Path("/proc/self/statm")
_GONE = EmbeddingSettings(url="http://127.0.0.1:9/v1", model="gone", dimensions=8, deadline_ms=50)


@pytest.fixture
async def client(service_settings: Settings, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A service whose strategy `needs-vectors` asks an endpoint that is not there."""
    recipes = write_recipes(tmp_path, {"needs-vectors": "retrievers: [{name: vector}]"})
    settings = service_settings.model_copy(update={"embeddings": (_GONE,)})
    async with serving(settings, recipes) as app, calling(app) as opened:
        yield opened


def _failing(api: Api) -> list[tuple[int, dict[str, Any]]]:
    """Statuses, and the calls that are answered so."""
    good, headers = question("cancel"), api.headers()
    bodies: list[tuple[int, Json]] = [
        (422, {**good, "colour": "red"}),
        (422, {**good, "strategy": "unknown"}),
        (422, {**good, "pins": [{"project": "booking", "sourceId": "gone.md"}]}),
        (422, {**good, "items": [item("task", "word " * 500)], "budget": {"maxTokens": 50}}),
        (403, {**good, "scope": {"maxClassification": "restricted"}}),
        (503, {**good, "strategy": "needs-vectors"}),
    ]
    low = api.headers(max_classification="public")
    post = {"method": "POST", "url": "/snapshots"}
    return [
        *((status, {**post, "json": body, "headers": low}) for status, body in bodies),
        (400, {**post, "content": b'{"runId": NaN', "headers": _as_json(headers)}),
        (401, {**post, "json": good}),
        (404, {"method": "GET", "url": f"/snapshots/sha256:{'0' * 64}", "headers": headers}),
    ]


def _as_json(headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "Content-Type": "application/json"}


async def _send(api: Api, requests: int) -> Counter[tuple[int, int]]:
    """How often each status that was expected was answered by which one."""
    waiting = iter(islice(cycle(_failing(api)), requests))
    answered = Counter[tuple[int, int]]()

    async def work() -> None:
        for expected, call in waiting:
            answered[expected, (await api.client.request(**call)).status_code] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return answered


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.skipif(not _STATM.exists(), reason="reads /proc")
async def test_ten_thousand_failures_leave_neither_memory_nor_tasks(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    await _send(api, WARM_UP)
    tasks, before = asyncio.all_tasks(), _resident_bytes()
    answered = await _send(api, REQUESTS)
    assert set(answered) == {(status, status) for status, _ in _failing(api)}
    grown = _resident_bytes() - before
    print(f"{grown / 2**20:.1f} MiB more after {REQUESTS} failures")
    assert grown < ALLOWED_BYTES
    assert asyncio.all_tasks() <= tasks
