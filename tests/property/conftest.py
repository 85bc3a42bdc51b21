from collections.abc import Callable

import httpx
import pytest

from tests.property.service import Service
from tests.tokens import TokenFactory


@pytest.fixture(scope="session")
def service(
    client: httpx.AsyncClient, token: TokenFactory, make_tenant: Callable[[], str]
) -> Service:
    return Service(client, token, make_tenant)
