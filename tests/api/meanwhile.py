"""Whether others are served while a step of the service computes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

PATIENCE_S = 30


@asynccontextmanager
async def served_during(client: httpx.AsyncClient, owner: object, step: str) -> AsyncIterator[None]:
    """Each call of the step waits, once one has begun, until /healthz has been answered.

    On the event loop it waits in vain: the answer needs the loop. Fails when the step is
    never called.
    """
    began, answered, plain = threading.Event(), threading.Event(), getattr(owner, step)

    def waiting(*arguments: Any, **named: Any) -> Any:
        began.set()
        assert answered.wait(PATIENCE_S), f"the event loop stood still during {step}"
        return plain(*arguments, **named)

    async def ask() -> None:
        assert await asyncio.to_thread(began.wait, PATIENCE_S), f"{step} was never called"
        assert (await client.get("/healthz")).status_code == 200
        answered.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, step, waiting)
        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            yield
