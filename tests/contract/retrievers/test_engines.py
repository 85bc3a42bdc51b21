"""An engine beside the index: asked under the scope, believed in nothing, kept up and emptied."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.vector import PostgresVectorRetriever
from app.adapters.postgres.vector_engine import (
    PostgresEngineRetriever,
    PostgresVectorExporter,
    collection_of,
)
from app.adapters.postgres.vector_states import profile_key
from app.cli.main import application
from app.config import EmbeddingSettings, Settings
from app.errors import ConfigurationError, RetrieverUnavailableError
from app.external_retrievers import open_engine
from app.indexing.embedding import HalfVector
from app.main import create_app
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import ScopedQuery
from app.retrieval.vector_engine import VectorEngine, VectorExport
from tests.contract.retrievers.backends import engine_settings
from tests.contract.retrievers.engine_servers import RUNNING
from tests.contract.retrievers.world import Case, document
from tests.property.service import Service
from tests.word_vectors import DIMENSIONS, WordVectors, embed_all

NAME = "approximate-kb"
LOW = Case("low", {"maxClassification": "internal"})


@pytest.fixture(scope="module", params=["chroma", pytest.param("milvus", marks=pytest.mark.long)])
def engine_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine_url(engine_type: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RUNNING[engine_type](tmp_path_factory.mktemp(engine_type)) as url:
        yield url


@pytest.fixture
async def engine(engine_type: str, engine_url: str) -> AsyncIterator[VectorEngine]:
    async with open_engine(engine_settings(engine_type, engine_url)) as opened:
        yield opened


@dataclass
class Overheard:
    """The real engine; what it was asked is noted, and what it finds may be another's word."""

    real: VectorEngine
    instead: tuple[int, ...] | None = None
    labels: list[tuple[int, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def nearest(
        self, collection: str, vector: HalfVector, label_keys: Sequence[int], places: int
    ) -> tuple[int, ...]:
        self.labels.append(tuple(label_keys))
        if self.instead is not None:
            return self.instead
        return await self.real.nearest(collection, vector, label_keys, places)


@dataclass
class Desk:
    """One tenant's index, and an engine that is brought up to it when the test says so."""

    service: Service
    database: Database
    engine: Overheard
    tenant: str
    words: WordVectors = field(default_factory=WordVectors)

    async def put(self, *sources: Any) -> None:
        await self.service.index(self.tenant, [*sources])
        await embed_all(self.database, self.tenant, self.words)

    async def export(self) -> VectorExport:
        exporter = PostgresVectorExporter(self.database, self.engine)
        return await exporter.export(self.tenant, self.words.profile)

    async def query(self, case: Case = LOW, recorded: Any = None) -> ScopedQuery:
        scope = case.access(self.tenant)
        view = await PostgresIndexViews(self.database).open(scope)
        return ScopedQuery(scope, view, "cancel", "en", 5, recorded)

    async def ask(self, query: ScopedQuery | None = None, fewest: int = 0) -> Retrieval:
        leg = PostgresEngineRetriever(
            self.database, [self.words], self.engine, fewest_vectors=fewest
        )
        return await leg.retrieve(query or await self.query())

    async def exact(self) -> Retrieval:
        leg = PostgresVectorRetriever(self.database, [self.words])
        return await leg.retrieve(await self.query())

    @property
    def collection(self) -> str:
        return collection_of(self.tenant, profile_key(self.words.profile.id))


@pytest.fixture
async def desk(service: Service, database: Database, engine: VectorEngine, tenant: str) -> Desk:
    found = Desk(service, database, Overheard(engine), tenant)
    await found.put(
        *(document(f"s{at}", f"cancel {'ship order pay '[:at]}") for at in range(12)),
        document("secret", "cancel", classification="restricted"),
    )
    return found


async def test_it_is_asked_for_the_labels_in_scope_and_ranked_by_exact_products(
    desk: Desk,
) -> None:
    assert await desk.export() == VectorExport(13, 0, 13)
    query = await desk.query()
    found = await desk.ask(query)
    assert found.facts["search"] == "approximate"
    assert desk.engine.labels == [query.view.label_keys]
    exact = await desk.exact()
    assert found.candidates == exact.candidates
    assert found.visible_version == exact.visible_version
    whole = await desk.query(Case("everything"))
    assert len(whole.view.label_keys) == len(query.view.label_keys) + 1


async def test_a_replay_asks_no_engine(desk: Desk) -> None:
    await desk.export()
    first = await desk.ask()
    await desk.put(document("s99", "cancel"))
    asked = len(desk.engine.labels)
    desk.engine.instead = ()
    query = await desk.query(recorded=json.loads(json.dumps(first.inputs)))
    recalled = await desk.ask(query)
    assert len(desk.engine.labels) == asked
    assert recalled.candidates == first.candidates


async def test_what_it_says_adds_nothing_to_the_scope(desk: Desk) -> None:
    """Keys of hidden chunks, of nothing, and the same ones twice."""
    await desk.export()
    every = tuple(await desk.engine.keys(desk.collection))
    exact = await desk.exact()
    for instead in (every, every * 2, (1 << 40, 7, *every[:3]), ()):
        desk.engine.instead = instead
        assert (await desk.ask()).candidates == exact.candidates


async def test_patterns_and_small_scopes_are_searched_exactly(desk: Desk) -> None:
    await desk.export()
    patterns = await desk.query(Case("some", {"sources": {"allow": ["s1*"]}}))
    found = await desk.ask(patterns)
    assert {one.chunk.source_id for one in found.candidates} == {"s1", "s10", "s11"}
    assert (await desk.ask(fewest=13)).facts["search"] == "exact"
    assert desk.engine.labels == []


async def test_a_copy_that_is_behind_is_not_asked_until_it_is_brought_up(desk: Desk) -> None:
    assert (await desk.ask()).facts["search"] == "exact"
    await desk.export()
    assert await desk.export() == VectorExport(0, 0, 13)
    assert (await desk.ask()).facts["search"] == "approximate"
    await desk.put(document("new", "cancel"), document("s1", "pay", sourceRevision="2"))
    asked = len(desk.engine.labels)
    behind = await desk.ask()
    assert behind.facts["search"] == "exact"
    assert len(desk.engine.labels) == asked
    assert "new" in {one.chunk.source_id for one in behind.candidates}
    assert await desk.export() == VectorExport(2, 1, 14)
    caught_up = await desk.ask()
    assert caught_up.facts["search"] == "approximate"
    assert caught_up.candidates == behind.candidates


async def test_an_erased_source_is_taken_out(desk: Desk) -> None:
    await desk.export()
    before = await desk.engine.keys(desk.collection)
    await desk.service.delete(desk.tenant, "alpha", "s3", erase=True)
    await desk.service.delete(desk.tenant, "alpha", "s4")
    assert await desk.export() == VectorExport(0, 2, 11)
    assert len(before - await desk.engine.keys(desk.collection)) == 2


async def test_tenants_have_collections_of_their_own(
    desk: Desk, make_tenant: Callable[[], str]
) -> None:
    await desk.export()
    other = Desk(desk.service, desk.database, desk.engine, make_tenant())
    await other.put(document("theirs", "cancel"))
    assert await other.export() == VectorExport(1, 0, 1)
    assert {one.chunk.source_id for one in (await other.ask()).candidates} == {"theirs"}
    assert len((await desk.ask()).candidates) == 5


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that says the same to everybody."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _http(status: str, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


ID = b'{"id": "12345678-1234-1234-1234-123456789012"'
WRONG = {
    "a failure": _http("500 Internal Server Error", b"{}"),
    "refused": _http("401 Unauthorized", b"{}"),
    "unknown": _http("404 Not Found", b"{}"),
    "a redirect": _http("307 Temporary Redirect", b"", "Location: http://127.0.0.1:9/"),
    "not HTTP": b"\x00\x01\x02\r\n\r\n",
    "cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "not JSON": _http("200 OK", b"<html>"),
    "no collection": _http("200 OK", b"{}"),
    "an id that leads elsewhere": _http("200 OK", b'{"id": "../../x"}'),
    "no keys": _http("200 OK", ID + b"}"),
    "keys that are none": _http("200 OK", ID + b', "ids": [["x"]]}'),
    "keys of several queries": _http("200 OK", ID + b', "ids": [["1"], ["2"]]}'),
    "without an end": _http("200 OK", ID + b', "ids": "' + b"a" * (1 << 24) + b'"}'),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
async def test_whatever_goes_wrong_is_the_retrievers_failure(answer: bytes) -> None:
    vector = WordVectors().vector("cancel")
    async with answering(answer) as url, open_engine(engine_settings("chroma", url)) as engine:
        with pytest.raises(RetrieverUnavailableError) as caught:
            await engine.nearest("c", vector, [1], 5)
    assert NAME in caught.value.detail


async def test_one_that_is_away_is_a_failure_and_no_exact_search(
    desk: Desk, engine_type: str
) -> None:
    await desk.export()
    async with open_engine(engine_settings(engine_type, "http://127.0.0.1:9")) as away:
        desk.engine.real = away
        with pytest.raises(RetrieverUnavailableError):
            await desk.ask()


async def test_the_command_copies_the_index(
    desk: Desk, engine_type: str, engine_url: str, migrated: EmbeddedDatabase, data_dir: Path
) -> None:
    profile = {"url": "http://127.0.0.1:9/v1", "model": "words", "dimensions": DIMENSIONS}
    one = {"name": NAME, "type": engine_type, "url": engine_url, "retries": 0}
    environment = {
        "CTXSNAP_DATABASE_URL": migrated.serving_url,
        "CTXSNAP_DATA_DIR": str(data_dir),
        "CTXSNAP_EMBEDDINGS": json.dumps([profile]),
        "CTXSNAP_RETRIEVERS": json.dumps([one]),
    }

    async def run(*arguments: str) -> Any:
        command = ["export", "--tenant", desk.tenant, *arguments]
        return await asyncio.to_thread(CliRunner().invoke, application, command, None, environment)

    done = await run("--to", NAME, "--json")
    assert json.loads(done.stdout) == {"added": 13, "removed": 0, "vectors": 13}, done.output
    again = await run("--to", NAME)
    assert again.stdout == "0 added, 0 removed; 13 vectors\n"
    unknown = await run("--to", "nowhere")
    assert isinstance(unknown.exception, ConfigurationError)


@pytest.mark.parametrize(
    ("members", "profiles", "told"),
    [
        ({"name": "kb"}, 1, "does not contain `approximate`"),
        ({}, 0, "needs a profile"),
        ({"url": None}, 1, "needs a `url`"),
        ({"options": {"space": "../x"}}, 1, "no tenant/database"),
        ({"options": {"fewest_vectors": "-1"}}, 1, "fewest_vectors"),
        ({"key": "a b"}, 1, "no header's token"),
        ({"url": "http://user:secret@127.0.0.1"}, 1, "without credentials"),
    ],
)
async def test_settings_that_cannot_work_are_refused(
    service_settings: Settings, members: Any, profiles: int, told: str
) -> None:
    one = engine_settings("chroma", **{"url": "http://127.0.0.1:9", **members})
    profile = EmbeddingSettings(url="http://127.0.0.1:9/v1", model="words", dimensions=DIMENSIONS)
    update = {"retrievers": (one,), "embeddings": (profile,) * profiles}
    app = create_app(service_settings.model_copy(update=update))
    with pytest.raises(ConfigurationError, match=told):
        async with app.router.lifespan_context(app):
            pass
