"""Milvus as an engine for vectors, over its own client (gRPC).

Guarantees: a filter is made of integers alone. Whatever the client library raises is a
RetrieverUnavailableError, and the library logs nothing, as it would log what was asked. Its
calls block, so they run in threads of the engine's own, as many as it may be asked at once; one
that nobody waits for any more ends at its own deadline. Every read is strongly consistent.

The index version is a row of the collection under a key and a label that no chunk has: whoever
reads it sees the vectors that were written before it.

Not handled: global clusters, whose client asks for its servers over HTTP.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import stamina
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import ErrorCode, MilvusException

from app.errors import ConfigurationError, RetrieverUnavailableError
from app.indexing.embedding import HalfVector
from app.retrieval.vector_engine import EngineVector

_Answer = TypeVar("_Answer")

_KEY = "chunk_key"
_LABEL = "label_key"
_VECTOR = "vector"
_METRIC = "IP"
_INDEXES = {
    _VECTOR: {"index_type": "AUTOINDEX", "metric_type": _METRIC},
    _LABEL: {"index_type": "INVERTED"},
}
_STRONG = "Strong"
_VERSION_ROW = -1
_PAGE = 10_000
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class MilvusServer:
    """`url` is the server's own, without a path; `timeout_s` is each request's deadline, and
    `retries` is how often a call without an answer is repeated.
    """

    name: str
    url: str
    token: str | None
    database: str
    timeout_s: float
    retries: int
    threads: int
    max_bytes: int
    trust_env: bool = False


class MilvusEngine:
    """Implements `retrieval.vector_engine.VectorEngine`.

    Connects with the first call. Raises ConfigurationError for a URL, a token or a database that
    no request can be made with.
    """

    def __init__(self, server: MilvusServer) -> None:
        self._server = server
        if not re.fullmatch(r"https?://[\w.:\[\]-]+/?", server.url, re.ASCII):
            raise ConfigurationError(
                f"The Milvus URL of {server.name} has to be the server's own, without "
                f"credentials and path."
            )
        if server.token is not None and not re.fullmatch(r"[\x21-\x7e]+", server.token):
            raise ConfigurationError(f"The Milvus key of {server.name} is no token.")
        if not re.fullmatch(r"[A-Za-z_]\w*", server.database, re.ASCII):
            raise ConfigurationError(f"The Milvus database of {server.name} has no such name.")
        for logger in ("pymilvus", "pymilvus.milvus_client"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        self._threads = ThreadPoolExecutor(server.threads, thread_name_prefix="milvus")
        self._connecting = threading.Lock()
        self._client: MilvusClient | None = None
        self._retries = stamina.AsyncRetryingCaller(
            attempts=server.retries + 1, timeout=None, wait_initial=0.1, wait_max=2.0
        ).on(RetrieverUnavailableError)

    @property
    def name(self) -> str:
        return self._server.name

    async def close(self) -> None:
        """Calls under way end by themselves."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ping(self) -> None:
        await self._ask(lambda client: client.list_collections(timeout=self._server.timeout_s))

    async def version(self, collection: str) -> int | None:
        def ask(client: MilvusClient) -> list[Any]:
            try:
                rows = client.get(
                    collection,
                    ids=[_VERSION_ROW],
                    output_fields=[_LABEL],
                    consistency_level=_STRONG,
                    timeout=self._server.timeout_s,
                )
            except MilvusException as error:
                if error.code == ErrorCode.COLLECTION_NOT_FOUND:
                    return []
                raise
            return [row.get(_LABEL) for row in rows]

        labels = await self._ask(ask)
        told = labels[0] if labels else None
        return _version_of(told) if type(told) is int else None

    async def nearest(
        self, collection: str, vector: HalfVector, label_keys: Sequence[int], places: int
    ) -> tuple[int, ...]:
        def ask(client: MilvusClient) -> list[list[Any]]:
            found = client.search(
                collection,
                data=[_numbers(vector)],
                anns_field=_VECTOR,
                filter=f"{_LABEL} in [{', '.join(f'{key:d}' for key in label_keys)}]",
                limit=places,
                output_fields=[_KEY],
                search_params={"metric_type": _METRIC},
                consistency_level=_STRONG,
                timeout=self._server.timeout_s,
            )
            # Here, since an answer is read as it is looked at.
            return [[hit.get(_KEY) for hit in hits] for hits in found]

        queries = await self._ask(ask)
        if len(queries) != 1:
            raise self._unusable()
        return tuple(map(self._chunk_key, queries[0]))

    async def keys(self, collection: str) -> frozenset[int]:
        pages = await self._ask(
            lambda client: client.query_iterator(
                collection,
                batch_size=_PAGE,
                filter=f"{_KEY} >= 0",
                output_fields=[_KEY],
                consistency_level=_STRONG,
                timeout=self._server.timeout_s,
            )
        )
        held = set[int]()
        while page := await self._ask(lambda _: pages.next()):
            held.update(self._chunk_key(row.get(_KEY)) for row in page)
        return frozenset(held)

    async def create(self, collection: str, dimensions: int) -> None:
        """Also what an earlier call that was stopped has left to do."""
        await self._ask(lambda client: self._create(client, collection, dimensions))

    async def add(self, collection: str, vectors: Sequence[EngineVector]) -> None:
        for start in range(0, len(vectors), _BATCH):
            await self._put(
                collection,
                [
                    {_KEY: one.chunk_key, _LABEL: one.label_key, _VECTOR: _numbers(one.vector)}
                    for one in vectors[start : start + _BATCH]
                ],
            )

    async def remove(self, collection: str, chunk_keys: Collection[int]) -> None:
        keys = sorted(chunk_keys)
        for start in range(0, len(keys), _BATCH):
            await self._drop(collection, keys[start : start + _BATCH])

    async def mark(self, collection: str, version: int) -> None:
        told = await self._ask(
            lambda client: client.describe_collection(collection, timeout=self._server.timeout_s)
        )
        dimensions = [
            field["params"]["dim"] for field in told["fields"] if field["name"] == _VECTOR
        ]
        if len(dimensions) != 1:
            raise self._unusable()
        nowhere = np.zeros(dimensions[0], np.float32)
        row = {_KEY: _VERSION_ROW, _LABEL: _version_of(version), _VECTOR: nowhere}
        await self._put(collection, [row])

    def _create(self, client: MilvusClient, collection: str, dimensions: int) -> None:
        within = {"timeout": self._server.timeout_s}
        if not client.has_collection(collection, **within):
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field(_KEY, DataType.INT64, is_primary=True)
            schema.add_field(_LABEL, DataType.INT64)
            schema.add_field(_VECTOR, DataType.FLOAT_VECTOR, dim=dimensions)
            client.create_collection(collection, schema=schema, consistency_level=_STRONG, **within)
        for field, told in _INDEXES.items():
            if not client.list_indexes(collection, field_name=field, **within):
                index = client.prepare_index_params()
                index.add_index(field, **told)
                client.create_index(collection, index, **within)
        client.load_collection(collection, **within)

    async def _put(self, collection: str, rows: list[dict[str, Any]]) -> None:
        await self._ask(
            lambda client: client.upsert(collection, rows, timeout=self._server.timeout_s)
        )

    async def _drop(self, collection: str, keys: list[int]) -> None:
        await self._ask(
            lambda client: client.delete(collection, ids=keys, timeout=self._server.timeout_s)
        )

    async def _ask(self, operation: Callable[[MilvusClient], _Answer]) -> _Answer:
        """What the operation returns; done again, it does the same."""
        return await self._retries(self._in_a_thread, operation)

    async def _in_a_thread(self, operation: Callable[[MilvusClient], _Answer]) -> _Answer:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: operation(self._connected()))
        except Exception as error:
            raise RetrieverUnavailableError(f"{self.name}: Milvus could not be asked.") from error

    def _connected(self) -> MilvusClient:
        if not self._connecting.acquire(timeout=self._server.timeout_s):
            raise TimeoutError
        try:
            if self._client is None:
                self._client = MilvusClient(
                    uri=self._server.url,
                    token=self._server.token or "",
                    db_name=self._server.database,
                    timeout=self._server.timeout_s,
                    # Not shared with another retriever, whose options would be this one's.
                    dedicated=True,
                    grpc_options={
                        "grpc.enable_http_proxy": int(self._server.trust_env),
                        # By default up to two minutes, after a server is back.
                        "grpc.max_reconnect_backoff_ms": 2000,
                        # In bytes, as the library's own default is, to take its place.
                        b"grpc.max_receive_message_length": self._server.max_bytes,
                    },
                )
            return self._client
        finally:
            self._connecting.release()

    def _chunk_key(self, told: object) -> int:
        if type(told) is not int or told < 0:
            raise self._unusable()
        return told

    def _unusable(self) -> RetrieverUnavailableError:
        return RetrieverUnavailableError(f"{self.name}: Milvus's answer is not usable.")


def _version_of(label: int) -> int:
    """Of a version row's label, which is negative; and the other way round."""
    return -1 - label


def _numbers(vector: HalfVector) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(vector, ">f2").astype(np.float32)
