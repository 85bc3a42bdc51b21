"""A retriever behind HTTP, by the contract in openapi/retriever.json.

How the endpoint is asked, and what is kept quiet about it, is in `json_endpoint`; what goes back
and forth in `retriever_contract`.
"""

import asyncio
from dataclasses import dataclass

import httpx

from app.adapters.json_endpoint import JsonEndpoint
from app.adapters.retriever_contract import (
    CONTRACT,
    MOST_DEADLINE_S,
    filters_from,
    query_document,
    retrieval_from,
)
from app.canonical import JsonValue
from app.errors import RetrieverUnavailableError
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import ScopedQuery
from app.scope.vocabulary import TrustTier

_MOST_CAPABILITY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RetrieverEndpoint:
    """Where candidates come from; `url` is the base that `/retrieve` is added to.

    `retries` is how often a call that got no answer is made again, `max_bytes` bounds an answer.
    """

    name: str
    url: str
    key: str | None
    max_trust_tier: TrustTier
    retries: int
    max_bytes: int


class HttpRetriever:
    """Implements `retrieval.retriever.ExternalBackend`.

    Raises ConfigurationError for a URL or a key that no request can be made with.
    """

    def __init__(self, client: httpx.AsyncClient, endpoint: RetrieverEndpoint) -> None:
        self._endpoint = endpoint
        self._retrieve, self._capabilities = (
            JsonEndpoint(
                client,
                f"{endpoint.name} retriever",
                RetrieverUnavailableError,
                url=endpoint.url,
                path=path,
                key=endpoint.key,
                deadline_s=MOST_DEADLINE_S,
                attempts=endpoint.retries + 1,
            )
            for path in ("/retrieve", "/capabilities")
        )

    @property
    def name(self) -> str:
        return self._endpoint.name

    async def filters(self) -> frozenset[str]:
        asked: dict[str, JsonValue] = {"contract": CONTRACT}
        return filters_from(await self._capabilities.post(asked, _MOST_CAPABILITY_BYTES))

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        now = asyncio.get_running_loop().time()
        asked = query_document(query, self._endpoint.max_trust_tier, now)
        body = await self._retrieve.post(asked, self._endpoint.max_bytes)
        return await asyncio.to_thread(retrieval_from, body)
