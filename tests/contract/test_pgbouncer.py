"""The service behind pgbouncer in transaction mode, where every transaction may get another
server connection and nothing that a session holds can be relied on."""

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager

from app.adapters.development_key import DevelopmentKey
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.config import Settings
from app.main import create_app
from tests.contract.counting_proxy import CountingProxy, counting_proxy_on_loopback
from tests.tokens import TokenFactory

Json = dict[str, Any]

PGBOUNCER = shutil.which("pgbouncer")
NOBODY = 65534
PORT = 6432
SERVERS = 2
"""Server connections for all clients: fewer than ask at once."""

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="needs the program pgbouncer")


@dataclass(frozen=True, slots=True)
class Pooler:
    url: str
    log: Path
    servers: CountingProxy


def configure(folder: Path, database: sa.URL, upstream_port: int) -> Path:
    settings = {
        "listen_addr": "",
        "listen_port": PORT,
        "unix_socket_dir": folder,
        "auth_type": "scram-sha-256",
        "auth_file": folder / "users.txt",
        "pool_mode": "transaction",
        "default_pool_size": SERVERS,
        "max_client_conn": 100,
        "server_tls_sslmode": "disable",
        "logfile": folder / "pgbouncer.log",
    }
    lines = [f"{name} = {value}" for name, value in settings.items()]
    upstream = f"{database.database} = host=127.0.0.1 port={upstream_port}"
    config = folder / "pgbouncer.ini"
    config.write_text("\n".join(["[databases]", upstream, "[pgbouncer]", *lines, ""]))
    (folder / "users.txt").write_text(f'"{database.username}" "{database.password}"\n')
    return config


def as_nobody(folder: Path) -> dict[str, Any]:
    """How to start a program as another user than root, who owns the folder; else nothing."""
    if os.geteuid() != 0:
        return {}
    for path in (folder, *folder.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


@asynccontextmanager
async def pgbouncer(url: str, folder: Path) -> AsyncIterator[Pooler]:
    """pgbouncer between a socket in `folder` and the database of `url`."""
    assert PGBOUNCER is not None
    parsed = sa.make_url(url)
    # It refuses to run as root, and as another user it does not reach the server's socket.
    async with counting_proxy_on_loopback(url) as (servers, upstream_port):
        config = configure(folder, parsed, upstream_port)
        process = await asyncio.create_subprocess_exec(
            PGBOUNCER, "--quiet", config, **as_nobody(folder)
        )
        try:
            await listening(folder / f".s.PGSQL.{PORT}", process)
            pooled_url = parsed.update_query_dict({"host": str(folder), "port": str(PORT)})
            yield Pooler(
                pooled_url.render_as_string(hide_password=False),
                folder / "pgbouncer.log",
                servers,
            )
        finally:
            process.terminate()
            await process.wait()


async def listening(socket: Path, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(10):
        while not await asyncio.to_thread(socket.exists):
            assert process.returncode is None, "pgbouncer did not start"
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Pooled:
    client: httpx.AsyncClient
    token: TokenFactory
    pooler: Pooler

    async def send(
        self, method: str, path: str, tenant: str, json: Json | None = None
    ) -> httpx.Response:
        answer = await self.client.request(
            method, path, json=json, headers=self.token.headers(tenant)
        )
        assert answer.status_code in (200, 201), answer.text
        return answer

    async def assemble(self, tenant: str) -> Json:
        ids = {"runId": str(uuid.uuid4()), "attemptId": str(uuid.uuid4())}
        asked = {**ids, "query": "cancel a booking"}
        made: Json = (await self.send("POST", "/snapshots", tenant, asked)).json()
        return made


@pytest.fixture(scope="module")
async def pooled(
    migrated: EmbeddedDatabase, data_dir: Path, development_key: DevelopmentKey
) -> AsyncIterator[Pooled]:
    with tempfile.TemporaryDirectory() as folder:
        async with pgbouncer(migrated.serving_url, Path(folder)) as pooler:
            given: dict[str, Any] = {"database_url": pooler.url, "data_dir": data_dir}
            app = create_app(Settings(**given, database_pooling="transaction", log_level="warning"))
            async with (
                LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(app), base_url="http://service"
                ) as client,
            ):
                yield Pooled(client, TokenFactory(development_key), pooler)


def sources(tenant: str, count: int = 5) -> list[Json]:
    return [
        {
            "project": "alpha",
            "sourceId": f"{tenant}/{number}.md",
            "sourceRevision": "1",
            "class": "documents",
            "text": f"{tenant}: cancel booking {number}",
        }
        for number in range(count)
    ]


async def test_the_service_is_ready_behind_pgbouncer(pooled: Pooled) -> None:
    answer = await pooled.client.get("/readyz")
    assert answer.json()["ready"], answer.text


async def test_indexing_assembling_and_reading_work(pooled: Pooled, tenant: str) -> None:
    await pooled.send("PUT", "/sources", tenant, {"sources": sources(tenant)})
    made = await pooled.assemble(tenant)
    assert {item["sourceId"] for item in made["items"]} == {
        source["sourceId"] for source in sources(tenant)
    }
    read = await pooled.send("GET", f"/snapshots/{made['hash']}", tenant)
    assert read.json() == made
    contents = (await pooled.send("GET", f"/snapshots/{made['hash']}/contents", tenant)).json()
    assert {one["text"] for one in contents["contents"]} == {
        source["text"] for source in sources(tenant)
    }
    verified = await pooled.send("GET", f"/snapshots/{made['hash']}/verify", tenant)
    assert verified.json()["ok"]


async def test_tenants_that_ask_at_once_get_their_own(
    pooled: Pooled, make_tenant: Callable[[], str]
) -> None:
    tenants = (make_tenant(), make_tenant())
    await asyncio.gather(
        *(pooled.send("PUT", "/sources", name, {"sources": sources(name)}) for name in tenants)
    )
    for _ in range(3):
        made = await asyncio.gather(*(pooled.assemble(tenants[at % 2]) for at in range(10)))
        for at, snapshot in enumerate(made):
            mine = {source["sourceId"] for source in sources(tenants[at % 2])}
            assert {item["sourceId"] for item in snapshot["items"]} == mine
        read = await asyncio.gather(
            *(
                pooled.send("GET", f"/snapshots/{snapshot['hash']}", tenants[at % 2])
                for at, snapshot in enumerate(made)
            )
        )
        assert [answer.json() for answer in read] == made
    for at, snapshot in enumerate(made):
        other = pooled.token.headers(tenants[1 - at % 2])
        answer = await pooled.client.get(f"/snapshots/{snapshot['hash']}", headers=other)
        assert answer.status_code == 404


async def test_reads_and_writes_of_a_tenant_at_once_stay_whole(pooled: Pooled, tenant: str) -> None:
    """While sources change, each snapshot shows one state of the index."""
    await pooled.send("PUT", "/sources", tenant, {"sources": sources(tenant)})

    async def rewrite() -> None:
        for revision in range(2, 6):
            changed = [{**one, "sourceRevision": str(revision)} for one in sources(tenant)]
            await pooled.send("PUT", "/sources", tenant, {"sources": changed})

    async def assemble_some() -> list[Json]:
        return [await pooled.assemble(tenant) for _ in range(4)]

    results = await asyncio.gather(rewrite(), *(assemble_some() for _ in range(4)))
    snapshots = [snapshot for made in results[1:] for snapshot in made or []]
    assert len(snapshots) == 16
    for snapshot in snapshots:
        assert len(snapshot["items"]) == 5
        assert len({item["sourceRevision"] for item in snapshot["items"]}) == 1


async def test_many_clients_shared_few_servers_without_a_complaint(pooled: Pooled) -> None:
    await asyncio.gather(*(pooled.assemble("shared") for _ in range(10)))
    assert pooled.pooler.servers.opened == SERVERS
    log = pooled.pooler.log.read_text()
    assert log.count("login attempt") > 2 * SERVERS
    for word in ("ERROR", "WARNING", "FATAL", "prepared"):
        assert word not in log
