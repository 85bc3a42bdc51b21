"""Re-ranking by any endpoint that has `POST /rerank` as Cohere and Jina, or as TEI, have it.

    shape    request                                 answer
    cohere   model, query, documents, top_n          {"results": [{"index", "relevance_score"}]}
    tei      query, texts, truncate                  [{"index", "score"}]

Guarantees: what is returned has one finite score for each text, in their order, or it is an
error. How the endpoint is asked, and what is kept quiet about it, is in `json_endpoint`.

Not handled: endpoints whose scores depend on the other texts of a request. Theirs depend on
the batch.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import httpx
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from app.adapters.json_endpoint import JsonEndpoint, in_batches
from app.errors import RerankingUnavailableError
from app.retrieval.reranking import millionths

Shape = Literal["cohere", "tei"]

_CONCURRENT_REQUESTS = 4
"""Of one ranking."""
_BYTES_PER_RESULT = 1024
_BYTES_PER_BYTE = 6
"""Some endpoints send the texts back, and may escape each character."""


@dataclass(frozen=True, slots=True)
class RerankingEndpoint:
    """Where relevance comes from; `url` is the base that `/rerank` is added to.

    `deadline_s` bounds one request with all its retries; `batch` is the number of texts of one
    request.
    """

    url: str
    model: str
    shape: Shape
    key: str | None
    batch: int
    deadline_s: float


class _CohereResult(BaseModel):
    index: int
    score: float = Field(alias="relevance_score")


class _CohereAnswer(BaseModel):
    results: list[_CohereResult]


class _TeiResult(BaseModel):
    index: int
    score: float


_TEI_ANSWER = TypeAdapter(list[_TeiResult])


class HttpReranker:
    """Implements `retrieval.reranking.Reranker`.

    Raises ConfigurationError for a URL or a key that no request can be made with.
    """

    def __init__(self, client: httpx.AsyncClient, endpoint: RerankingEndpoint) -> None:
        self._endpoint = endpoint
        self._asked = JsonEndpoint(
            client,
            "re-ranking",
            RerankingUnavailableError,
            url=endpoint.url,
            path="/rerank",
            key=endpoint.key,
            deadline_s=endpoint.deadline_s,
        )

    @property
    def model(self) -> str:
        return self._endpoint.model

    async def relevance(self, query: str, texts: Sequence[str]) -> tuple[int, ...]:
        slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)
        ask = partial(self._batch, query)
        return await in_batches(texts, self._endpoint.batch, slots, ask)

    async def _batch(self, query: str, texts: Sequence[str]) -> list[int]:
        sent = len(query.encode()) + sum(len(text.encode()) for text in texts)
        most_bytes = _BYTES_PER_BYTE * sent + _BYTES_PER_RESULT * (len(texts) + 1)
        body = await self._asked.post(self._content(query, texts), most_bytes)
        return await asyncio.to_thread(self._scores, body, len(texts))

    def _content(self, query: str, texts: Sequence[str]) -> dict[str, object]:
        if self._endpoint.shape == "tei":
            return {"query": query, "texts": texts, "truncate": True}
        return {
            "model": self._endpoint.model,
            "query": query,
            "documents": texts,
            "top_n": len(texts),
        }

    def _scores(self, body: bytes, wanted: int) -> list[int]:
        try:
            results = self._results(body)
            if sorted(index for index, _ in results) != list(range(wanted)):
                raise self._asked.unusable(
                    f"it has {len(results)} scores for {wanted} texts, or not one for each"
                )
            return [millionths(score) for _, score in sorted(results)]
        except ValidationError:
            # It would tell what was answered.
            raise self._asked.unusable(f"it is not in the format {self._endpoint.shape}") from None
        except ValueError as error:
            raise self._asked.unusable(str(error)) from None

    def _results(self, body: bytes) -> list[tuple[int, float]]:
        if self._endpoint.shape == "tei":
            bare = _TEI_ANSWER.validate_json(body, strict=True)
            return [(one.index, one.score) for one in bare]
        answer = _CohereAnswer.model_validate_json(body, strict=True)
        return [(one.index, one.score) for one in answer.results]
