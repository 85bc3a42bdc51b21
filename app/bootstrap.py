"""The composition root: the one file that names concrete adapters, and owns their lifetimes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial

import httpx
import structlog

from app.adapters.development_key import load_or_create_development_key, select_issuers
from app.adapters.jose import IssuerConfig, TokenVerifier
from app.adapters.postgres.audit_log import PostgresAuditLog
from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedPostgres, start_embedded
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.lexical import PostgresLexicalRetriever
from app.adapters.postgres.schema import check_readiness, migrate, refuse_newer_schema
from app.adapters.postgres.snapshot_store import PostgresSnapshotStore
from app.adapters.postgres.source_history import PostgresSourceHistory
from app.adapters.postgres.source_index import PostgresSourceIndex
from app.adapters.tokens import TiktokenCounter
from app.api.parts import Parts
from app.audit.sealer import Sealer
from app.config import IssuerSettings, Settings
from app.errors import ServiceError
from app.indexing.preparation import ENGINE, SourcePreparer
from app.packing.rendering import framed_body
from app.pipeline import Services
from app.readiness import Readiness
from app.reading import SnapshotReader
from app.strategy.strategy import StrategyCatalog

STORED_ENCODINGS = ("cl100k_base", "o200k_base")
"""Encodings whose token counts are kept with every chunk."""

_SUPERVISION_S = 1.0

_log = structlog.get_logger()


@asynccontextmanager
async def running_application(settings: Settings) -> AsyncIterator[Parts]:
    """Start what the settings name, and stop it again in the opposite order."""
    async with AsyncExitStack() as stack:
        url = await _database_url(settings, stack)
        database = Database(
            url,
            pool_size=settings.database_pool_size,
            pool_timeout_s=settings.database_pool_timeout_s,
            statement_timeout_s=settings.database_statement_timeout_s,
            transaction_pooling=settings.database_pooling == "transaction",
        )
        stack.push_async_callback(database.close)
        await refuse_newer_schema(database)
        client = await stack.enter_async_context(httpx.AsyncClient(follow_redirects=False))
        verifier = _verifier(settings, client)
        stack.push_async_callback(verifier.aclose)
        tokens = TiktokenCounter()
        retriever = PostgresLexicalRetriever(database)
        snapshots = PostgresSnapshotStore(database)
        strategies = StrategyCatalog.load(settings.strategies_dir, frozenset({retriever.name}))
        # The rank files take most of a second to load: before the first request, not in it.
        for encoding in STORED_ENCODINGS:
            await asyncio.to_thread(tokens.count, "", encoding)
        audit = PostgresAuditLog(database)
        sealer = Sealer(audit, interval_s=settings.audit_seal_interval_s, now=_now)
        await stack.enter_async_context(sealer.running())
        yield Parts(
            services=Services(
                strategies=strategies,
                views=PostgresIndexViews(database),
                retrievers={retriever.name: retriever},
                snapshots=snapshots,
                tokens=tokens,
                engine=ENGINE,
                clock=time.perf_counter,
            ),
            reader=SnapshotReader(snapshots, tokens, PostgresSourceHistory(database)),
            index=PostgresSourceIndex(database),
            preparer=source_preparer(tokens, settings.max_chunk_tokens),
            verifier=verifier,
            readiness=partial(_readiness, database),
            audit=audit,
            sealer=sealer,
            now=_now,
        )


def _now() -> datetime:
    return datetime.now(UTC)


async def _readiness(database: Database) -> tuple[Readiness, ...]:
    try:
        found = await check_readiness(database)
    except ServiceError as error:
        return (Readiness("database", False, error.detail),)
    return (Readiness("database", True, "reachable"), *found)


def source_preparer(tokens: TiktokenCounter, max_chunk_tokens: int) -> SourcePreparer:
    def count_body(text: str) -> dict[str, int]:
        body = framed_body(text)
        return {encoding: tokens.count(body, encoding) for encoding in STORED_ENCODINGS}

    return SourcePreparer(
        max_chunk_tokens=max_chunk_tokens,
        count_tokens=partial(tokens.count, encoding="o200k_base"),
        count_body=count_body,
    )


async def migrate_database(settings: Settings) -> str:
    """Migrate under the owner's role and return the revision; starts the embedded database."""
    async with AsyncExitStack() as stack:
        if settings.migration_database_url is not None:
            url = settings.migration_database_url.get_secret_value()
            return await migrate(url, serving_role=settings.serving_role)
        server = await asyncio.to_thread(start_embedded, settings.data_dir)
        stack.push_async_callback(asyncio.to_thread, server.stop)
        return await migrate(server.database.owner_url, serving_role=settings.serving_role)


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
