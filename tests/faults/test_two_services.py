"""Several services on one database as real processes, and an embedded server that is killed."""

import asyncio
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_lifespan import LifespanManager

from app.adapters.development_key import load_or_create_development_key
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.config import Settings
from app.main import create_app
from tests.contract.test_embedded_postgres import CHECKOUT, is_alive, postmaster_pid
from tests.tokens import TokenFactory

Json = dict[str, Any]

CTXSNAP = Path(sys.executable).with_name("ctxsnap")
START_TIMEOUT_S = 60
RECOVERY_S = 60


@dataclass(frozen=True)
class Caller:
    client: httpx.AsyncClient
    headers: dict[str, str]

    async def put(self, name: str) -> httpx.Response:
        source = {
            "project": "alpha",
            "sourceId": name,
            "sourceRevision": "1",
            "class": "documents",
            "text": f"cancel a booking: {name}",
        }
        return await self.client.put("/sources", json={"sources": [source]}, headers=self.headers)

    async def assemble(self) -> httpx.Response:
        ids = {"runId": str(uuid.uuid4()), "attemptId": str(uuid.uuid4())}
        return await self.client.post(
            "/snapshots", json={**ids, "query": "cancel"}, headers=self.headers
        )

    async def found(self) -> set[str]:
        made = await self.assemble()
        assert made.status_code == 201, made.text
        return {item["sourceId"] for item in made.json()["items"]}


@dataclass(frozen=True)
class Running:
    """A service in a process of its own."""

    process: asyncio.subprocess.Process
    caller: Caller

    async def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            _, errors = await self.process.communicate()
        assert (self.process.returncode, errors.decode()) == (0, "")


@asynccontextmanager
async def service(data_dir: Path, tenant: str, **settings: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        CTXSNAP,
        "serve",
        "--port=0",
        env={
            **{name: value for name, value in os.environ.items() if "CTXSNAP" not in name},
            "CTXSNAP_DATA_DIR": str(data_dir),
            "CTXSNAP_LOG_LEVEL": "error",
            "PYTHONWARNINGS": "error",
            **settings,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("Listening on "), (line, await process.communicate())
        url = line.removeprefix("Listening on ").split(",")[0]
        token = TokenFactory(load_or_create_development_key(data_dir))
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            ready = await client.get("/readyz")
            assert ready.status_code == 200, ready.text
            yield Running(process, Caller(client, token.headers(tenant)))
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def two_services(
    data_dir: Path, tenant: str, **settings: str
) -> AsyncIterator[tuple[Running, Running]]:
    """Both started at the same moment."""
    async with AsyncExitStack() as stack:
        first, second = await asyncio.gather(
            *(stack.enter_async_context(service(data_dir, tenant, **settings)) for _ in range(2))
        )
        yield first, second


@pytest.fixture
def fresh_dir() -> Iterator[Path]:
    # Short enough for the name of a socket.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.long
async def test_two_services_share_a_fresh_data_folder(fresh_dir: Path, tenant: str) -> None:
    async with two_services(fresh_dir, tenant) as (first, second):
        assert (await first.caller.put("first.md")).status_code == 200
        assert await second.caller.found() == {"first.md"}
        assert (await second.caller.put("second.md")).status_code == 200
        assert await first.caller.found() == {"first.md", "second.md"}
        server = postmaster_pid(fresh_dir)
        await first.stop()
        assert await second.caller.found() == {"first.md", "second.md"}
        assert is_alive(server)
        await second.stop()
        assert not is_alive(server)
        assert not list((fresh_dir / "postgres").rglob(".s.PGSQL.*"))


@pytest.mark.long
async def test_two_services_share_a_database_by_url(
    migrated: EmbeddedDatabase, fresh_dir: Path, tenant: str
) -> None:
    async with two_services(fresh_dir, tenant, CTXSNAP_DATABASE_URL=migrated.serving_url) as (
        first,
        second,
    ):
        assert (await first.caller.put("first.md")).status_code == 200
        made = await second.caller.assemble()
        assert [item["sourceId"] for item in made.json()["items"]] == ["first.md"]
        read = await first.caller.client.get(
            f"/snapshots/{made.json()['hash']}", headers=first.caller.headers
        )
        assert read.content == made.content
        await asyncio.gather(first.stop(), second.stop())
    assert not (fresh_dir / "postgres").exists()


@asynccontextmanager
async def in_this_process(data_dir: Path, tenant: str) -> AsyncIterator[Caller]:
    """A caller of a service with an embedded database of its own."""
    given: dict[str, Any] = {"data_dir": data_dir}
    app = create_app(Settings(**given, log_level="warning"))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        httpx.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        token = TokenFactory(load_or_create_development_key(data_dir))
        yield Caller(client, token.headers(tenant))


@dataclass
class Load:
    """Requests that go on whatever they are answered."""

    caller: Caller
    statuses: set[int] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    recovered: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_until_recovered(self) -> None:
        async with asyncio.timeout(RECOVERY_S), asyncio.TaskGroup() as requests:
            for writer in range(3):
                requests.create_task(self._keep_writing(writer))
            requests.create_task(self._keep_assembling())

    async def _keep_writing(self, writer: int) -> None:
        number = 0
        while not self.recovered.is_set():
            number += 1
            name = f"{writer}-{number}.md"
            answer = await self.caller.put(name)
            self._note(answer)
            if answer.status_code == 200:
                self.acknowledged.add(name)
            await asyncio.sleep(0.2)

    async def _keep_assembling(self) -> None:
        successes = 0
        while successes < 3:
            answer = await self.caller.assemble()
            self._note(answer)
            successes += answer.status_code == 201
            await asyncio.sleep(0.2)
        self.recovered.set()

    def _note(self, answer: httpx.Response) -> None:
        self.statuses.add(answer.status_code)
        assert answer.status_code != 503 or answer.headers["Retry-After"]


@pytest.mark.long
async def test_a_service_outlives_its_embedded_server_and_stops_without_it(
    fresh_dir: Path, tenant: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with in_this_process(fresh_dir, tenant) as caller:
        load = Load(caller)
        for number in range(3):
            assert (await caller.put(f"{number}.md")).status_code == 200
            load.acknowledged.add(f"{number}.md")
        killed = postmaster_pid(fresh_dir)
        os.kill(killed, signal.SIGKILL)
        await load.run_until_recovered()

        # Whatever was asked meanwhile was served, or refused with a hint to come back.
        assert load.statuses == {200, 201, 503}
        listed = await caller.client.get("/sources?limit=200", headers=caller.headers)
        assert {one["sourceId"] for one in listed.json()["sources"]} >= load.acknowledged
        assert (await caller.client.get("/readyz")).json()["ready"]
        events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
        assert "embedded-database-restarted" in events

        successor = postmaster_pid(fresh_dir)
        assert successor != killed
        os.kill(successor, signal.SIGKILL)
    assert not list((fresh_dir / "postgres").rglob(".s.PGSQL.*"))
    assert [task for task in asyncio.all_tasks() if "_keep_running" in repr(task)] == []
