"""A tool of a real MCP server: refused, failing, and as a leg of the whole service."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from app import external_retrievers
from app.config import RetrieverSettings, Settings
from app.errors import ConfigurationError, RetrieverUnavailableError
from app.retrieval.candidate import InvalidAnswerError
from app.retrieval.policy import GuardedRetriever, RetrieverPolicy
from app.retrieval.retriever import ExternalBackend, ScopedQuery
from tests.api.service import Api, assert_problem, question, source_ids
from tests.contract.retrievers.backends import mcp_retriever
from tests.contract.retrievers.mcp_server import call, running_mcp_server
from tests.contract.retrievers.world import document
from tests.recipes import calling, serving, write_recipes
from tests.tokens import TokenFactory
from tests.unit.retrieval.chunks import SCOPE, VIEW

QUERY = ScopedQuery(SCOPE, VIEW, "cancel", "en", 5)
RECIPES = {"kb": "retrievers:\n  - name: kb\n    deadlineMs: 10000"}


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with running_mcp_server(tmp_path_factory.mktemp("mcp")) as running:
        yield running


def backend(url: str, tool: str = "retrieve", max_bytes: int = 1 << 20) -> ExternalBackend:
    found: Any = mcp_retriever(url, tool, max_bytes).retriever
    backend: ExternalBackend = found
    return backend


@pytest.mark.parametrize("tool", ["put", "unknown"])
async def test_a_tool_that_tells_of_no_filters_is_not_asked(url: str, tool: str) -> None:
    with pytest.raises(InvalidAnswerError):
        await backend(url, tool).filters()


async def test_a_tool_that_does_not_filter_by_all_is_refused(url: str) -> None:
    guarded = GuardedRetriever(backend(url, "unfiltered"), RetrieverPolicy(), lambda: 0.0)
    with pytest.raises(ConfigurationError, match="does not filter by principals, classes"):
        await guarded.check_scope()


async def test_a_tool_that_fails_tells_no_secret(url: str) -> None:
    with pytest.raises(RetrieverUnavailableError) as caught:
        await backend(url, "broken").retrieve(QUERY)
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize("tool", ["wordy", "unfiltered"])
async def test_an_answer_of_another_form_is_none(url: str, tool: str) -> None:
    with pytest.raises((InvalidAnswerError, RetrieverUnavailableError)):
        await backend(url, tool).retrieve(QUERY)


async def test_an_answer_is_bounded(url: str) -> None:
    with pytest.raises((InvalidAnswerError, RetrieverUnavailableError)):
        await backend(url, max_bytes=16).retrieve(QUERY)
    assert (await backend(url).retrieve(QUERY)).candidates == ()


_ENDLESS = 64 * 1024 * 1024


@asynccontextmanager
async def answering(header: bytes, body: bytes) -> AsyncIterator[tuple[str, asyncio.Queue[int]]]:
    """A server with one answer to everything, and how many bytes of it each call took."""
    taken = asyncio.Queue[int]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        writer.write(head % len(body) + header + b"\r\n")
        at, step = 0, 65_536
        with suppress(ConnectionError):
            while at < len(body):
                writer.write(body[at : at + step])
                await writer.drain()
                at += step
        taken.put_nowait(at)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp", taken


async def test_an_answer_that_is_one_document_is_not_read_beyond_the_bound() -> None:
    async with answering(b"", b" " * _ENDLESS) as (where, taken):
        with pytest.raises(RetrieverUnavailableError):
            await backend(where).filters()
        assert await taken.get() < _ENDLESS / 2


async def test_a_compressed_answer_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[bytes] = []
    monkeypatch.setattr(
        "httpx2._decoders.GZipDecoder.decode", lambda _, data: unpacked.append(data)
    )
    async with answering(b"Content-Encoding: gzip\r\n", gzip.compress(b"{}")) as (where, _):
        with pytest.raises(RetrieverUnavailableError):
            await backend(where).filters()
    assert unpacked == []


async def test_a_silent_server_does_not_keep_the_service_from_starting(
    service_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_retrievers, "_FIRST_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        one = RetrieverSettings(name="kb", type="mcp", url=where)
        settings = service_settings.model_copy(update={"retrievers": (one,)})
        async with (
            serving(settings, write_recipes(tmp_path, RECIPES)) as app,
            calling(app) as client,
        ):
            assert (await client.get("/readyz")).status_code == 200


@pytest.mark.parametrize("path", ["http://127.0.0.1:9/mcp", "/elsewhere"])
async def test_a_server_that_is_away_is_unavailable(url: str, path: str) -> None:
    gone = path if path.startswith("http") else url.replace("/mcp", path)
    for asked in (backend(gone).filters(), backend(gone).retrieve(QUERY)):
        with pytest.raises(RetrieverUnavailableError):
            await asked


async def test_a_key_that_is_no_token_of_a_header_is_refused(
    service_settings: Settings, tmp_path: Path
) -> None:
    one = RetrieverSettings(name="kb", type="mcp", url="http://127.0.0.1:9/mcp", key="a b")
    settings = service_settings.model_copy(update={"retrievers": (one,)})
    with pytest.raises(ConfigurationError, match="no token of a header"):
        async with serving(settings, write_recipes(tmp_path, RECIPES)):
            pass


async def test_its_candidates_are_items_that_can_be_read_verified_and_replayed(
    service_settings: Settings,
    tmp_path: Path,
    url: str,
    token: TokenFactory,
    make_tenant: Callable[[], str],
) -> None:
    one = RetrieverSettings(name="kb", type="mcp", url=url)
    settings = service_settings.model_copy(update={"retrievers": (one,)})
    folder = write_recipes(tmp_path, RECIPES)
    tenant = make_tenant()
    external, trusted = (
        document(f"{tier}.md", trustTier=tier) for tier in ("untrusted-external", "user")
    )
    await call(url, "put", {"tenant": tenant, "sources": [external, trusted]})
    async with serving(settings, folder) as app, calling(app) as client:
        api = Api(client, token, make_tenant, tenant)
        snapshot = await api.assemble(question("cancel", strategy="kb"))
        assert source_ids(snapshot) == ["untrusted-external.md"], "no more trust by itself"
        path = f"/snapshots/{snapshot['hash']}"
        [text] = (await api.read(f"{path}/contents"))["contents"]
        assert text["text"] == external["text"]
        verified = await api.read(f"{path}/verify")
        assert verified["ok"], verified
        replayed = await client.post(f"{path}/replay", headers=api.headers())
        assert replayed.json() == {"match": True, "hash": snapshot["hash"]}
        hidden = await api.get(path, projects=["beta"])
        assert_problem(hidden, 404, "not-found")
