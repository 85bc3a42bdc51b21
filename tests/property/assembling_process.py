"""`python -m tests.property.assembling_process DATABASE_URL DATA_DIR SEED < requests`.

Assembles each request anew in a process of its own and prints the bytes' digest, one a line.
Each retriever answers in an order that is drawn from the seed, with the ranks of that order.
"""

import asyncio
import hashlib
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from asgi_lifespan import LifespanManager

from app.api.parts import Parts
from app.config import Settings
from app.main import create_app
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import ScopedQuery


def _shuffle_answers(parts: Parts, drawn: random.Random) -> None:
    for kind in {type(one) for one in parts.services.retrievers.values()}:
        plain = kind.retrieve

        async def retrieve(self: Any, query: ScopedQuery, plain: Any = plain) -> Retrieval:
            found: Retrieval = await plain(self, query)
            mixed = drawn.sample(found.candidates, len(found.candidates))
            ranked = tuple(replace(one, rank=rank) for rank, one in enumerate(mixed, start=1))
            return replace(found, candidates=ranked)

        kind.retrieve = retrieve  # type: ignore[method-assign]


async def _run(url: str, data_dir: str, seed: str, calls: list[dict[str, Any]]) -> None:
    values: dict[str, Any] = {"database_url": url, "data_dir": Path(data_dir)}
    app = create_app(Settings(**values, log_level="error"))
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://own") as client,
    ):
        _shuffle_answers(app.state.parts, random.Random(seed))
        for call in calls:
            answer = await client.post(
                "/snapshots?refresh=true", json=call["request"], headers=call["headers"]
            )
            print(answer.status_code, hashlib.sha256(answer.content).hexdigest())


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2], sys.argv[3], json.load(sys.stdin)))
