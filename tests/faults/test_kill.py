"""kill -9 of PostgreSQL and of the service, at random points under load.

What was acknowledged is there and verifies. What was not is absent, or whole where only the
answer was lost: between a commit and its answer nobody can tell the two apart.
"""

import asyncio
import os
import random
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.adapters.development_key import load_or_create_development_key
from tests.contract.test_embedded_postgres import postmaster_pid
from tests.shared.service_process import ServiceProcess, free_port
from tests.tokens import TokenFactory

Json = dict[str, Any]

ROUNDS = 50 if os.environ.get("CTXSNAP_FULL_SIZE") else 5
CALLERS = 2
PAUSE_S = 0.1
RECOVERY_S = 30
CHUNKS = 3
TENANT = "acme"


@pytest.fixture
def service() -> Iterator[ServiceProcess]:
    # Short enough for the name of a socket.
    with (
        tempfile.TemporaryDirectory() as folder,
        ServiceProcess(Path(folder), free_port()) as running,
    ):
        yield running


@dataclass
class _Load:
    """Calls that go on until they are told to stop; whatever becomes of each is noted."""

    client: httpx.AsyncClient
    headers: dict[str, str]
    runs: dict[str, str | None] = field(default_factory=dict)
    sources: dict[str, bool] = field(default_factory=dict)
    statuses: set[int] = field(default_factory=set)
    stopped: bool = False

    async def keep_assembling(self) -> None:
        while not self.stopped:
            run = str(uuid.uuid4())
            self.runs[run] = None
            answer = await self._send("POST", "/snapshots", _request(run))
            if answer is not None and answer.status_code == httpx.codes.CREATED:
                self.runs[run] = answer.json()["hash"]
            await asyncio.sleep(PAUSE_S)

    async def keep_writing(self) -> None:
        while not self.stopped:
            name = f"{uuid.uuid4()}.md"
            self.sources[name] = False
            answer = await self._send("PUT", "/sources", {"sources": [_source(name)]})
            self.sources[name] = answer is not None and answer.is_success
            await asyncio.sleep(PAUSE_S)

    async def until_one_succeeds(self) -> float:
        begun = time.monotonic()
        async with asyncio.timeout(RECOVERY_S):
            while True:
                answer = await self._send("POST", "/snapshots", _request(str(uuid.uuid4())))
                if answer is not None and answer.status_code == httpx.codes.CREATED:
                    return time.monotonic() - begun
                await asyncio.sleep(PAUSE_S)

    async def check(self) -> None:
        """Everything that was acknowledged is there, and whole; all else is absent or whole."""
        for run, acknowledged in self.runs.items():
            answer = await self.client.get(f"/snapshots?runId={run}", headers=self.headers)
            stored = [one["hash"] for one in answer.json()["snapshots"]]
            assert len(stored) <= 1
            assert acknowledged is None or stored == [acknowledged]
            for ref in stored:
                verified = await self.client.get(f"/snapshots/{ref}/verify", headers=self.headers)
                assert verified.json()["ok"], verified.text
        for name, put in self.sources.items():
            query = {"project": "alpha", "sourceId": name}
            answer = await self.client.get("/sources", params=query, headers=self.headers)
            found = [one["chunks"] for one in answer.json()["sources"]]
            assert found == [CHUNKS] if put else found in ([], [CHUNKS])

    async def _send(self, method: str, path: str, body: Json) -> httpx.Response | None:
        """None where the service went away before it answered."""
        try:
            answer = await self.client.request(method, path, json=body, headers=self.headers)
        except httpx.TransportError:
            return None
        self.statuses.add(answer.status_code)
        assert answer.status_code in (200, 201, 503), answer.text
        return answer


def _request(run: str) -> Json:
    return {"runId": run, "attemptId": str(uuid.uuid4()), "query": "cancel a booking"}


def _source(name: str) -> Json:
    texts = [f"cancel a booking: {name} {at}" for at in range(CHUNKS)]
    return {
        "project": "alpha",
        "sourceId": name,
        "sourceRevision": "1",
        "class": "documents",
        "chunks": [{"chunkId": str(at), "text": text} for at, text in enumerate(texts)],
    }


async def test_what_was_acknowledged_outlives_kill_9(service: ServiceProcess) -> None:
    drawn = random.Random(ROUNDS)
    headers = TokenFactory(load_or_create_development_key(service.data_dir)).headers(TENANT)
    acknowledged = 0
    for number in range(ROUNDS):
        async with httpx.AsyncClient(base_url=service.url, timeout=60, trust_env=False) as client:
            load = _Load(client, headers)
            async with asyncio.TaskGroup() as calls:
                for _ in range(CALLERS):
                    calls.create_task(load.keep_assembling())
                    calls.create_task(load.keep_writing())
                await asyncio.sleep(drawn.uniform(0.2, 1.0))
                await (_kill_service if number % 2 else _kill_postgres)(service)
                recovered_s = await load.until_one_succeeds()
                load.stopped = True
            print(f"round {number}: first success {recovered_s:.1f} s after the kill")
            await load.check()
            acknowledged += sum(one is not None for one in load.runs.values())
    assert acknowledged > ROUNDS


async def _kill_postgres(service: ServiceProcess) -> None:
    """The service itself starts it anew."""
    os.kill(postmaster_pid(service.data_dir), signal.SIGKILL)


async def _kill_service(service: ServiceProcess) -> None:
    """Whoever supervises it starts it anew."""
    assert service.process is not None
    service.process.kill()
    service.process.wait()
    await asyncio.to_thread(service.start)
