"""Embeddings from any endpoint that speaks OpenAI's `POST /embeddings`.

Guarantees: what is returned has one finite vector of the profile's dimensions for each text, in
their order, or it is an error. The key is in no log and no error, nor is anything that the
endpoint answered. An answer is read up to a bound, and redirects are not followed. An endpoint
that is busy, failing or out of reach is asked again, a few times until the deadline: after
growing and jittered pauses, or after the one that it asks for.

Not handled: vectors shortened on request (`dimensions` is not sent), and a `Retry-After` with a
date, which would need a clock to agree on.
"""

import asyncio
import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import httpx
import numpy as np
import numpy.typing as npt
import stamina
from pydantic import BaseModel, ValidationError

from app.errors import ConfigurationError, EmbeddingUnavailableError
from app.indexing.embedding import EmbeddingProfile, HalfVector, half_vector

_CONCURRENT_REQUESTS = 2
"""Of passages; queries do not wait for them."""
_BYTES_PER_NUMBER = 32
"""More than any way to write one as JSON takes."""
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_RETRIES = stamina.AsyncRetryingCaller(
    attempts=4, timeout=None, wait_initial=0.1, wait_max=2.0, wait_jitter=0.3
)
# The HTTP library tells in its error which value of a header it refuses.
_KEY = re.compile(r"[\x21-\x7e]+")


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


class _TryAgainError(Exception):
    """`after_s` is the pause that the endpoint asks for."""

    def __init__(self, what: str, after_s: int | None = None) -> None:
        super().__init__(f"The embedding endpoint {what}.")
        self.after_s = after_s


class OpenAiEmbedder:
    """Implements `indexing.embedding.Embedder`.

    Raises ConfigurationError for a URL or a key that no request can be made with.
    """

    def __init__(self, client: httpx.AsyncClient, endpoint: EmbeddingEndpoint) -> None:
        self._client = client
        self._endpoint = endpoint
        self._url = _embeddings_url(endpoint.url)
        # Identity: a compressed answer could grow beyond the bound while it is unpacked.
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if endpoint.key is not None:
            if not _KEY.fullmatch(endpoint.key):
                raise ConfigurationError("The embedding endpoint's key is no token of a header.")
            self._headers["Authorization"] = f"Bearer {endpoint.key}"
        self._slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    @property
    def profile(self) -> EmbeddingProfile:
        return self._endpoint.profile

    async def embed_passages(self, texts: Sequence[str]) -> tuple[HalfVector, ...]:
        prefixed = [self.profile.passage_prefix + text for text in texts]
        size = self._endpoint.batch
        try:
            async with asyncio.TaskGroup() as group:
                batches = [
                    group.create_task(self._in_turn(prefixed[start : start + size]))
                    for start in range(0, len(prefixed), size)
                ]
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        return tuple(vector for batch in batches for vector in batch.result())

    async def embed_query(self, text: str) -> HalfVector:
        (vector,) = await self._embed([self.profile.query_prefix + text], "query")
        return vector

    async def _in_turn(self, texts: Sequence[str]) -> list[HalfVector]:
        async with self._slots:
            return await self._embed(texts, "passage")

    async def _embed(self, texts: Sequence[str], input_type: str) -> list[HalfVector]:
        content: dict[str, object] = {
            "model": self.profile.model,
            "input": texts,
            "encoding_format": "float",
        }
        if self.profile.input_type:
            content["input_type"] = input_type
        most_bytes = (len(texts) * self.profile.dimensions + 1024) * _BYTES_PER_NUMBER
        try:
            async with asyncio.timeout(self._endpoint.deadline_s) as deadline:
                pause = partial(_pause_s, deadline)
                body = await _RETRIES(pause, self._post, content, most_bytes)
        except TimeoutError as error:
            raise EmbeddingUnavailableError(
                "The embedding endpoint did not answer in time."
            ) from error
        except _TryAgainError as error:
            raise EmbeddingUnavailableError(
                str(error), retry_after_s=error.after_s or 1
            ) from error.__cause__
        return await asyncio.to_thread(self._vectors, body, len(texts))

    async def _post(self, content: dict[str, object], most_bytes: int) -> bytes:
        try:
            async with self._client.stream(
                "POST",
                self._url,
                json=content,
                headers=self._headers,
                timeout=None,
                follow_redirects=False,
            ) as response:
                _check(response)
                return await _read(response, most_bytes)
        except httpx.TransportError as error:
            raise _TryAgainError("could not be reached") from error

    def _vectors(self, body: bytes, wanted: int) -> list[HalfVector]:
        profile = self.profile
        try:
            answer = _Answer.model_validate_json(body, strict=True)
            entries = sorted(answer.data, key=lambda entry: entry.index)
            if [entry.index for entry in entries] != list(range(wanted)):
                raise _unusable(
                    f"it has {len(entries)} vectors for {wanted} texts, or not one for each"
                )
            numbers = [_numbers(entry.embedding) for entry in entries]
            for one in numbers:
                if len(one) != profile.dimensions:
                    raise _unusable(
                        f"a vector has {len(one)} dimensions, and the profile {profile.dimensions}"
                    )
            return [half_vector(one, normalise=profile.normalise) for one in numbers]
        except ValidationError:
            # It would tell what was answered.
            raise _unusable("it is not in OpenAI's format") from None
        except ValueError as error:
            raise _unusable(str(error)) from None


def _embeddings_url(base: str) -> httpx.URL:
    try:
        url = httpx.URL(base)
    except httpx.InvalidURL as error:
        raise ConfigurationError("The embedding endpoint's URL is not a URL.") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError("The embedding endpoint's URL must begin with http or https.")
    if not 0 <= (url.port or 0) < 1 << 16:
        raise ConfigurationError("The embedding endpoint's URL has no possible port.")
    if url.userinfo or url.query or url.fragment:
        raise ConfigurationError(
            "The embedding endpoint's URL is a base that /embeddings is added to, without "
            "credentials, query and fragment."
        )
    return url.copy_with(path=url.path.rstrip("/") + "/embeddings")


def _pause_s(deadline: asyncio.Timeout, error: Exception) -> bool | float:
    """Whether to try again, and after which pause if the endpoint asks for one."""
    if not isinstance(error, _TryAgainError):
        return False
    if error.after_s is None:
        return True
    ends_at = deadline.when()
    within = ends_at is None or asyncio.get_running_loop().time() + error.after_s < ends_at
    return within and float(error.after_s)


def _check(response: httpx.Response) -> None:
    if response.status_code in _RETRIED:
        value = response.headers.get("Retry-After", "")
        seconds = int(value) if re.fullmatch(r"[0-9]{1,5}", value) else None
        raise _TryAgainError(f"answered {response.status_code}", seconds)
    if response.status_code != httpx.codes.OK:
        raise EmbeddingUnavailableError(f"The embedding endpoint answered {response.status_code}.")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _unusable("it is compressed")


async def _read(response: httpx.Response, most_bytes: int) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > most_bytes:
            raise _unusable(f"it is longer than {most_bytes} bytes")
    return bytes(body)


def _numbers(embedding: list[float] | str) -> npt.NDArray[np.float64]:
    """From a list of numbers, or base64 of little-endian float32, as OpenAI encodes it."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float64)
    return np.array(embedding, np.float64)


def _unusable(why: str) -> EmbeddingUnavailableError:
    return EmbeddingUnavailableError(f"The embedding endpoint's answer is not usable: {why}.")
