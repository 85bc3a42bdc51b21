"""Four services on one database behind a balancer: any of them serves any request."""

import asyncio
import itertools
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.adapters.postgres.embedded import EmbeddedDatabase
from tests.faults.test_two_services import Running, service

PROCESSES, ATTEMPTS = 4, 40


@pytest.fixture
def data_dir_of_all() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@asynccontextmanager
async def _balanced(urls: list[str]) -> AsyncIterator[str]:
    """The URL of a balancer that gives each new connection to the next one in turn."""
    turns = itertools.cycle(urlsplit(url) for url in urls)

    async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await source.read(65_536):
                target.write(piece)
                await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = next(turns)
        assert place.hostname is not None
        back_reader, back_writer = await asyncio.open_connection(place.hostname, place.port)
        await asyncio.gather(pipe(reader, back_writer), pipe(back_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _calls_served(running: list[Running]) -> list[int]:
    """How many calls that assemble each process has answered."""
    counts = []
    for one in running:
        lines = (await one.caller.client.get("/metrics")).text.splitlines()
        mine = [line for line in lines if line.startswith("ctxsnap_http_requests_total")]
        counts.append(sum(float(line.split()[-1]) for line in mine if 'route="/snapshots"' in line))
    return [int(count) for count in counts]


@pytest.mark.long
async def test_any_process_serves_any_request(
    migrated: EmbeddedDatabase, data_dir_of_all: Path, tenant: str
) -> None:
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(
                service(data_dir_of_all, tenant, CTXSNAP_DATABASE_URL=migrated.serving_url)
            )
            for _ in range(PROCESSES)
        ]
        url = await stack.enter_async_context(
            _balanced([str(one.caller.client.base_url) for one in running])
        )
        # A connection for each call: the balancer turns with connections.
        limits = httpx.Limits(max_keepalive_connections=0)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False)
        )
        headers = running[0].caller.headers
        assert (await running[0].caller.put("a.md")).status_code == 200

        async def assemble(attempt: str) -> httpx.Response:
            body = {"runId": attempt, "attemptId": attempt, "query": "cancel"}
            return await client.post(
                "/snapshots", json=body, headers={**headers, "Idempotency-Key": attempt}
            )

        attempts = [str(uuid.uuid4()) for _ in range(ATTEMPTS)]
        answers = await asyncio.gather(*(assemble(one) for one in attempts * 2))
        # Each attempt twice at once, on two processes: one snapshot.
        assert Counter(one.status_code for one in answers) == {201: ATTEMPTS, 200: ATTEMPTS}
        hashes = {one.json()["attemptId"]: one.json()["hash"] for one in answers}
        for answer in answers:
            assert answer.json()["hash"] == hashes[answer.json()["attemptId"]]
        for ref in hashes.values():
            read = await asyncio.gather(
                *(client.get(f"/snapshots/{ref}", headers=headers) for _ in range(PROCESSES))
            )
            assert {one.status_code for one in read} == {200}
            assert len({one.content for one in read}) == 1
        assert min(await _calls_served(running)) > 0
