"""Re-ranking endpoints that answer rightly in either shape, wrongly, late or not at all."""

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import stamina
import structlog

from app.adapters.reranking import HttpReranker, RerankingEndpoint
from app.errors import ConfigurationError, RerankingUnavailableError
from app.retrieval.reranking import millionths
from tests.reranking_server import Fault, RerankingServer, overlap, running_reranking_server
from tests.shared.service_process import free_port

KEY = "sk-very-secret"
QUERY = "cancel my order"
TEXTS = ("ship it", "cancel my order", "cancel é order now", "order", "nothing\nat all")
SHAPES = ("cohere", "tei")

Handler = Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]
MakeReranker = Callable[..., HttpReranker]


@pytest.fixture
async def make_reranker() -> AsyncIterator[MakeReranker]:
    """A re-ranker that asks a handler, or the endpoint at a URL."""
    clients: list[httpx.AsyncClient] = []

    def make(asked: Handler | str, **changes: Any) -> HttpReranker:
        url = asked if isinstance(asked, str) else "http://endpoint/v1"
        transport = None if isinstance(asked, str) else httpx.MockTransport(asked)
        clients.append(httpx.AsyncClient(transport=transport, trust_env=False))
        endpoint = RerankingEndpoint(url, "words", "cohere", KEY, batch=2, deadline_s=60)
        return HttpReranker(clients[-1], replace(endpoint, **changes))

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
def server() -> Iterator[RerankingServer]:
    with running_reranking_server() as running:
        yield running


@pytest.fixture
def no_pauses() -> Iterator[None]:
    """The usual number of tries, one right after the other."""
    with stamina.set_testing(True, attempts=100, cap=True):
        yield


async def failure(reranker: HttpReranker, *texts: str) -> str:
    with pytest.raises(RerankingUnavailableError) as caught:
        await reranker.relevance(QUERY, texts or ("one",))
    return caught.value.detail


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 2, 100])
async def test_scores_stand_in_the_order_of_the_texts(
    make_reranker: MakeReranker, server: RerankingServer, shape: str, batch: int
) -> None:
    """The server answers the best first."""
    reranker = make_reranker(server.url, shape=shape, batch=batch)
    expected = tuple(millionths(overlap(QUERY, text)) for text in TEXTS)
    assert expected[1] == 1_000_000
    assert await reranker.relevance(QUERY, TEXTS) == expected
    assert sorted(server.texts) == sorted(TEXTS)
    assert len(server.requests) == -(-len(TEXTS) // batch)
    assert await reranker.relevance(QUERY, ()) == ()


async def test_a_request_is_what_each_api_asks_for(
    make_reranker: MakeReranker, server: RerankingServer
) -> None:
    for shape in SHAPES:
        await make_reranker(server.url + "/", shape=shape).relevance(QUERY, ["é\n", "b"])
    assert server.requests == [
        {"model": "words", "query": QUERY, "documents": ["é\n", "b"], "top_n": 2},
        {"query": QUERY, "texts": ["é\n", "b"], "truncate": True},
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nan", "no number"),
        ("twice", "not one for each"),
        ("missing", "4 scores for 5 texts"),
        ("10 MB", "longer than"),
        ("500", "answered 500"),
    ],
)
async def test_a_server_that_answers_wrongly_is_refused(
    make_reranker: MakeReranker,
    server: RerankingServer,
    no_pauses: None,
    shape: str,
    fault: Fault,
    reason: str,
) -> None:
    server.fault = fault
    reranker = make_reranker(server.url, shape=shape, batch=5)
    assert reason in await failure(reranker, *TEXTS)
    assert len(server.requests) == (4 if fault == "500" else 1)


async def test_a_server_that_hangs_is_given_up_and_leaves_no_task(
    make_reranker: MakeReranker, server: RerankingServer
) -> None:
    server.fault = "hang"
    before = asyncio.all_tasks()
    reranker = make_reranker(server.url, deadline_s=0.2)
    assert "in time" in await failure(reranker, *TEXTS)
    assert asyncio.all_tasks() == before


# Endpoints in the test's hand.


def result(index: object = 0, score: object = 0.5, name: str = "relevance_score") -> object:
    return {"index": index, name: score}


def answering(body: object) -> Handler:
    async def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps(body).encode())

    return handler


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([], "0 scores for 1 texts"),
        ([result(), result(1)], "2 scores for 1 texts"),
        ([result(), result()], "2 scores for 1 texts"),
        ([result(1)], "not one for each"),
        ([result(-1)], "not one for each"),
        ([result(0, float("inf"))], "no number"),
        ([result(0, 1e300)], "too large"),
        ([result(0, "0.5")], "format"),
        ([result(0, True)], "format"),
        ([result(0, None)], "format"),
        ([result("0")], "format"),
        ([result(True)], "format"),
        ([result(0.0)], "format"),
        ([{"index": 0}], "format"),
        ([result(name="score")], "format"),
        ({"0": result()}, "format"),
        (None, "format"),
    ],
)
async def test_an_answer_that_is_not_one_score_for_each_text_is_refused(
    make_reranker: MakeReranker, found: object, reason: str
) -> None:
    assert reason in await failure(make_reranker(answering({"results": found})))
    bare = answering(json.loads(json.dumps(found).replace("relevance_score", "score")))
    if found != [result(name="score")]:
        assert reason in await failure(make_reranker(bare, shape="tei"))


@pytest.mark.parametrize("body", [b"", b"null", b"<html>", b"\xff\xfe", b"[" * 9000])
async def test_an_answer_of_another_format_is_refused(
    make_reranker: MakeReranker, body: bytes
) -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body)

    for shape in SHAPES:
        assert "not usable" in await failure(make_reranker(handler, shape=shape))


async def test_further_members_and_returned_texts_are_taken(make_reranker: MakeReranker) -> None:
    text = "é" * 5000
    entry = {"index": 0, "relevance_score": 1, "document": {"text": text}}
    handler = answering({"id": "x", "results": [entry], "usage": {"total_tokens": 9}})
    assert await make_reranker(handler).relevance(QUERY, [text]) == (1_000_000,)


async def test_the_key_and_the_texts_are_in_no_log_and_no_error(
    make_reranker: MakeReranker,
    server: RerankingServer,
    no_pauses: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "a very private text"
    sent: list[httpx.Request] = []

    async def telling(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(401, text=f"Incorrect API key provided: {KEY} for {text}")

    server.fault = "500"
    asked: list[Handler | str] = [
        telling,
        answering({"results": [{"index": KEY, "relevance_score": text}]}),
        server.url,
        server.url.removesuffix("/v1"),
        f"http://127.0.0.1:{free_port()}/v1",
    ]
    told = []
    with caplog.at_level(logging.DEBUG), structlog.testing.capture_logs() as events:
        for one in asked:
            with pytest.raises(RerankingUnavailableError) as caught:
                await make_reranker(one).relevance(QUERY, [text])
            told.append("".join(traceback.format_exception(caught.value)) + repr(caught.value))
    assert sent[0].headers["Authorization"] == f"Bearer {KEY}"
    everything = "\n".join([*told, caplog.text, repr(events)])
    for secret in (KEY, text, QUERY):
        assert secret not in everything


@pytest.mark.parametrize(
    "changes",
    [{"key": "two words"}, {"url": "ftp://endpoint"}, {"url": f"http://u:{KEY}@endpoint"}],
)
def test_what_no_request_can_be_made_with_is_refused_without_telling_it(
    make_reranker: MakeReranker, changes: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match="re-ranking endpoint's") as caught:
        make_reranker(answering(None), **changes)
    assert KEY not in caught.value.detail
