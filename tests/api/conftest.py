from collections.abc import Callable

import httpx
import pytest

from tests.api.service import Api
from tests.tokens import TokenFactory


@pytest.fixture
def api(
    client: httpx.AsyncClient, token: TokenFactory, make_tenant: Callable[[], str], tenant: str
) -> Api:
    return Api(client, token, make_tenant, tenant)
