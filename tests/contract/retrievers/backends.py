"""Each adapter with its real backend, as the conformance suite drives it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from app.adapters.http.retriever import HttpRetriever, RetrieverEndpoint
from app.adapters.mcp.retriever import McpRetriever, McpTool
from app.adapters.postgres.database import Database
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.lexical import PostgresLexicalRetriever
from app.adapters.postgres.vector import PostgresVectorRetriever
from app.adapters.postgres.vector_engine import (
    PostgresEngineRetriever,
    PostgresVectorExporter,
)
from app.config import RetrieverSettings
from app.external_retrievers import open_engine
from app.retrieval.candidate import Retrieval
from app.retrieval.external import ExternalRetriever
from app.retrieval.fan_out import checked
from app.retrieval.retriever import Retriever, ScopedQuery
from app.retrieval.vector_engine import VectorEngine, VectorExport
from app.scope.access import AccessScope
from app.scope.vocabulary import TrustTier
from tests.contract.retrievers.engine_servers import RUNNING
from tests.contract.retrievers.mcp_server import call, running_mcp_server
from tests.contract.retrievers.reference_server import ReferenceServer, running_reference_server
from tests.property.service import Service
from tests.property.worlds import Json
from tests.word_vectors import WordVectors, embed_all


class Backend(Protocol):
    name: str

    async def put(self, tenant: str, sources: Iterable[Json]) -> None:
        """Add or replace sources, as PUT /sources takes them."""

    async def remove(self, tenant: str, project: str, source_id: str) -> None:
        """Take a source out of what is searched."""

    @property
    def retriever(self) -> Retriever:
        """The adapter as a strategy's leg asks it."""


@dataclass
class IndexBackend:
    """A leg of the built-in index, filled over the API."""

    name: str
    retriever: Retriever
    service: Service
    database: Database
    words: WordVectors

    async def put(self, tenant: str, sources: Iterable[Json]) -> None:
        await self.service.index(tenant, [*sources])
        await embed_all(self.database, tenant, self.words)

    async def remove(self, tenant: str, project: str, source_id: str) -> None:
        await self.service.delete(tenant, project, source_id)


@dataclass
class HttpBackend:
    """The reference server over a real socket."""

    server: ReferenceServer
    retriever: Retriever
    name: str = "http"

    async def put(self, tenant: str, sources: Iterable[Json]) -> None:
        self.server.store.put(tenant, sources)

    async def remove(self, tenant: str, project: str, source_id: str) -> None:
        self.server.store.remove(tenant, project, source_id)


@dataclass
class EngineBackend(IndexBackend):
    """An engine beside the index, brought up to it after each change."""

    engine: VectorEngine

    async def put(self, tenant: str, sources: Iterable[Json]) -> None:
        await super().put(tenant, sources)
        await self.export(tenant)

    async def remove(self, tenant: str, project: str, source_id: str) -> None:
        await super().remove(tenant, project, source_id)
        await self.export(tenant)

    async def export(self, tenant: str) -> VectorExport:
        return await PostgresVectorExporter(self.database, self.engine).export(
            tenant, self.words.profile
        )


@dataclass
class McpBackend:
    """A real MCP server over a real socket."""

    url: str
    retriever: Retriever
    name: str = "mcp"

    async def put(self, tenant: str, sources: Iterable[Json]) -> None:
        await call(self.url, "put", {"tenant": tenant, "sources": [*sources]})

    async def remove(self, tenant: str, project: str, source_id: str) -> None:
        named = {"tenant": tenant, "project": project, "source_id": source_id}
        await call(self.url, "remove", named)


ADAPTERS = ("lexical", "vector", "http", "mcp", "chroma", "milvus")


@asynccontextmanager
async def open_backend(
    name: str, service: Service, database: Database, folder: Path
) -> AsyncIterator[Backend]:
    if name == "http":
        with running_reference_server(folder) as server:
            async with httpx.AsyncClient(trust_env=False) as client:
                yield HttpBackend(server, http_retriever(client, server.url))
        return
    if name == "mcp":
        async with running_mcp_server(folder) as url:
            yield McpBackend(url, mcp_retriever(url))
        return
    words = WordVectors()
    if name in RUNNING:
        with RUNNING[name](folder) as url:
            async with open_engine(engine_settings(name, url)) as engine:
                leg = PostgresEngineRetriever(database, [words], engine, fewest_vectors=0)
                yield EngineBackend(name, leg, service, database, words, engine)
        return
    legs: dict[str, Retriever] = {
        "lexical": PostgresLexicalRetriever(database),
        "vector": PostgresVectorRetriever(database, [words]),
    }
    yield IndexBackend(name, legs[name], service, database, words)


def mcp_retriever(url: str, tool: str = "retrieve", max_bytes: int = 1 << 24) -> ExternalRetriever:
    everyone = TrustTier.SYSTEM_POLICY
    named = McpTool("kb", url, None, tool, everyone, retries=0, max_bytes=max_bytes)
    return ExternalRetriever(McpRetriever(named), everyone)


def engine_settings(type_: str, url: str | None, **members: Any) -> RetrieverSettings:
    usual = {"name": "approximate-kb", "type": type_, "url": url, "retries": 0}
    return RetrieverSettings(**{**usual, **members})


def http_retriever(
    client: httpx.AsyncClient, url: str, *, retries: int = 0, max_bytes: int = 64 * 1024 * 1024
) -> ExternalRetriever:
    everyone = TrustTier.SYSTEM_POLICY
    endpoint = RetrieverEndpoint("kb", url, None, everyone, retries, max_bytes)
    return ExternalRetriever(HttpRetriever(client, endpoint), everyone)


@dataclass(frozen=True)
class Asking:
    """A backend in one tenant of the test's own; what it returns is not filtered here."""

    backend: Backend
    tenant: str
    database: Database

    async def put(self, *sources: Json) -> None:
        await self.backend.put(self.tenant, sources)

    async def ask(self, scope: AccessScope, text: str, limit: int = 100) -> Retrieval:
        """The adapter's own answer, which has to pass the check without a loss."""
        view = await PostgresIndexViews(self.database).open(scope)
        query = ScopedQuery(scope, view, text, "en", limit)
        found = await self.backend.retriever.retrieve(query)
        passed, dropped = checked(found, scope.predicate, limit)
        assert dropped == 0
        assert passed.candidates == found.candidates
        return found
