"""A tool of a Model Context Protocol server as a retriever, over streamable HTTP.

The tool takes a query of openapi/retriever.json as its arguments and returns an answer of it as
structured content. In its `_meta`, `ctxsnap` holds the contract's capabilities.

Guarantees: whatever the client library raises is a RetrieverUnavailableError, and tells nothing
of what was answered. Each call is a session of its own, so that none outlives a failure. What a
server sends is read up to a bound, each answer of its own and whatever form it has.

Not handled: what else the server offers or asks for.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpx2
import stamina
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from app.adapters.json_endpoint import bounded_headers
from app.adapters.retriever_contract import filters_from, query_document, retrieval_from
from app.canonical import JsonValue
from app.errors import RetrieverUnavailableError
from app.retrieval.candidate import InvalidAnswerError, Retrieval
from app.retrieval.retriever import ScopedQuery
from app.scope.vocabulary import TrustTier
from app.tracing import hand_on_with

META = "ctxsnap"

_MOST_PAGES = 100
"""Of a list of tools."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """Which tool of which server; `retries` is how often a call without an answer is repeated."""

    name: str
    url: str
    key: str | None
    tool: str
    max_trust_tier: TrustTier
    retries: int
    max_bytes: int
    trust_env: bool = False


class McpRetriever:
    """Implements `retrieval.retriever.ExternalBackend`.

    Raises ConfigurationError for a key that no request can be made with.
    """

    def __init__(self, tool: McpTool) -> None:
        self._tool = tool
        refusal = f"The key of {tool.name} is no token of a header."
        self._headers = bounded_headers(tool.key, refusal)
        self._retries = stamina.AsyncRetryingCaller(
            attempts=tool.retries + 1, timeout=None, wait_initial=0.1, wait_max=2.0
        ).on(RetrieverUnavailableError)

    @property
    def name(self) -> str:
        return self._tool.name

    async def filters(self) -> frozenset[str]:
        return filters_from(await self._retries(self._capabilities))

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        now = asyncio.get_running_loop().time()
        asked = query_document(query, self._tool.max_trust_tier, now)
        body = await self._retries(partial(self._call, asked))
        if len(body) > self._tool.max_bytes:
            raise InvalidAnswerError(f"it is longer than {self._tool.max_bytes} bytes")
        return await asyncio.to_thread(retrieval_from, body)

    async def _capabilities(self) -> bytes:
        async with self._session() as client:
            tools, cursor = [], None
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        metas = [one.meta for one in tools if one.name == self._tool.tool]
        if not metas:
            raise InvalidAnswerError("the server has no such tool")
        return json.dumps((metas[0] or {}).get(META)).encode()

    async def _call(self, arguments: dict[str, JsonValue]) -> bytes:
        async with self._session() as client:
            result = await client.call_tool(self._tool.tool, arguments)
        if result.is_error:
            raise RetrieverUnavailableError(f"The tool of {self.name} failed.")
        # NaN is written as such, and is refused where numbers are read.
        return json.dumps(result.structured_content).encode()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Client]:
        try:
            async with (
                httpx2.AsyncClient(
                    headers=self._headers,
                    event_hooks={
                        "request": [hand_on_with],
                        "response": [partial(_bound, most_bytes=self._tool.max_bytes)],
                    },
                    trust_env=self._tool.trust_env,
                    follow_redirects=False,
                    timeout=None,
                ) as http,
                Client(
                    streamable_http_client(
                        self._tool.url, http_client=http, max_sse_event_size=self._tool.max_bytes
                    )
                ) as client,
            ):
                yield client
        except Exception as error:
            raise RetrieverUnavailableError(f"{self.name} could not be asked.") from error


async def _bound(response: httpx2.Response, *, most_bytes: int) -> None:
    """The client library bounds events alone, and not an answer that is one document."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise httpx2.DecodingError("it is compressed")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _BoundedStream(response.stream, most_bytes)


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer; raises DecodingError beyond the bound."""

    def __init__(self, stream: httpx2.AsyncByteStream, most_bytes: int) -> None:
        self._stream = stream
        self._left = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._left -= len(part)
            if self._left < 0:
                raise httpx2.DecodingError("it is too long")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
