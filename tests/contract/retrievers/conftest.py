from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from app.adapters.postgres.database import Database
from tests.contract.retrievers.backends import ADAPTERS, Asking, Backend, open_backend
from tests.property.service import Service
from tests.tokens import TokenFactory


@pytest.fixture(scope="module")
def service(
    client: httpx.AsyncClient, token: TokenFactory, make_tenant: Callable[[], str]
) -> Service:
    return Service(client, token, make_tenant)


# A session for each call, and a client that is slow to load, take their time.
_LONG = {"mcp": pytest.mark.long, "milvus": pytest.mark.long}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=_LONG.get(name, ())) for name in ADAPTERS],
)
async def backend(
    request: pytest.FixtureRequest,
    service: Service,
    database: Database,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Backend]:
    folder: Path = tmp_path_factory.mktemp("retriever")
    async with open_backend(request.param, service, database, folder) as opened:
        yield opened


@pytest.fixture
def asking(backend: Backend, database: Database, tenant: str) -> Asking:
    return Asking(backend, tenant, database)
