"""Chroma as an engine for vectors, over its HTTP API (v2).

Guarantees: values travel as JSON, never as a part of an expression. Answers are read up to a
bound and taken in one form only. A server that is busy, failing or out of reach is asked again.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import numpy as np
import stamina
from pydantic import BaseModel, ValidationError

from app.adapters.json_endpoint import bounded_headers
from app.errors import ConfigurationError, RetrieverUnavailableError
from app.indexing.embedding import HalfVector
from app.retrieval.vector_engine import EngineVector

_Answer = TypeVar("_Answer", bound=BaseModel)

_VERSION = "ctxsnap_index_version"
_LABEL = "label"
_PAGE = 10_000
_BATCH = 1000
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class ChromaServer:
    """`url` is the server's own, without a path; `space` is `tenant/database` in it."""

    name: str
    url: str
    key: str | None
    space: str
    retries: int
    max_bytes: int


class _Collection(BaseModel):
    id: str
    metadata: dict[str, Any] | None = None


class _Found(BaseModel):
    ids: list[list[str]]


class _Keys(BaseModel):
    ids: list[str]


class _Nothing(BaseModel):
    """Whatever it is."""


class _TryAgainError(Exception):
    pass


class ChromaEngine:
    """Implements `retrieval.vector_engine.VectorEngine`.

    Raises ConfigurationError for a URL, a key or a space that no request can be made with.
    """

    def __init__(self, client: httpx.AsyncClient, server: ChromaServer) -> None:
        self._client = client
        self._server = server
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", server.space, re.ASCII):
            raise ConfigurationError(f"The Chroma space of {server.name} is no tenant/database.")
        if not re.fullmatch(r"https?://[\w.:\[\]-]+/?", server.url, re.ASCII):
            raise ConfigurationError(
                f"The Chroma URL of {server.name} has to be the server's own, without "
                f"credentials and path."
            )
        tenant, database = server.space.split("/")
        self._base = server.url.rstrip("/") + f"/api/v2/tenants/{tenant}/databases/{database}"
        refusal = f"The Chroma key of {server.name} is no header's token."
        self._headers = bounded_headers(server.key, refusal)
        self._retries = stamina.AsyncRetryingCaller(
            attempts=server.retries + 1, timeout=None, wait_initial=0.1, wait_max=2.0
        ).on(_TryAgainError)

    @property
    def name(self) -> str:
        return self._server.name

    async def ping(self) -> None:
        await self._ask("GET", "", _Nothing)

    async def version(self, collection: str) -> int | None:
        found = await self._ask("GET", f"/collections/{collection}", _Collection, missing=True)
        told = None if found is None else (found.metadata or {}).get(_VERSION)
        return told if type(told) is int else None

    async def nearest(
        self, collection: str, vector: HalfVector, label_keys: Sequence[int], places: int
    ) -> tuple[int, ...]:
        content = {
            "query_embeddings": [_numbers(vector)],
            "n_results": places,
            "where": {_LABEL: {"$in": list(label_keys)}},
            "include": [],
        }
        found = await self._within(collection, "query", content, _Found)
        if len(found.ids) != 1:
            raise self._unusable()
        return tuple(map(self._chunk_key, found.ids[0]))

    async def keys(self, collection: str) -> frozenset[int]:
        held = set[int]()
        while True:
            page = {"include": [], "limit": _PAGE, "offset": len(held)}
            found = await self._within(collection, "get", page, _Keys)
            before = len(held)
            held.update(map(self._chunk_key, found.ids))
            if len(held) == before:
                return frozenset(held)

    async def create(self, collection: str, _dimensions: int) -> None:
        content = {
            "name": collection,
            "get_or_create": True,
            "configuration": {"hnsw": {"space": "ip"}},
        }
        await self._ask("POST", "/collections", _Collection, content)

    async def add(self, collection: str, vectors: Sequence[EngineVector]) -> None:
        for start in range(0, len(vectors), _BATCH):
            some = vectors[start : start + _BATCH]
            content = {
                "ids": [str(one.chunk_key) for one in some],
                "embeddings": [_numbers(one.vector) for one in some],
                "metadatas": [{_LABEL: one.label_key} for one in some],
            }
            await self._within(collection, "upsert", content, _Nothing)

    async def remove(self, collection: str, chunk_keys: Collection[int]) -> None:
        keys = sorted(chunk_keys)
        for start in range(0, len(keys), _BATCH):
            content = {"ids": [str(key) for key in keys[start : start + _BATCH]]}
            await self._within(collection, "delete", content, _Nothing)

    async def mark(self, collection: str, version: int) -> None:
        path = f"/collections/{await self._id(collection)}"
        await self._ask("PUT", path, _Nothing, {"new_metadata": {_VERSION: version}})

    async def _id(self, collection: str) -> str:
        found = await self._ask("GET", f"/collections/{collection}", _Collection)
        if found is None or not re.fullmatch(r"[0-9a-f-]{36}", found.id):
            raise self._unusable()
        return found.id

    async def _within(
        self, collection: str, operation: str, content: object, answer: type[_Answer]
    ) -> _Answer:
        path = f"/collections/{await self._id(collection)}/{operation}"
        found = await self._ask("POST", path, answer, content)
        if found is None:
            raise self._unusable()
        return found

    async def _ask(
        self,
        method: str,
        path: str,
        answer: type[_Answer],
        content: object = None,
        *,
        missing: bool = False,
    ) -> _Answer | None:
        """The answer in its form; None where it is `missing` and may be."""
        try:
            body = await self._retries(self._send, method, path, content, missing)
        except _TryAgainError as error:
            raise RetrieverUnavailableError(f"{self.name}: {error}") from error.__cause__
        try:
            return None if body is None else answer.model_validate_json(body)
        except ValidationError:
            # It would tell what was answered.
            raise self._unusable() from None

    async def _send(self, method: str, path: str, content: object, missing: bool) -> bytes | None:
        try:
            async with self._client.stream(
                method, self._base + path, json=content, headers=self._headers, timeout=None
            ) as response:
                if missing and response.status_code == httpx.codes.NOT_FOUND:
                    return None
                if response.status_code in _RETRIED:
                    raise _TryAgainError(f"Chroma answered {response.status_code}.")
                if not response.is_success:
                    raise RetrieverUnavailableError(
                        f"{self.name}: Chroma answered {response.status_code}."
                    )
                return await self._read(response)
        except httpx.TransportError as error:
            raise _TryAgainError("Chroma could not be reached.") from error

    async def _read(self, response: httpx.Response) -> bytes:
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > self._server.max_bytes:
                raise self._unusable()
        return bytes(body)

    def _chunk_key(self, name: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", name):
            raise self._unusable()
        return int(name)

    def _unusable(self) -> RetrieverUnavailableError:
        return RetrieverUnavailableError(f"{self.name}: Chroma's answer is not usable.")


def _numbers(vector: HalfVector) -> list[float]:
    numbers: list[float] = np.frombuffer(vector, ">f2").astype(float).tolist()
    return numbers
