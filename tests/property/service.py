"""The service as the property tests drive it: over HTTP, a tenant for each example."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.property.worlds import Caller
from tests.tokens import TokenFactory

Json = dict[str, Any]


@dataclass(frozen=True)
class Service:
    client: httpx.AsyncClient
    token: TokenFactory
    make_tenant: Callable[[], str]

    async def index(self, tenant: str, sources: list[Json]) -> None:
        answer = await self.client.put(
            "/sources", json={"sources": sources}, headers=self.token.headers(tenant)
        )
        assert answer.status_code == 200, answer.text

    async def delete(
        self, tenant: str, project: str, source_id: str, *, erase: bool = False
    ) -> None:
        answer = await self.client.delete(
            "/sources",
            params={"project": project, "sourceId": source_id, "erase": str(erase).lower()},
            headers=self.token.headers(tenant),
        )
        assert answer.status_code == 200, answer.text

    async def assemble(
        self, tenant: str, caller: Caller, request: Json, **parameters: str
    ) -> httpx.Response:
        return await self.client.post(
            "/snapshots",
            json=request,
            params=parameters,
            headers=self.token.headers(tenant, **caller.claims()),
        )

    async def get(self, tenant: str, path: str, **claims: Any) -> httpx.Response:
        return await self.client.get(path, headers=self.token.headers(tenant, **claims))
