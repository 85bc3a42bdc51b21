"""One real PostgreSQL for the whole run; every test works in a tenant of its own."""

import gc
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_lifespan import LifespanManager
from fastapi import FastAPI
from hypothesis import HealthCheck, settings

from app.adapters.development_key import DevelopmentKey, load_or_create_development_key
from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedDatabase, start_embedded
from app.adapters.postgres.schema import migrate
from app.api.parts import Parts
from app.config import Settings
from app.main import create_app
from tests.api.service import Api
from tests.embedding_server import running_embedding_server
from tests.tokens import TokenFactory

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"

# Examples run against a real database: their time says nothing about the code.
settings.register_profile(
    "ctxsnap",
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("ctxsnap")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Files with tests of half a minute come first: at the end one of them would keep a process
    # busy while the other has nothing left to take over.
    heavy = {item.path for item in items if item.get_closest_marker("full_size")}
    items.sort(key=lambda item: item.path not in heavy and item.path.parent.name != "faults")
    # What is loaded by now stays: looking through it for garbage takes a tenth of the run.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    if SHARED_DATA.is_dir():
        return
    reason = "needs the real collections in ../shared/data beside this checkout"
    for item in items:
        if item.get_closest_marker("shared_data"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    return SHARED_DATA


@pytest.fixture(scope="session")
def embedding_url() -> Iterator[str]:
    """The base URL of a real embedding endpoint; its profile is in tests/embedding_server.py."""
    with running_embedding_server() as url:
        yield url


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedDatabase]:
    """A real server, without waiting for the disk: nothing here survives a crash."""
    unsafe = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    with start_embedded(tmp_path_factory.mktemp("postgres"), settings=unsafe) as server:
        yield server.database


@pytest.fixture(scope="session")
async def migrated(embedded: EmbeddedDatabase) -> EmbeddedDatabase:
    await migrate(embedded.owner_url, serving_role="ctxsnap_service")
    return embedded


@pytest.fixture(scope="session")
async def database(migrated: EmbeddedDatabase) -> AsyncIterator[Database]:
    opened = Database(migrated.serving_url)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
async def owner(migrated: EmbeddedDatabase) -> AsyncIterator[Database]:
    """Connections as the owner of the tables: for looking behind the service's back."""
    opened = Database(migrated.owner_url)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
async def embedded_superuser(migrated: EmbeddedDatabase) -> AsyncIterator[Database]:
    opened = Database(migrated.superuser_url)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def development_key(data_dir: Path) -> DevelopmentKey:
    return load_or_create_development_key(data_dir)


@pytest.fixture(scope="session")
def service_settings(migrated: EmbeddedDatabase, data_dir: Path) -> Settings:
    values: dict[str, Any] = {"database_url": migrated.serving_url, "data_dir": data_dir}
    # Rounds of sealing would come at times of their own.
    return Settings(**values, log_level="warning", audit_seal_interval_s=3600)


@pytest.fixture(scope="session")
async def app(service_settings: Settings) -> AsyncIterator[FastAPI]:
    application = create_app(service_settings)
    async with LifespanManager(application, startup_timeout=60, shutdown_timeout=60):
        yield application


@pytest.fixture(scope="session")
def parts(app: FastAPI) -> Parts:
    running: Parts = app.state.parts
    return running


@pytest.fixture(scope="session")
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as opened:
        yield opened


_numbers = itertools.count(1)
_run = secrets.token_hex(3)


def new_tenant() -> str:
    return f"tenant-{_run}-{next(_numbers)}"


@pytest.fixture
def tenant() -> str:
    return new_tenant()


@pytest.fixture(scope="session")
def make_tenant() -> Callable[[], str]:
    return new_tenant


@pytest.fixture(scope="session")
def token(development_key: DevelopmentKey) -> TokenFactory:
    return TokenFactory(development_key)


@pytest.fixture
def api(
    client: httpx.AsyncClient, token: TokenFactory, make_tenant: Callable[[], str], tenant: str
) -> Api:
    """The service as a caller meets it; where a module has a `client` of its own, over that."""
    return Api(client, token, make_tenant, tenant)
