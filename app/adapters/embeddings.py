"""Embeddings from any endpoint that speaks OpenAI's `POST /embeddings`.

Guarantees: what is returned has one finite vector of the profile's dimensions for each text, in
their order, or it is an error. How the endpoint is asked, and what is kept quiet about it, is in
`json_endpoint`.

Not handled: vectors shortened on request (`dimensions` is not sent).
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import httpx
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from app.adapters.json_endpoint import JsonEndpoint, in_batches
from app.errors import EmbeddingRefusedError, EmbeddingUnavailableError
from app.indexing.embedding import EmbeddingProfile, HalfVector, half_vector

_CONCURRENT_REQUESTS = 2
"""Of passages; queries do not wait for them."""
_BYTES_PER_NUMBER = 32
"""More than any way to write one as JSON takes."""


@dataclass(frozen=True, slots=True)
class EmbeddingEndpoint:
    """Where vectors come from; `url` is the base that `/embeddings` is added to.

    `deadline_s` bounds one request with all its retries; `batch` is the number of texts of one
    request.
    """

    url: str
    profile: EmbeddingProfile
    key: str | None
    batch: int
    deadline_s: float


class _Entry(BaseModel):
    index: int
    embedding: list[float] | str


class _Answer(BaseModel):
    data: list[_Entry]


class OpenAiEmbedder:
    """Implements `indexing.embedding.Embedder`.

    Raises ConfigurationError for a URL or a key that no request can be made with.
    """

    def __init__(self, client: httpx.AsyncClient, endpoint: EmbeddingEndpoint) -> None:
        self._endpoint = endpoint
        self._asked = JsonEndpoint(
            client,
            "embedding",
            EmbeddingUnavailableError,
            url=endpoint.url,
            path="/embeddings",
            key=endpoint.key,
            deadline_s=endpoint.deadline_s,
            refused=EmbeddingRefusedError,
        )
        self._slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    @property
    def profile(self) -> EmbeddingProfile:
        return self._endpoint.profile

    async def embed_passages(self, texts: Sequence[str]) -> tuple[HalfVector, ...]:
        prefixed = [self.profile.passage_prefix + text for text in texts]
        ask = partial(self._embed, input_type="passage")
        return await in_batches(prefixed, self._endpoint.batch, self._slots, ask)

    async def embed_query(self, text: str) -> HalfVector:
        (vector,) = await self._embed([self.profile.query_prefix + text], "query")
        return vector

    async def _embed(self, texts: Sequence[str], input_type: str) -> list[HalfVector]:
        content: dict[str, object] = {
            "model": self.profile.model,
            "input": texts,
            "encoding_format": "float",
        }
        if self.profile.input_type:
            content["input_type"] = input_type
        most_bytes = (len(texts) * self.profile.dimensions + 1024) * _BYTES_PER_NUMBER
        body = await self._asked.post(content, most_bytes)
        return await asyncio.to_thread(self._vectors, body, len(texts))

    def _vectors(self, body: bytes, wanted: int) -> list[HalfVector]:
        profile = self.profile
        try:
            answer = _Answer.model_validate_json(body, strict=True)
            entries = sorted(answer.data, key=lambda entry: entry.index)
            if [entry.index for entry in entries] != list(range(wanted)):
                raise self._asked.unusable(
                    f"it has {len(entries)} vectors for {wanted} texts, or not one for each"
                )
            numbers = [_numbers(entry.embedding) for entry in entries]
            for one in numbers:
                if len(one) != profile.dimensions:
                    raise self._asked.unusable(
                        f"a vector has {len(one)} dimensions, and the profile {profile.dimensions}"
                    )
            return [half_vector(one, normalise=profile.normalise) for one in numbers]
        except ValidationError:
            # It would tell what was answered.
            raise self._asked.unusable("it is not in OpenAI's format") from None
        except ValueError as error:
            raise self._asked.unusable(str(error)) from None


def _numbers(embedding: list[float] | str) -> npt.NDArray[np.float64]:
    """From a list of numbers, or base64 of little-endian float32, as OpenAI encodes it."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float64)
    return np.array(embedding, np.float64)
