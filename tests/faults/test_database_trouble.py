"""A database in trouble: too few connections, cut ones, slow statements, a full disk.

Each call is served or refused with a hint to come back; nothing partial stays; and afterwards
everything works as before, without a restart of the service.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.embedded import SERVING_ROLE, EmbeddedDatabase
from app.config import Settings
from app.errors import UnavailableError
from app.main import create_app
from tests.api.service import Api, assert_problem, question, source, source_ids
from tests.recipes import calling

CONNECTIONS, CALLS, CALLS_WHILE_CUT = 5, 100, 30


@pytest.fixture(scope="module")
def since() -> datetime:
    """Connections from then on are those of this service."""
    return datetime.now(UTC)


@pytest.fixture(scope="module")
async def client(service_settings: Settings, since: datetime) -> AsyncIterator[httpx.AsyncClient]:
    few = service_settings.model_copy(update={"database_pool_size": CONNECTIONS})
    app = create_app(few)
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        calling(app) as opened,
    ):
        yield opened


async def _many(api: Api, calls: int) -> Counter[int]:
    """So many different requests at once, and what became of them."""
    answers = await asyncio.gather(*(api.post(question("cancel")) for _ in range(calls)))
    for answer in answers:
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            assert int(answer.headers["Retry-After"]) > 0
    return Counter(answer.status_code for answer in answers)


async def _works(api: Api) -> None:
    assert source_ids(await api.assemble(question("cancel"))) == ["a.md"]


async def test_a_hundred_calls_share_five_connections(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    statuses = await _many(api, CALLS)
    assert set(statuses) <= {201, 503}
    assert statuses[201] >= CONNECTIONS
    await _works(api)


async def test_connections_that_are_cut_under_load_are_replaced(
    api: Api, embedded_superuser: Database, since: datetime
) -> None:
    await api.index(source("a.md", "cancel a booking"))
    cut = sa.text(
        "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE usename = :role AND backend_start >= :since) ended"
    )
    calls = asyncio.create_task(_many(api, CALLS_WHILE_CUT))
    ended = 0
    while not calls.done():
        async with embedded_superuser.engine.connect() as connection:
            which = {"role": SERVING_ROLE, "since": since}
            ended += int((await connection.execute(cut, which)).scalar_one())
        await asyncio.sleep(0.05)
    assert ended >= CONNECTIONS
    statuses = await calls
    assert set(statuses) <= {201, 503}
    stored = [one["hash"] for one in (await api.read("/snapshots"))["snapshots"]]
    # A commit whose answer was lost on the way is there, though its call was refused.
    assert statuses[201] <= len(stored) == len(set(stored)) <= CALLS_WHILE_CUT
    for ref in stored:
        assert (await api.read(f"/snapshots/{ref}/verify"))["ok"]
    await _works(api)


async def test_a_full_disk_is_told_and_leaves_nothing_behind(
    api: Api, owner: Database, embedded_superuser: Database
) -> None:
    await api.index(source("a.md", "cancel a booking"))
    async with embedded_superuser.engine.begin() as connection:
        await connection.execute(sa.text(_FULL))
        await connection.execute(
            sa.text(
                "CREATE TRIGGER full_disk BEFORE INSERT ON snapshot_sources "
                "FOR EACH ROW EXECUTE FUNCTION disk_is_full()"
            )
        )
    try:
        answer = await api.post(question("cancel"))
        assert_problem(answer, 503, "unavailable", path="/snapshots")
        assert answer.headers["Retry-After"]
        assert (await api.read("/snapshots"))["snapshots"] == []
    finally:
        async with embedded_superuser.engine.begin() as connection:
            await connection.execute(sa.text("DROP FUNCTION disk_is_full() CASCADE"))
    await _works(api)


_FULL = """
    CREATE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
    END $$
"""


async def test_a_statement_that_takes_too_long_is_given_up(migrated: EmbeddedDatabase) -> None:
    impatient = Database(migrated.serving_url, pool_size=1, statement_timeout_s=0.2)
    try:
        with pytest.raises(UnavailableError):
            await impatient.run("acme", Statement("SELECT pg_sleep(30)::text", "slept text"))
        rows = await impatient.run("acme", Statement("SELECT 1", "one integer"))
        assert [row.one for row in rows] == [1]
    finally:
        await impatient.close()
