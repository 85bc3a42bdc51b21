"""Words and meaning together, with a real embedding model behind the whole service."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from asgi_lifespan import LifespanManager

from app.config import EmbeddingSettings, Settings
from app.errors import ConfigurationError
from app.main import create_app
from tests.api.service import Api, Json, question, source, source_ids
from tests.embedding_server import DIMENSIONS, MODEL
from tests.recipes import calling
from tests.tokens import TokenFactory

CAT = source("cat.md", "The cat sleeps on the warm windowsill all afternoon.")
TAX = source("tax.md", "Quarterly tax forms are due at the end of April.")
SECRET = source("secret.md", "Kittens nap in the vault.", classification="restricted")
LOW: Json = {"max_classification": "internal"}
GONE = "http://127.0.0.1:9/v1"


def _embedding(url: str) -> EmbeddingSettings:
    return EmbeddingSettings(
        url=url, model=MODEL, dimensions=DIMENSIONS, input_type=True, batch=4, deadline_ms=60_000
    )


@asynccontextmanager
async def _serving(
    settings: Settings, *embeddings: EmbeddingSettings
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings.model_copy(update={"embeddings": embeddings}))
    running = LifespanManager(app, startup_timeout=60, shutdown_timeout=60)
    async with running, calling(app) as client:
        yield client


@pytest.fixture(scope="module")
async def meaning(
    service_settings: Settings,
    embedding_url: str,
    token: TokenFactory,
    make_tenant: Callable[[], str],
) -> AsyncIterator[Callable[[], Api]]:
    embeddings = (_embedding(embedding_url),)
    app = create_app(service_settings.model_copy(update={"embeddings": embeddings}))
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        calling(app) as client,
    ):
        yield lambda: Api(client, token, make_tenant, make_tenant())


async def _embedded(api: Api, chunks: int) -> None:
    """Until all chunks of the tenant have vectors."""
    for _ in range(600):
        profile = (await api.read("/index"))["embeddingProfile"]
        assert (profile["model"], profile["dimensions"]) == (MODEL, DIMENSIONS)
        assert profile["chunks"] == chunks
        if profile["vectors"] == chunks:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the vectors did not come")


async def test_what_has_no_word_in_common_is_found_by_meaning_and_replayed(
    meaning: Callable[[], Api], api: Api
) -> None:
    there = meaning()
    await there.index(CAT, TAX, SECRET)
    await _embedded(there, 3)
    asked = question("kitten napping")
    found = await there.assemble(asked, **LOW)
    assert source_ids(found) == ["cat.md", "tax.md"]
    assert found["items"][0]["indexVersion"].startswith("vector:")
    report = (await there.read(f"/snapshots/{found['hash']}/report"))["report"]
    lexical, vector = report["retrievers"]
    assert (lexical["candidates"], vector["candidates"]) == (0, 2)
    assert vector["predicateHash"] == found["scope"]["policy"]["predicateHash"]
    checked = await there.read(f"/snapshots/{found['hash']}/verify")
    assert checked["ok"], checked
    await there.index(source("new.md", "A kitten naps."))
    path = f"/snapshots/{found['hash']}/replay"
    replayed = await there.client.post(path, headers=there.headers())
    assert replayed.json() == {"match": True, "hash": found["hash"]}
    without = (await api.client.post(path, headers=there.headers())).json()
    assert without["firstDifference"] == {
        "stage": "retrieval:vector",
        "reason": "retriever not configured: vector",
    }


async def test_hidden_sources_have_no_part_in_meaning_either(meaning: Callable[[], Api]) -> None:
    answers = []
    for hidden in ((), (SECRET,)):
        there = meaning()
        await there.index(CAT, TAX, *hidden)
        await _embedded(there, 2 + len(hidden))
        found = await there.assemble(question("kitten napping"), **LOW)
        answers.append((found["items"], found["exclusions"]))
    assert answers[0] == answers[1]


async def test_an_endpoint_that_is_away_degrades_the_answer_and_says_so(
    api: Api, service_settings: Settings, token: TokenFactory, make_tenant: Callable[[], str]
) -> None:
    away = _embedding(GONE).model_copy(update={"deadline_ms": 300})
    app = create_app(service_settings.model_copy(update={"embeddings": (away,)}))
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        calling(app) as client,
    ):
        there = Api(client, token, make_tenant, make_tenant())
        await there.index(CAT)
        asked = question("cat")
        answer, repeat = [await there.post(asked) for _ in range(2)]
        assert (answer.status_code, repeat.status_code) == (201, 200)
        for one in (answer, repeat):
            assert one.headers["snapshot-degraded"] == "vector; reason=error"
        snapshot = answer.json()
        assert snapshot["budget"]["assembly"]["degraded"] == ["vector"]
        assert source_ids(snapshot) == ["cat.md"]
        # What failed is not asked again, and need not even be there any more.
        for client_ in (there.client, api.client):
            replayed = await client_.post(
                f"/snapshots/{snapshot['hash']}/replay", headers=there.headers()
            )
            assert replayed.json() == {"match": True, "hash": snapshot["hash"]}


async def test_two_profiles_that_are_the_same_are_refused_at_start(
    service_settings: Settings, embedding_url: str
) -> None:
    twice = (_embedding(embedding_url), _embedding(GONE))
    with pytest.raises(ConfigurationError, match="same profile"):
        async with _serving(service_settings, *twice):
            pass
