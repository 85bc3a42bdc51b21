"""Embeddings from a real endpoint, and from endpoints that answer wrongly, late or not at all."""

import asyncio
import base64
import gzip
import json
import logging
import struct
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
import stamina
import structlog

from app.adapters.embeddings import EmbeddingEndpoint, OpenAiEmbedder
from app.adapters.postgres.database import Database
from app.errors import ConfigurationError, EmbeddingRefusedError, EmbeddingUnavailableError
from app.indexing.embedding import (
    MAX_DIMENSIONS,
    Embedder,
    EmbeddingProfile,
    HalfVector,
    as_text,
    exact_products,
)
from tests.embedding_server import DIMENSIONS, MODEL
from tests.shared.service_process import free_port

KEY = "sk-very-secret"
PROFILE = EmbeddingProfile(MODEL, DIMENSIONS, input_type=True)
TEXTS = (
    "A reservation is cancelled by its guest up to a day before.",
    "Invoices are sent on the first of each month.",
    "The kitchen closes at ten.",
    "Dogs are welcome in the garden.",
    "Payment by card needs a terminal.",
)
SMALL = EmbeddingProfile("small", 2)
"""What the endpoints below answer under: each text's vector has its length as an angle."""

Handler = Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]
MakeEmbedder = Callable[..., OpenAiEmbedder]


@pytest.fixture
async def make_embedder() -> AsyncIterator[MakeEmbedder]:
    """An embedder that asks a handler, or the endpoint at a URL."""
    clients: list[httpx.AsyncClient] = []

    def make(asked: Handler | str, profile: EmbeddingProfile, **changes: Any) -> OpenAiEmbedder:
        url = asked if isinstance(asked, str) else "http://endpoint/v1"
        transport = None if isinstance(asked, str) else httpx.MockTransport(asked)
        clients.append(httpx.AsyncClient(transport=transport, trust_env=False))
        endpoint = EmbeddingEndpoint(url, profile, KEY, batch=2, deadline_s=60)
        return OpenAiEmbedder(clients[-1], replace(endpoint, **changes))

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
def no_pauses() -> Iterator[None]:
    """The usual number of tries, one right after the other."""
    with stamina.set_testing(True, attempts=100, cap=True):
        yield


async def failure(embedder: Embedder, *texts: str) -> str:
    with pytest.raises(EmbeddingUnavailableError) as caught:
        await embedder.embed_passages(texts or ("one",))
    return caught.value.detail


# A real endpoint.


@pytest.fixture
def real(make_embedder: MakeEmbedder, embedding_url: str) -> OpenAiEmbedder:
    return make_embedder(embedding_url, PROFILE)


async def test_batches_keep_the_order_of_the_texts(
    real: OpenAiEmbedder, make_embedder: MakeEmbedder, embedding_url: str
) -> None:
    together = make_embedder(embedding_url, PROFILE, batch=len(TEXTS))
    vectors = await real.embed_passages(TEXTS)
    assert vectors == await together.embed_passages(TEXTS)
    assert {len(vector) for vector in vectors} == {2 * DIMENSIONS}
    assert len(set(vectors)) == len(TEXTS)
    assert await real.embed_passages(()) == ()


async def test_a_question_is_nearest_to_its_answer(real: OpenAiEmbedder) -> None:
    passages = b"".join(await real.embed_passages(TEXTS))
    for at, question in enumerate(
        (
            "How do I call off a booking?",
            "Wann kommt die Rechnung?",
            "When does the kitchen shut?",
            "¿Puedo llevar mi perro?",
        )
    ):
        products = exact_products(await real.embed_query(question), passages)
        assert products.index(max(products)) == at


async def test_prefixes_are_put_before_the_texts(
    make_embedder: MakeEmbedder, embedding_url: str
) -> None:
    plain = make_embedder(embedding_url, replace(PROFILE, input_type=False))
    prefixed = make_embedder(
        embedding_url,
        EmbeddingProfile(MODEL, DIMENSIONS, query_prefix="ask: ", passage_prefix="tell: "),
    )
    asked, told, bare = await plain.embed_passages(["ask: dogs", "tell: dogs", "dogs"])
    assert await prefixed.embed_query("dogs") == asked
    assert await prefixed.embed_passages(["dogs"]) == (told,)
    assert len({asked, told, bare}) == 3


async def test_the_kind_of_input_is_said_where_the_profile_wants_it(
    real: OpenAiEmbedder, make_embedder: MakeEmbedder, embedding_url: str
) -> None:
    silent = make_embedder(embedding_url, replace(PROFILE, input_type=False))
    query = await real.embed_query("dogs")
    assert await real.embed_passages(["dogs"]) != (query,)
    assert await silent.embed_passages(["dogs"]) == (query,)


async def test_the_same_numbers_come_as_base64(
    real: OpenAiEmbedder, make_embedder: MakeEmbedder, embedding_url: str
) -> None:
    async def insisting(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content) | {"encoding_format": "base64"}
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.post(f"{embedding_url}/embeddings", json=asked)

    vectors = await make_embedder(insisting, PROFILE).embed_passages(TEXTS[:2])
    assert vectors == await real.embed_passages(TEXTS[:2])


async def test_an_endpoint_that_is_too_slow_is_given_up(
    make_embedder: MakeEmbedder, embedding_url: str
) -> None:
    hurried = make_embedder(embedding_url, PROFILE, deadline_s=0.001)
    assert "in time" in await failure(hurried, *TEXTS)
    with pytest.raises(EmbeddingUnavailableError, match="in time"):
        await hurried.embed_query("dogs")


async def test_a_port_that_nobody_listens_on_is_unavailable(
    make_embedder: MakeEmbedder, no_pauses: None
) -> None:
    nobody = make_embedder(f"http://127.0.0.1:{free_port()}/v1", PROFILE)
    assert "could not be reached" in await failure(nobody)


# Endpoints in the test's hand.


def numbers(text: str) -> list[float]:
    return [1.0, len(text) / 16]


def answer(entries: Sequence[object], **members: object) -> httpx.Response:
    # Python's own JSON, which spells NaN as well.
    return httpx.Response(200, content=json.dumps({"data": entries, **members}).encode())


def entries(request: httpx.Request) -> list[dict[str, object]]:
    texts = json.loads(request.content)["input"]
    return [{"index": at, "embedding": numbers(text)} for at, text in enumerate(texts)]


class Endpoint:
    """Answers in turn with what it is given, the last of it for ever; None answers rightly."""

    def __init__(self, *answers: httpx.Response | Exception | None) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, Exception):
            raise given
        return answer(entries(request)) if given is None else given


async def test_a_request_is_what_the_api_asks_for(make_embedder: MakeEmbedder) -> None:
    endpoint = Endpoint(None)
    await make_embedder(endpoint, SMALL, url="http://endpoint/v1/").embed_passages(["é\n", "b"])
    await make_embedder(endpoint, SMALL, key=None).embed_query("q")
    first, second = endpoint.requests
    assert (first.method, str(first.url)) == ("POST", "http://endpoint/v1/embeddings")
    assert json.loads(first.content) == {
        "model": "small",
        "input": ["é\n", "b"],
        "encoding_format": "float",
    }
    assert first.headers["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in second.headers


async def test_vectors_are_put_in_order_by_their_index(make_embedder: MakeEmbedder) -> None:
    async def backwards(request: httpx.Request) -> httpx.Response:
        return answer(entries(request)[::-1], object="list", usage={"prompt_tokens": 2})

    texts = ("a", "bbbb", "cc", "ddd", "e" * 9)
    expected = await make_embedder(Endpoint(None), SMALL, batch=5).embed_passages(texts)
    assert await make_embedder(backwards, SMALL).embed_passages(texts) == expected


def entry(index: object = 0, embedding: object = (1.0, 2.0)) -> dict[str, object]:
    return {"index": index, "embedding": embedding}


def packed(*values: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([], "0 vectors for 1 texts"),
        ([entry(), entry(1)], "2 vectors for 1 texts"),
        ([entry(1)], "not one for each"),
        ([entry(-1)], "not one for each"),
        ([entry(0, [1.0])], "1 dimensions, and the profile 2"),
        ([entry(0, [1.0, 2.0, 3.0])], "3 dimensions"),
        ([entry(0, [])], "0 dimensions"),
        ([entry(0, [1.0, float("nan")])], "not finite"),
        ([entry(0, [1.0, float("-inf")])], "not finite"),
        ([entry(0, [0.0, 0])], "zero"),
        ([entry(0, packed(1.0, float("nan")))], "not finite"),
        ([entry(0, packed(1.0))], "1 dimensions"),
        ([entry(0, "AAAA")], "multiple"),
        ([entry(0, "é")], "ASCII"),
        ([entry(0, "*")], "not usable"),
        ([entry(0, [1.0, None])], "format"),
        ([entry(0, [1.0, "2"])], "format"),
        ([entry(0, [1.0, True])], "format"),
        ([entry(0, [[1.0], [2.0]])], "format"),
        ([entry(0, {"0": 1.0, "1": 2.0})], "format"),
        ([entry("0")], "format"),
        ([entry(None)], "format"),
        ([entry(True)], "format"),
        ([{"embedding": [1.0, 2.0]}], "format"),
        ([[1.0, 2.0]], "format"),
        ({"0": entry()}, "format"),
    ],
)
async def test_an_answer_that_is_not_one_right_vector_for_each_text_is_refused(
    make_embedder: MakeEmbedder, found: list[object], reason: str
) -> None:
    endpoint = Endpoint(answer(found))
    assert reason in await failure(make_embedder(endpoint, SMALL))
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"<html>maintenance</html>",
        b'{"error": "later"}',
        b"\xff\xfe",
        b'{"data": [{"index": 0, "embedding": [1e400, 1]}]}',
        b'{"data": [{"index": 0, "embedding": [' + b"9" * 5000 + b", 1]}]}",
        b'{"data": ' + b"[" * 9000,
    ],
)
async def test_an_answer_of_another_format_is_refused(
    make_embedder: MakeEmbedder, body: bytes
) -> None:
    endpoint = Endpoint(httpx.Response(200, content=body))
    assert "not usable" in await failure(make_embedder(endpoint, SMALL))


async def test_a_long_answer_is_not_read_to_its_end(make_embedder: MakeEmbedder) -> None:
    read = 0

    async def ten_megabytes() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(1000):
            read += 10_000
            yield b" " * 10_000

    endpoint = Endpoint(httpx.Response(200, content=ten_megabytes()))
    assert "longer than" in await failure(make_embedder(endpoint, SMALL))
    assert read < 100_000


async def test_a_compressed_answer_is_not_unpacked(make_embedder: MakeEmbedder) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    endpoint = Endpoint(httpx.Response(200, content=bomb, headers={"Content-Encoding": "gzip"}))
    assert "compressed" in await failure(make_embedder(endpoint, SMALL))
    assert endpoint.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    "passing",
    [
        httpx.Response(500),
        httpx.Response(503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        httpx.Response(429),
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed"),
    ],
)
async def test_what_may_pass_is_tried_again(
    make_embedder: MakeEmbedder, no_pauses: None, passing: httpx.Response | Exception
) -> None:
    expected = await make_embedder(Endpoint(None), SMALL).embed_passages(["a"])
    endpoint = Endpoint(passing, passing, None)
    assert await make_embedder(endpoint, SMALL).embed_passages(["a"]) == expected
    assert len(endpoint.requests) == 3
    lasting = Endpoint(passing)
    detail = await failure(make_embedder(lasting, SMALL))
    assert "answered" in detail or "could not be reached" in detail
    assert len(lasting.requests) == 4


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 413, 501])
async def test_what_will_not_pass_is_not_tried_again(
    make_embedder: MakeEmbedder, status: int
) -> None:
    headers = {"Location": "http://elsewhere/"}
    endpoint = Endpoint(httpx.Response(status, headers=headers, text=f"Wrong key {KEY}"))
    detail = await failure(make_embedder(endpoint, SMALL))
    assert detail == f"The embedding endpoint answered {status}."
    assert len(endpoint.requests) == 1


async def test_the_pause_is_the_one_that_the_endpoint_asks_for(
    make_embedder: MakeEmbedder,
) -> None:
    pauses: list[float] = []
    endpoint = Endpoint(httpx.Response(429, headers={"Retry-After": "1"}), None)
    hooks = stamina.instrumentation.get_on_retry_hooks()
    stamina.instrumentation.set_on_retry_hooks([lambda details: pauses.append(details.wait_for)])
    try:
        await make_embedder(endpoint, SMALL).embed_query("a")
    finally:
        stamina.instrumentation.set_on_retry_hooks(hooks)
    assert pauses == [1.0]


async def test_a_refusal_is_told_from_an_endpoint_that_is_away(
    make_embedder: MakeEmbedder, no_pauses: None
) -> None:
    for given, refused in (
        (httpx.Response(400), True),
        (httpx.Response(413), True),
        (answer([]), True),
        (httpx.Response(503), False),
        (httpx.ConnectError("refused"), False),
    ):
        with pytest.raises(EmbeddingUnavailableError) as caught:
            await make_embedder(Endpoint(given), SMALL).embed_passages(["a"])
        assert isinstance(caught.value, EmbeddingRefusedError) is refused, given


async def test_a_pause_beyond_the_deadline_is_left_to_the_caller(
    make_embedder: MakeEmbedder,
) -> None:
    endpoint = Endpoint(httpx.Response(429, headers={"Retry-After": "3600"}))
    with pytest.raises(EmbeddingUnavailableError, match="answered 429") as caught:
        await make_embedder(endpoint, SMALL).embed_query("a")
    assert caught.value.retry_after_s == 3600
    assert len(endpoint.requests) == 1


async def test_an_endpoint_that_hangs_is_given_up(make_embedder: MakeEmbedder) -> None:
    async def hangs(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    assert "in time" in await failure(make_embedder(hangs, SMALL, deadline_s=0.05), "a", "b", "c")


async def test_an_answer_that_drips_for_ever_is_given_up(make_embedder: MakeEmbedder) -> None:
    async def drops() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.01)
            yield b" "

    async def drips(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=drops())

    assert "in time" in await failure(make_embedder(drips, SMALL, deadline_s=0.1))


async def test_passages_take_two_requests_at_a_time_and_queries_do_not_wait(
    make_embedder: MakeEmbedder,
) -> None:
    waiting: list[str] = []
    go_on = asyncio.Event()

    async def slow(request: httpx.Request) -> httpx.Response:
        (text, *_) = json.loads(request.content)["input"]
        if text != "query":
            waiting.append(text)
            await go_on.wait()
        return answer(entries(request))

    embedder = make_embedder(slow, SMALL, batch=1)
    passages = asyncio.create_task(embedder.embed_passages(["a", "b", "c", "d"]))
    assert len(await embedder.embed_query("query")) == 4
    assert waiting == ["a", "b"]
    go_on.set()
    assert len(await passages) == 4


async def test_one_batch_that_fails_ends_the_others(make_embedder: MakeEmbedder) -> None:
    before = asyncio.all_tasks()
    begun: list[str] = []
    ended: list[str] = []

    async def fails_at_b(request: httpx.Request) -> httpx.Response:
        (text,) = json.loads(request.content)["input"]
        if text == "b":
            return httpx.Response(400)
        begun.append(text)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(text)
        raise AssertionError

    detail = await failure(make_embedder(fails_at_b, SMALL, batch=1), *"abcdef")
    assert detail == "The embedding endpoint answered 400."
    assert "f" not in begun
    assert sorted(ended) == sorted(begun)
    assert asyncio.all_tasks() == before


async def test_the_key_and_the_texts_are_in_no_log_and_no_error(
    make_embedder: MakeEmbedder,
    embedding_url: str,
    no_pauses: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "a very private text"
    echo = {"index": KEY, "embedding": f"{KEY} {text}"}
    asked: list[Handler | str] = [
        Endpoint(httpx.Response(401, text=f"Incorrect API key provided: {KEY}")),
        Endpoint(httpx.Response(503, text=KEY, headers={"Retry-After": KEY})),
        Endpoint(answer([echo])),
        Endpoint(httpx.Response(200, text=f"{KEY} {text}")),
        Endpoint(httpx.ConnectError("refused")),
        f"http://127.0.0.1:{free_port()}/v1",
        embedding_url.removesuffix("/v1"),
    ]
    told = []
    with caplog.at_level(logging.DEBUG), structlog.testing.capture_logs() as events:
        for one in asked:
            try:
                await make_embedder(one, SMALL).embed_query(text)
            except EmbeddingUnavailableError as error:
                told.append("".join(traceback.format_exception(error)) + repr(error))
    assert len(told) == len(asked)
    assert events
    assert "httpcore" in {record.name.partition(".")[0] for record in caplog.records}
    everything = "\n".join([*told, caplog.text, repr(events)])
    assert KEY not in everything
    assert text not in everything


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel", ""])
def test_a_key_that_no_header_can_hold_is_refused_without_telling_it(
    make_embedder: MakeEmbedder, key: str
) -> None:
    with pytest.raises(ConfigurationError, match="key") as caught:
        make_embedder(Endpoint(None), SMALL, key=key)
    assert not key or key not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "endpoint/v1",
        "ftp://endpoint/v1",
        "http:///v1",
        "http://endpoint:99999999/v1",
        f"http://user:{KEY}@endpoint/v1",
        "http://endpoint/v1?version=1",
        "http://endpoint/v1#embeddings",
    ],
)
def test_a_url_that_cannot_be_a_base_is_refused(make_embedder: MakeEmbedder, url: str) -> None:
    with pytest.raises(ConfigurationError, match="URL") as caught:
        make_embedder(Endpoint(None), SMALL, url=url)
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_pgvector_reads_every_half_as_it_is_written(owner: Database) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = every[np.isfinite(every)]
    statement = sa.text("SELECT halfvec_send(CAST(:text AS halfvec))")
    async with owner.engine.connect() as connection:
        for start in range(0, len(halves), MAX_DIMENSIONS):
            vector = HalfVector(halves[start : start + MAX_DIMENSIONS].astype(">f2").tobytes())
            read = await connection.scalar(statement, {"text": as_text(vector)})
            # Two bytes for the dimensions and two for nothing come first.
            assert read[4:] == vector
