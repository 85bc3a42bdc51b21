"""A proxy in front of PostgreSQL that counts round trips by what the server says.

Every answer of the server ends with ReadyForQuery (message type `Z`, PostgreSQL's protocol
3.0, "Message Formats"); how many went by is how often the client waited for the server.
Not handled: TLS, and a client that asks for it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import sqlalchemy as sa

_READY_FOR_QUERY = b"Z"
_READ_BYTES = 1 << 16


class CountingProxy:
    """Passes bytes on unchanged; `round_trips` grows with every ReadyForQuery."""

    def __init__(self, upstream: Path) -> None:
        self._upstream = upstream
        self._connections: set[asyncio.Task[None]] = set()
        self.round_trips = 0
        self.opened = 0

    async def serve(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.opened += 1
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._upstream)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_pass_on(client_reader, server_writer))
                ways.create_task(self._count(server_reader, client_writer))
        finally:
            self._connections.discard(task)

    async def close(self) -> None:
        """Return when every connection has ended; whoever is still there is cut off."""
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                # One byte for the type, then a length that counts itself.
                header = await reader.readexactly(5)
                body = await reader.readexactly(int.from_bytes(header[1:], "big") - 4)
                self.round_trips += header[:1] == _READY_FOR_QUERY
                writer.write(header + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # either side has left
        finally:
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while received := await reader.read(_READ_BYTES):
            writer.write(received)
            await writer.drain()
    except ConnectionError:
        pass  # either side has left
    finally:
        writer.close()


def server_socket(url: str) -> Path:
    """The socket that a URL with a folder as its host means."""
    query = sa.make_url(url).query
    return Path(str(query["host"])) / f".s.PGSQL.{query['port']}"


@asynccontextmanager
async def counting_proxy(url: str, folder: Path) -> AsyncIterator[CountingProxy]:
    """A proxy to the server of `url` that listens in `folder` as that server does in its own."""
    upstream = server_socket(url)
    proxy = CountingProxy(upstream)
    server = await asyncio.start_unix_server(proxy.serve, folder / upstream.name)
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()


@asynccontextmanager
async def counting_proxy_on_loopback(url: str) -> AsyncIterator[tuple[CountingProxy, int]]:
    """The same on a free TCP port, which comes along."""
    proxy = CountingProxy(server_socket(url))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
