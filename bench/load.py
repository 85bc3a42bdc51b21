"""Throughput and latency of POST /snapshots as the number of connections grows.

One service process on an embedded database with its usual settings (fsync on), the client in this
process on the same machine: the client's own work is part of what is measured.
"""

import argparse
import asyncio
import time
import uuid
from collections import Counter
from functools import partial
from itertools import cycle

import httpx
import numpy as np

from app.adapters.tokens import TiktokenCounter
from bench.assembly import queries_from
from bench.corpus import DEFAULT_FOLDERS, Document, read_documents
from bench.loading import EVERYONE
from bench.scratch import Scratch, scratch_service

_CONNECTIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MAX_CHUNK_TOKENS = 400
_SOURCES_PER_CALL = 50


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--chunks", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--connections", nargs="+", type=int, default=_CONNECTIONS)
    options = parser.parse_args()
    count = partial(TiktokenCounter().count, encoding="o200k_base")
    documents = list(
        read_documents(
            DEFAULT_FOLDERS, options.chunks, max_tokens=_MAX_CHUNK_TOKENS, count_tokens=count
        )
    )
    with scratch_service({}) as scratch:
        asyncio.run(_run(scratch, documents, options.connections, options.seconds))


async def _run(
    scratch: Scratch, documents: list[Document], connections: list[int], seconds: float
) -> None:
    limits = httpx.Limits(max_connections=max(connections))
    async with httpx.AsyncClient(
        base_url=scratch.url,
        headers=scratch.headers(EVERYONE),
        timeout=120,
        limits=limits,
        trust_env=False,
    ) as client:
        await _index(client, documents)
        queries = queries_from(documents, 50)
        await _measure(client, queries, 4, seconds / 2)
        print(
            f"{'connections':>12}{'per s':>10}{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}  answers"
        )
        for at_once in connections:
            print(await _measure(client, queries, at_once, seconds), flush=True)


async def _index(client: httpx.AsyncClient, documents: list[Document]) -> None:
    sources = [
        {
            "project": "bench",
            "sourceId": one.path,
            "sourceRevision": "1",
            "class": one.knowledge_class,
            "language": "en",
            "chunks": [{"chunkId": str(at), "text": text} for at, text in enumerate(one.chunks)],
        }
        for one in documents
    ]
    for at in range(0, len(sources), _SOURCES_PER_CALL):
        body = {"sources": sources[at : at + _SOURCES_PER_CALL]}
        (await client.put("/sources", json=body)).raise_for_status()
    print(f"{sum(len(one.chunks) for one in documents)} chunks of {len(documents)} sources")


async def _measure(
    client: httpx.AsyncClient, queries: list[str], at_once: int, seconds: float
) -> str:
    """So many callers, each with one call after the other; the line of the table."""
    taken: list[float] = []
    statuses = Counter[int]()
    asked = cycle(queries)
    begun = time.perf_counter()

    async def call() -> None:
        while time.perf_counter() - begun < seconds:
            request = {
                "runId": str(uuid.uuid4()),
                "attemptId": str(uuid.uuid4()),
                "query": next(asked),
                "language": "en",
            }
            sent = time.perf_counter()
            answer = await client.post("/snapshots", json=request)
            statuses[answer.status_code] += 1
            if answer.status_code == httpx.codes.CREATED:
                taken.append(time.perf_counter() - sent)
            else:
                await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))

    await asyncio.gather(*(call() for _ in range(at_once)))
    rate = statuses[httpx.codes.CREATED] / (time.perf_counter() - begun)
    cells = "".join(f"{np.percentile(taken, q) * 1000:>10.0f}" for q in (50, 95, 99))
    told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    return f"{at_once:>12}{rate:>10.1f}{cells}  {told}"


if __name__ == "__main__":
    main()
