"""The part of the composition root that opens retrievers outside of the database."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import entry_points

import httpx
import structlog

from app.adapters.chroma.engine import ChromaEngine, ChromaServer
from app.adapters.http.retriever import HttpRetriever, RetrieverEndpoint
from app.adapters.postgres.database import Database
from app.adapters.postgres.vector_approximate import FEWEST_VECTORS
from app.adapters.postgres.vector_engine import PostgresEngineRetriever
from app.config import RetrieverSettings
from app.errors import ConfigurationError, UnavailableError
from app.indexing.embedding import Embedder
from app.retrieval.candidate import InvalidAnswerError
from app.retrieval.expansion import GRAPH
from app.retrieval.external import ExternalRetriever
from app.retrieval.policy import GuardedRetriever, RetrieverPolicy
from app.retrieval.reranking import RERANK
from app.retrieval.retriever import ExternalBackend, Retriever
from app.retrieval.vector_engine import VectorEngine
from app.scope.vocabulary import TrustTier
from app.snapshot.pieces import PINNED
from app.strategy.strategy import APPROXIMATE
from app.tracing import hand_on_with

RETRIEVER_GROUP = "ctxsnap.retrievers"
"""Entry points of this group are `BackendOpener`s; the name of one is a retriever's `type`."""

BackendOpener = Callable[
    [RetrieverSettings, Sequence[Embedder]], AbstractAsyncContextManager[ExternalBackend]
]
"""Opens a backend as its settings say, with the embedders of the service's profiles."""

_FIRST_ANSWER_S = 10.0
"""For how long the start waits for what a backend filters by."""

_log = structlog.get_logger()


async def external_retrievers(
    configured: Sequence[RetrieverSettings],
    database: Database,
    embedders: Sequence[Embedder],
    stack: AsyncExitStack,
    built_in: Collection[str],
) -> dict[str, Retriever]:
    """Raises ConfigurationError for one whose backend does not apply the scope."""
    retrievers: dict[str, Retriever] = {}
    for one in configured:
        if one.name in (*built_in, *retrievers, GRAPH, PINNED, RERANK):
            raise ConfigurationError(f"CTXSNAP_RETRIEVERS: the name {one.name} is taken.")
        backend: ExternalBackend
        if one.type in _ENGINES:
            backend = await _engine_backend(one, database, embedders, stack)
        else:
            backend = await stack.enter_async_context(_open_backend(one.type)(one, embedders))
        policy = RetrieverPolicy(one.concurrency, one.breaker_failures, one.breaker_reset_s)
        guarded = GuardedRetriever(backend, policy, asyncio.get_running_loop().time)
        try:
            async with asyncio.timeout(_FIRST_ANSWER_S):
                await guarded.check_scope()
        except (TimeoutError, UnavailableError) as error:
            # It is asked again before its first query, which is a failed leg until it answers.
            code = getattr(error, "code", "timeout")
            _log.warning("retriever_unavailable", retriever=one.name, code=code)
        except InvalidAnswerError as error:
            raise ConfigurationError(
                f"CTXSNAP_RETRIEVERS: {one.name} does not say what it filters by: {error}"
            ) from error
        retrievers[one.name] = guarded
        if one.type not in _ENGINES:
            retrievers[one.name] = ExternalRetriever(guarded, TrustTier(one.max_trust_tier))
    return retrievers


async def _engine_backend(
    settings: RetrieverSettings,
    database: Database,
    embedders: Sequence[Embedder],
    stack: AsyncExitStack,
) -> PostgresEngineRetriever:
    if APPROXIMATE not in settings.name:
        raise ConfigurationError(
            f"CTXSNAP_RETRIEVERS: {settings.type} searches approximately, and the name "
            f"{settings.name} does not contain `{APPROXIMATE}`."
        )
    if not embedders:
        raise ConfigurationError(
            f"CTXSNAP_RETRIEVERS: {settings.name} needs a profile in CTXSNAP_EMBEDDINGS."
        )
    fewest = settings.options.get("fewest_vectors", str(FEWEST_VECTORS))
    if not re.fullmatch(r"[0-9]{1,9}", fewest):
        raise ConfigurationError(f"CTXSNAP_RETRIEVERS: {settings.name}: fewest_vectors: a number.")
    engine = await stack.enter_async_context(open_engine(settings))
    return PostgresEngineRetriever(database, embedders, engine, fewest_vectors=int(fewest))


@asynccontextmanager
async def open_engine(settings: RetrieverSettings) -> AsyncIterator[VectorEngine]:
    """Raises ConfigurationError for a type that is no engine, or settings that cannot work."""
    if settings.type not in _ENGINES:
        raise ConfigurationError(f"{settings.type} is no engine; known are: {', '.join(_ENGINES)}.")
    async with _ENGINES[settings.type](settings) as engine:
        yield engine


@asynccontextmanager
async def _chroma_engine(settings: RetrieverSettings) -> AsyncIterator[VectorEngine]:
    async with _client(settings) as client:
        yield ChromaEngine(
            client,
            ChromaServer(
                name=settings.name,
                url=_url(settings),
                key=None if settings.key is None else settings.key.get_secret_value(),
                space=settings.options.get("space", "default_tenant/default_database"),
                retries=settings.retries,
                max_bytes=settings.max_bytes,
            ),
        )


@asynccontextmanager
async def _milvus_engine(settings: RetrieverSettings) -> AsyncIterator[VectorEngine]:
    try:
        # An extra, which most services do without.
        from app.adapters.milvus.engine import MilvusEngine, MilvusServer  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "A retriever of the type milvus needs the extra `milvus`."
        ) from error
    timeout = settings.options.get("timeout_s", "10")
    if not re.fullmatch(r"[1-9][0-9]{0,2}", timeout):
        raise ConfigurationError(
            f"CTXSNAP_RETRIEVERS: {settings.name}: timeout_s: 1 to 999 seconds."
        )
    engine = MilvusEngine(
        MilvusServer(
            name=settings.name,
            url=_url(settings),
            token=None if settings.key is None else settings.key.get_secret_value(),
            database=settings.options.get("database", "default"),
            timeout_s=float(timeout),
            retries=settings.retries,
            threads=settings.concurrency,
            max_bytes=settings.max_bytes,
            trust_env=settings.trust_env,
        )
    )
    try:
        yield engine
    finally:
        await engine.close()


def _client(settings: RetrieverSettings) -> httpx.AsyncClient:
    """A client of its own, as for embeddings."""
    hooks = {"request": [hand_on_with]}
    return httpx.AsyncClient(trust_env=settings.trust_env, event_hooks=hooks)


def _url(settings: RetrieverSettings) -> str:
    if settings.url is None:
        raise ConfigurationError(f"CTXSNAP_RETRIEVERS: {settings.name} needs a `url`.")
    return settings.url


def _open_backend(type_: str) -> BackendOpener:
    if type_ in _OPENERS:
        return _OPENERS[type_]
    offered = {point.name: point for point in entry_points(group=RETRIEVER_GROUP)}
    if type_ not in offered:
        known = ", ".join(sorted({*_OPENERS, *_ENGINES, *offered}))
        raise ConfigurationError(f"CTXSNAP_RETRIEVERS: unknown type {type_}; known are: {known}.")
    opener: BackendOpener = offered[type_].load()
    return opener


@asynccontextmanager
async def _http_backend(
    settings: RetrieverSettings, _embedders: Sequence[Embedder]
) -> AsyncIterator[HttpRetriever]:
    url = _url(settings)
    async with _client(settings) as client:
        yield HttpRetriever(
            client,
            RetrieverEndpoint(
                name=settings.name,
                url=url,
                key=None if settings.key is None else settings.key.get_secret_value(),
                max_trust_tier=TrustTier(settings.max_trust_tier),
                retries=settings.retries,
                max_bytes=settings.max_bytes,
            ),
        )


@asynccontextmanager
async def _mcp_backend(
    settings: RetrieverSettings, _embedders: Sequence[Embedder]
) -> AsyncIterator[ExternalBackend]:
    try:
        # An extra, which most services do without.
        from app.adapters.mcp.retriever import McpRetriever, McpTool  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError("A retriever of the type mcp needs the extra `mcp`.") from error
    yield McpRetriever(
        McpTool(
            name=settings.name,
            url=_url(settings),
            key=None if settings.key is None else settings.key.get_secret_value(),
            tool=settings.options.get("tool", "retrieve"),
            max_trust_tier=TrustTier(settings.max_trust_tier),
            retries=settings.retries,
            max_bytes=settings.max_bytes,
            trust_env=settings.trust_env,
        )
    )


_OPENERS: dict[str, BackendOpener] = {"http": _http_backend, "mcp": _mcp_backend}

_ENGINES: dict[str, Callable[[RetrieverSettings], AbstractAsyncContextManager[VectorEngine]]] = {
    "chroma": _chroma_engine,
    "milvus": _milvus_engine,
}
"""By the types that search copies of the index's vectors."""
