"""How often one request waits for the database, counted at the socket."""

import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from asgi_lifespan import LifespanManager

from app.adapters.development_key import DevelopmentKey
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.adapters.postgres.graph import PostgresSourceGraph
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.lexical import PostgresLexicalRetriever
from app.adapters.postgres.snapshot_store import PostgresSnapshotStore
from app.config import Settings
from app.main import create_app
from tests.contract.counting_proxy import CountingProxy, counting_proxy
from tests.recipes import write_recipes
from tests.scratch_database import changed_url
from tests.tokens import TokenFactory

Json = dict[str, Any]
Pooling = Literal["session", "transaction"]

ADAPTER_CALLS: tuple[tuple[type, str], ...] = (
    (PostgresSnapshotStore, "find_repeat"),
    (PostgresIndexViews, "open"),
    (PostgresLexicalRetriever, "retrieve"),
    (PostgresSourceGraph, "neighbours"),
    (PostgresSnapshotStore, "put_if_absent"),
)


GRAPH_CALL = "neighbours"
EXPANDING = {"expanding": "retrievers: [{name: lexical}]\nexpansion: {}"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most round trips: of one adapter call, and of requests as a whole."""

    adapter_call: int
    create: int
    repeat: int
    read: int


# A pooler in transaction mode may give the parts of an open-ended exchange to several
# servers, so that each statement needs BEGIN, its preparation and COMMIT of its own.
BOUNDS: dict[Pooling, Bounds] = {
    "session": Bounds(adapter_call=3, create=8, repeat=3, read=3),
    "transaction": Bounds(adapter_call=8, create=20, repeat=8, read=8),
}


@dataclass(frozen=True)
class Measured:
    client: httpx.AsyncClient
    proxy: CountingProxy
    token: TokenFactory

    async def cost_of(
        self, method: str, path: str, tenant: str, status: int, json: Json | None = None
    ) -> tuple[int, Json]:
        """The round trips of one request, and its answer."""
        before = self.proxy.round_trips
        answer = await self.client.request(
            method, path, json=json, headers=self.token.headers(tenant)
        )
        assert answer.status_code == status, answer.text
        return self.proxy.round_trips - before, answer.json()

    async def index(self, tenant: str) -> None:
        sources = [
            {
                "project": "alpha",
                "sourceId": f"{number}.md",
                "sourceRevision": "1",
                "class": "documents",
                "text": f"cancel booking number {number}",
                "links": [f"about/{number}.md"],
            }
            for number in range(20)
        ]
        sources += [
            {**one, "sourceId": one["links"][0], "text": "all about it", "links": []}
            for one in sources
        ]
        await self.cost_of("PUT", "/sources", tenant, 200, {"sources": sources})

    @contextmanager
    def by_adapter_call(self) -> Iterator[Counter[str]]:
        found: Counter[str] = Counter()

        def counted(
            call: Callable[..., Awaitable[object]], name: str
        ) -> Callable[..., Awaitable[object]]:
            async def wrapped(*arguments: object, **named: object) -> object:
                before = self.proxy.round_trips
                try:
                    return await call(*arguments, **named)
                finally:
                    found[name] += self.proxy.round_trips - before

            return wrapped

        with pytest.MonkeyPatch.context() as patch:
            for adapter, name in ADAPTER_CALLS:
                patch.setattr(adapter, name, counted(getattr(adapter, name), name))
            yield found


def request(strategy: str = "default") -> Json:
    ids = {"runId": str(uuid.uuid4()), "attemptId": str(uuid.uuid4())}
    return {**ids, "query": "cancel a booking", "strategy": strategy}


@pytest.fixture(scope="module", params=["session", "transaction"])
def pooling(request: pytest.FixtureRequest) -> Pooling:
    chosen: Pooling = request.param
    return chosen


@pytest.fixture(scope="module")
async def measured(
    migrated: EmbeddedDatabase,
    data_dir: Path,
    development_key: DevelopmentKey,
    pooling: Pooling,
) -> AsyncIterator[Measured]:
    # pytest's own folders may be too deep for the name of a socket.
    with tempfile.TemporaryDirectory() as folder:
        url = changed_url(migrated.serving_url, host=folder)
        recipes = write_recipes(Path(folder), EXPANDING)
        given: dict[str, Any] = {
            "database_url": url,
            "data_dir": data_dir,
            "strategies_dir": recipes,
        }
        app = create_app(Settings(**given, database_pooling=pooling, log_level="warning"))
        async with (
            counting_proxy(migrated.serving_url, Path(folder)) as proxy,
            LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://service"
            ) as client,
        ):
            opened = Measured(client, proxy, TokenFactory(development_key))
            # Warm: a connection is there, and what a driver asks once was asked.
            await opened.index("warm")
            for _ in range(3):
                _, made = await opened.cost_of("POST", "/snapshots", "warm", 201, request())
                await opened.cost_of("GET", f"/snapshots/{made['hash']}", "warm", 200)
            yield opened


@pytest.mark.parametrize("strategy", ["default", "expanding"])
async def test_assembling_costs_few_round_trips(
    measured: Measured, pooling: Pooling, tenant: str, strategy: str
) -> None:
    await measured.index(tenant)
    with measured.by_adapter_call() as calls:
        cost, made = await measured.cost_of("POST", "/snapshots", tenant, 201, request(strategy))
    expands = strategy == "expanding"
    assert any(one["indexVersion"].startswith("graph:") for one in made["items"]) == expands
    print(f"POST /snapshots ({strategy}, {pooling} pooling): {cost} round trips, {dict(calls)}")
    asked = {name for _, name in ADAPTER_CALLS} - (set() if expands else {GRAPH_CALL})
    assert set(calls) == asked
    assert all(calls.values())
    assert max(calls.values()) <= BOUNDS[pooling].adapter_call, calls
    assert cost == calls.total(), "something besides the adapters asked the database"
    # Following links is a leg of its own, after the others.
    assert cost - calls[GRAPH_CALL] <= BOUNDS[pooling].create


async def test_a_repeat_costs_few_round_trips(
    measured: Measured, pooling: Pooling, tenant: str
) -> None:
    await measured.index(tenant)
    asked = request()
    await measured.cost_of("POST", "/snapshots", tenant, 201, asked)
    cost, _ = await measured.cost_of("POST", "/snapshots", tenant, 200, asked)
    print(f"repeated POST /snapshots ({pooling} pooling): {cost} round trips")
    assert 0 < cost <= BOUNDS[pooling].repeat


@pytest.mark.parametrize("member", ["hash", "snapshotId"])
async def test_reading_costs_few_round_trips(
    measured: Measured, pooling: Pooling, tenant: str, member: str
) -> None:
    await measured.index(tenant)
    _, made = await measured.cost_of("POST", "/snapshots", tenant, 201, request())
    cost, read = await measured.cost_of("GET", f"/snapshots/{made[member]}", tenant, 200)
    assert read == made
    print(f"GET /snapshots/{{{member}}} ({pooling} pooling): {cost} round trips")
    assert 0 < cost <= BOUNDS[pooling].read


async def test_requests_after_each_other_share_a_connection(measured: Measured) -> None:
    opened = measured.proxy.opened
    for _ in range(5):
        await measured.cost_of("POST", "/snapshots", "warm", 201, request())
    assert measured.proxy.opened == opened
