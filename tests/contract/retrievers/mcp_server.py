"""A real MCP server as a process of its own: one tool, before the same store as over HTTP.

Run as `python -m tests.contract.retrievers.mcp_server PORT FILE`; further tools fill the store.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer

from app.retrieval.retriever import SCOPE_PARTS
from tests.contract.retrievers.sqlite_store import SqliteStore
from tests.shared.service_process import free_port

Json = dict[str, Any]

_START_TIMEOUT_S = 60.0
_CAPABILITIES = {"contract": 1, "filters": list(SCOPE_PARTS)}


def server(store: SqliteStore) -> MCPServer:
    made = MCPServer("notes", log_level="ERROR")

    @made.tool(meta={"ctxsnap": _CAPABILITIES})
    def retrieve(
        query: str,
        k: int,
        predicate: Json,
        maxTrustTier: str,  # noqa: N803
        language: str | None = None,
        contract: int = 1,
        deadlineMs: int = 0,  # noqa: N803
    ) -> Json:
        """Candidates of the retriever contract."""
        asked = {"query": query, "k": k, "predicate": predicate, "maxTrustTier": maxTrustTier}
        return store.search(asked)

    @made.tool(meta={"ctxsnap": {**_CAPABILITIES, "filters": ["projects"]}})
    def unfiltered() -> Json:
        """A tool that says it filters by projects alone."""
        return {}

    @made.tool(meta={"ctxsnap": _CAPABILITIES})
    def broken(query: str) -> Json:
        """A tool that fails."""
        raise ValueError("a secret of the server")

    @made.tool(meta={"ctxsnap": _CAPABILITIES})
    def wordy(query: str) -> str:
        """A tool whose answer has another form."""
        return "cancel by post"

    @made.tool()
    def put(tenant: str, sources: list[Json]) -> Json:
        """Add or replace sources."""
        store.put(tenant, sources)
        return {}

    @made.tool()
    def remove(tenant: str, project: str, source_id: str) -> Json:
        """Remove a source."""
        store.remove(tenant, project, source_id)
        return {}

    return made


@asynccontextmanager
async def running_mcp_server(folder: Path) -> AsyncIterator[str]:
    """The URL of its endpoint."""
    port = free_port()
    arguments = [sys.executable, "-m", __name__, str(port), str(folder / "mcp.sqlite")]
    url = f"http://127.0.0.1:{port}/mcp"
    with _started(arguments) as process:
        try:
            await _until_it_answers(process, url)
            yield url
        finally:
            process.kill()


def _started(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL)


async def _until_it_answers(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    async with httpx2.AsyncClient(trust_env=False) as client:
        while True:
            assert process.poll() is None
            try:
                await client.get(url)
            except httpx2.TransportError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            else:
                return


async def call(url: str, tool: str, arguments: Json) -> None:
    async with (
        httpx2.AsyncClient(trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        result = await client.call_tool(tool, arguments)
        assert not result.is_error, result.content


if __name__ == "__main__":
    store = SqliteStore(Path(sys.argv[2]))
    server(store).run(
        "streamable-http", host="127.0.0.1", port=int(sys.argv[1]), json_response=True
    )
