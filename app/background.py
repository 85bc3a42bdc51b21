"""Work that goes on beside the requests."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def in_background(work: Coroutine[object, object, None], name: str) -> AsyncIterator[None]:
    """Run a coroutine as a task inside of the block; at its end it is cancelled and awaited."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
