"""The composition root: the one file that names concrete adapters, and owns their lifetimes."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import structlog

from app.adapters.development_key import load_or_create_development_key, select_issuers
from app.adapters.embeddings import EmbeddingEndpoint, OpenAiEmbedder
from app.adapters.jose import IssuerConfig, TokenVerifier
from app.adapters.postgres.audit_log import PostgresAuditLog
from app.adapters.postgres.compaction import PostgresIndexCompaction
from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedPostgres, start_embedded
from app.adapters.postgres.graph import PostgresSourceGraph
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.lexical import PostgresLexicalRetriever
from app.adapters.postgres.rate_limits import PostgresRateLimiter
from app.adapters.postgres.schema import check_readiness, migrate, refuse_newer_schema
from app.adapters.postgres.snapshot_store import PostgresSnapshotStore
from app.adapters.postgres.source_history import PostgresSourceHistory
from app.adapters.postgres.source_index import PostgresSourceIndex
from app.adapters.postgres.vector import PostgresVectorRetriever
from app.adapters.postgres.vector_approximate import (
    PostgresApproximateVectorRetriever,
    build_approximate_index,
)
from app.adapters.postgres.vector_engine import PostgresVectorExporter
from app.adapters.postgres.vector_index import PostgresVectorIndex, has_vectors
from app.adapters.reranking import HttpReranker, RerankingEndpoint
from app.adapters.tokens import TiktokenCounter
from app.api.parts import Parts
from app.audit.sealer import Sealer
from app.config import (
    EmbeddingSettings,
    IssuerSettings,
    RerankingSettings,
    Settings,
)
from app.errors import ConfigurationError, ServiceError
from app.external_retrievers import external_retrievers, open_engine
from app.gathering import Services
from app.indexing.backlog import EmbeddingBacklog
from app.indexing.embedding import EmbeddingProfile
from app.indexing.preparation import ENGINE, SourcePreparer
from app.metrics import Metrics
from app.packing.rendering import framed_body
from app.pins import PinResolver
from app.readiness import Readiness
from app.reading import SnapshotReader
from app.retrieval.retriever import Retriever
from app.retrieval.vector_engine import VectorExport
from app.snapshot.assembly import ASSEMBLY_VERSION
from app.storage.compaction import Compactor
from app.strategy.strategy import StrategyCatalog
from app.tracing import hand_on_with

STORED_ENCODINGS = ("cl100k_base", "o200k_base")
"""Encodings whose token counts are kept with every chunk."""

_SUPERVISION_S = 1.0

_log = structlog.get_logger()


@asynccontextmanager
async def running_application(
    settings: Settings, metrics: Metrics | None = None
) -> AsyncIterator[Parts]:
    """Start what the settings name, and stop it again in the opposite order."""
    async with AsyncExitStack() as stack:
        url = await _database_url(settings, stack)
        database = _database(settings, url, metrics or Metrics())
        stack.push_async_callback(database.close)
        await refuse_newer_schema(database)
        client = await stack.enter_async_context(httpx.AsyncClient(follow_redirects=False))
        verifier = _verifier(settings, client)
        stack.push_async_callback(verifier.aclose)
        tokens = TiktokenCounter()
        embedders = [await _embedder(one, stack) for one in settings.embeddings]
        retrievers = await _retrievers(database, embedders)
        retrievers |= await external_retrievers(
            settings.retrievers, database, embedders, stack, retrievers
        )
        reranker = await _reranker(settings.reranking, stack)
        backlog = None
        if embedders:
            backlog = EmbeddingBacklog(
                PostgresVectorIndex(database),
                embedders[0],
                interval_s=settings.embedding_interval_s,
            )
            await stack.enter_async_context(backlog.running())
        snapshots = PostgresSnapshotStore(database)
        views, history = PostgresIndexViews(database), PostgresSourceHistory(database)
        strategies = StrategyCatalog.load(
            settings.strategies_dir,
            retrievers=retrievers,
            encodings=tokens.encodings,
            reranks=reranker is not None,
        )
        # The rank files take most of a second to load: before the first request, not in it.
        for encoding in STORED_ENCODINGS:
            await asyncio.to_thread(tokens.count, "", encoding)
        audit = PostgresAuditLog(database)
        sealer = Sealer(audit, interval_s=settings.audit_seal_interval_s, now=_now)
        await stack.enter_async_context(sealer.running())
        compactor = _compactor(settings, database)
        await stack.enter_async_context(compactor.running())
        yield Parts(
            services=Services(
                strategies=strategies,
                views=views,
                pins=PinResolver(views, history),
                retrievers=retrievers,
                graph=PostgresSourceGraph(database),
                snapshots=snapshots,
                tokens=tokens,
                engine=f"{ENGINE}, assembly {ASSEMBLY_VERSION}",
                clock=time.perf_counter,
                reranker=reranker,
            ),
            reader=SnapshotReader(snapshots, tokens, history),
            index=PostgresSourceIndex(database),
            preparer=source_preparer(tokens, settings.max_chunk_tokens),
            verifier=verifier,
            readiness=partial(_readiness, database),
            audit=audit,
            sealer=sealer,
            compactor=compactor,
            rate_limiter=PostgresRateLimiter(database),
            backlog=backlog,
            now=_now,
        )


def _database(settings: Settings, url: str, metrics: Metrics) -> Database:
    database = Database(
        url,
        pool_size=settings.database_pool_size,
        pool_timeout_s=settings.database_pool_timeout_s,
        statement_timeout_s=settings.database_statement_timeout_s,
        transaction_pooling=settings.database_pooling == "transaction",
        note_wait_s=metrics.pool_wait_seconds.observe,
    )
    metrics.pool_size.set(settings.database_pool_size)
    metrics.pool_in_use.set_function(lambda: database.connections_in_use)
    return database


def _compactor(settings: Settings, database: Database) -> Compactor:
    days = settings.index_retention_days
    retention = None if days is None else timedelta(days=days)
    return Compactor(
        PostgresIndexCompaction(database),
        retention=retention,
        now=_now,
        grace_s=settings.request_timeout_s,
    )


def _now() -> datetime:
    return datetime.now(UTC)


async def _readiness(database: Database) -> tuple[Readiness, ...]:
    try:
        found = await check_readiness(database)
    except ServiceError as error:
        return (Readiness("database", False, error.detail),)
    return (Readiness("database", True, "reachable"), *found)


async def _embedder(settings: EmbeddingSettings, stack: AsyncExitStack) -> OpenAiEmbedder:
    # A client of its own: texts go through a proxy only where this endpoint's settings say so.
    client = await stack.enter_async_context(_client(trust_env=settings.trust_env))
    return OpenAiEmbedder(
        client,
        EmbeddingEndpoint(
            url=settings.url,
            profile=_profile(settings),
            key=None if settings.key is None else settings.key.get_secret_value(),
            batch=settings.batch,
            deadline_s=settings.deadline_ms / 1000,
        ),
    )


def _client(*, trust_env: bool) -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=trust_env, event_hooks={"request": [hand_on_with]})


def _profile(settings: EmbeddingSettings) -> EmbeddingProfile:
    return EmbeddingProfile(
        settings.model,
        settings.dimensions,
        settings.normalise,
        settings.query_prefix,
        settings.passage_prefix,
        settings.input_type,
    )


async def _reranker(
    settings: RerankingSettings | None, stack: AsyncExitStack
) -> HttpReranker | None:
    if settings is None:
        return None
    # A client of its own, as for embeddings.
    client = await stack.enter_async_context(_client(trust_env=settings.trust_env))
    return HttpReranker(
        client,
        RerankingEndpoint(
            url=settings.url,
            model=settings.model,
            shape=settings.shape,
            key=None if settings.key is None else settings.key.get_secret_value(),
            batch=settings.batch,
            deadline_s=settings.deadline_ms / 1000,
        ),
    )


async def _retrievers(
    database: Database, embedders: Sequence[OpenAiEmbedder]
) -> dict[str, Retriever]:
    """Raises ConfigurationError for embeddings on a database without pgvector's tables."""
    legs: list[Retriever] = [PostgresLexicalRetriever(database)]
    if len({one.profile.id for one in embedders}) < len(embedders):
        raise ConfigurationError("Two entries of CTXSNAP_EMBEDDINGS have the same profile.")
    if embedders:
        if not await has_vectors(database):
            raise ConfigurationError(
                "CTXSNAP_EMBEDDINGS is set, but the database has no tables for vectors: let a "
                "superuser run CREATE EXTENSION vector in it, and then `ctxsnap migrate` again."
            )
        legs.append(PostgresVectorRetriever(database, embedders))
        legs.append(PostgresApproximateVectorRetriever(database, embedders))
    return {leg.name: leg for leg in legs}


def source_preparer(tokens: TiktokenCounter, max_chunk_tokens: int) -> SourcePreparer:
    def count_body(text: str) -> dict[str, int]:
        body = framed_body(text)
        return {encoding: tokens.count(body, encoding) for encoding in STORED_ENCODINGS}

    return SourcePreparer(
        max_chunk_tokens=max_chunk_tokens,
        count_tokens=partial(tokens.count, encoding="o200k_base"),
        count_body=count_body,
    )


async def migrate_database(settings: Settings, *, vector_index: bool = False) -> str:
    """Migrate under the owner's role and return the revision; starts the embedded database.

    With `vector_index` each embedding profile gets its approximate index; raises
    ConfigurationError where there is no profile.
    """
    if vector_index and not settings.embeddings:
        raise ConfigurationError("An approximate index is for the profiles in CTXSNAP_EMBEDDINGS.")
    async with AsyncExitStack() as stack:
        url = await _owner_url(settings, stack)
        revision = await migrate(url, serving_role=settings.serving_role)
        for one in settings.embeddings if vector_index else ():
            await build_approximate_index(url, _profile(one))
        return revision


async def export_vectors(settings: Settings, name: str, tenant: str) -> VectorExport:
    """Bring the engine of this retriever to what is live in the tenant's index.

    All profiles in CTXSNAP_EMBEDDINGS. Raises ConfigurationError for a name that no engine has.
    """
    wanted = [one for one in settings.retrievers if one.name == name]
    if not wanted:
        raise ConfigurationError(f"CTXSNAP_RETRIEVERS has no retriever {name}.")
    if not settings.embeddings:
        raise ConfigurationError("There are no vectors: CTXSNAP_EMBEDDINGS has no profile.")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine(wanted[0]))
        database = Database(await _database_url(settings, stack))
        stack.push_async_callback(database.close)
        exporter = PostgresVectorExporter(database, engine)
        rounds = [await exporter.export(tenant, _profile(one)) for one in settings.embeddings]
    return VectorExport(
        sum(one.added for one in rounds),
        sum(one.removed for one in rounds),
        sum(one.vectors for one in rounds),
    )


async def _owner_url(settings: Settings, stack: AsyncExitStack) -> str:
    if settings.migration_database_url is not None:
        return settings.migration_database_url.get_secret_value()
    server = await asyncio.to_thread(start_embedded, settings.data_dir)
    stack.push_async_callback(asyncio.to_thread, server.stop)
    return server.database.owner_url


async def _database_url(settings: Settings, stack: AsyncExitStack) -> str:
    """The serving role's URL; the embedded database is started and migrated first."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    server = await asyncio.to_thread(start_embedded, settings.data_dir)
    stack.push_async_callback(asyncio.to_thread, server.stop)
    await migrate(server.database.owner_url, serving_role=settings.serving_role)
    await stack.enter_async_context(_supervised(server))
    return server.database.serving_url


@asynccontextmanager
async def _supervised(server: EmbeddedPostgres) -> AsyncIterator[None]:
    supervision = asyncio.create_task(_keep_running(server))
    try:
        yield
    finally:
        supervision.cancel()
        with suppress(asyncio.CancelledError):
            await supervision


async def _keep_running(server: EmbeddedPostgres) -> None:
    """Start the embedded database again whenever it has died, under the same URL."""
    while True:
        await asyncio.sleep(_SUPERVISION_S)
        try:
            if not await asyncio.to_thread(server.is_running):
                _log.warning("embedded-database-died")
                await asyncio.to_thread(server.ensure_running)
                _log.warning("embedded-database-restarted")
        except ServiceError as error:
            # Requests are answered with 503 meanwhile; the next turn tries again.
            _log.error("embedded-database-not-restarted", code=error.code)


def _verifier(settings: Settings, client: httpx.AsyncClient) -> TokenVerifier:
    configured = tuple(_issuer(one) for one in settings.issuers)
    development = None if configured else load_or_create_development_key(settings.data_dir)
    return TokenVerifier(
        select_issuers(configured, development),
        clock=time.time,
        monotonic=time.monotonic,
        client=client,
        leeway_s=settings.clock_skew_s,
    )


def _issuer(one: IssuerSettings) -> IssuerConfig:
    secret = one.hs256_secret
    return IssuerConfig(
        issuer=one.issuer,
        audiences=one.audiences,
        jwks_file=one.jwks_file,
        jwks_url=one.jwks_url,
        hs256_secret=None if secret is None else secret.get_secret_value().encode(),
        algorithms=one.algorithms,
    )
