"""What vectors add to words, measured through the service's own HTTP API.

Each collection is ranked by words alone, by vectors alone, and by both, fused by their ranks and
by their scores; and packed into small budgets by the default strategy. Vectors are those of a
file that lies beside the collection or, where there is none, those of the endpoint at
`--embeddings` (an OpenAI-compatible one that serves multilingual-e5-small, and is told by
`input_type` what a text is).
Settings were chosen on the first half of each collection's queries.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.bm25 import Collection, Text, load_collection
from bench.quality import POSTGRES, add_documents, ask_all, ask_for, row_of, table_head
from bench.scratch import Scratch, scratch_service
from bench.vector_server import serve_vectors

STRATEGIES = ("lexical-only", "vector-only", "hybrid-ranks", "hybrid-scores", "default")
BUDGETS = (500, 1000, 2000, 4000)
_PACKED = ("lexical-only", "vector-only", "default")
_RECIPES = Path(__file__).parent / "recipes"
_PASSAGE, _QUERY = "passage: ", "query: "
_DIMENSIONS = 384
_WAIT_S = 2.0
_BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hybrid", description=__doc__)
    parser.add_argument("names", nargs="*", default=["scifact"], help="such as scifact or xquad/th")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/collections"))
    parser.add_argument("--embeddings", help="base URL of an endpoint")
    options = parser.parse_args()
    for name in options.names:
        path = options.data / name
        collection = load_collection(path)
        with _endpoint(path, collection, options.embeddings) as url:
            environment = {
                "CTXSNAP_STRATEGIES_DIR": str(_RECIPES),
                "CTXSNAP_EMBEDDING_INTERVAL_S": "0.2",
                "CTXSNAP_EMBEDDINGS": json.dumps([_profile(url)]),
            }
            with scratch_service(POSTGRES, environment) as scratch:
                asyncio.run(_measure(scratch, collection))


def _profile(url: str) -> dict[str, Any]:
    return {
        "url": url,
        "model": "multilingual-e5-small",
        "dimensions": _DIMENSIONS,
        "query_prefix": _QUERY,
        "passage_prefix": _PASSAGE,
    }


@contextmanager
def _endpoint(path: Path, collection: Collection, url: str | None) -> Iterator[str]:
    files = sorted(path.glob("*.npz"))
    if files:
        vectors = _read(files[0], collection)
    elif url is not None:
        vectors = _ask(url, collection)
    else:
        raise SystemExit(f"{path.name} has no vectors beside it: name --embeddings")
    with serve_vectors(vectors.get) as served:
        yield served


def _read(file: Path, collection: Collection) -> dict[str, list[float]]:
    held = np.load(file)
    vectors: dict[str, list[float]] = {}
    for part, ids, prefix, texts in (
        ("corpus", "corpus_ids", _PASSAGE, collection.docs),
        ("queries", "query_ids", _QUERY, collection.queries),
    ):
        # Once: the file is unpacked anew for each look at it.
        numbers = held[part].astype(float)
        places = {str(one): at for at, one in enumerate(held[ids])}
        for text in texts:
            vectors[prefix + text.text] = numbers[places[text.id]].tolist()
    return vectors


def _ask(url: str, collection: Collection) -> dict[str, list[float]]:
    """Each text once: every strategy asks every query anew."""
    vectors: dict[str, list[float]] = {}
    begun = time.monotonic()
    for kind, prefix, texts in (
        ("passage", _PASSAGE, collection.docs),
        ("query", _QUERY, collection.queries),
    ):
        for some in (texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH)):
            wanted = {
                "model": _profile(url)["model"],
                "input": [one.text for one in some],
                "input_type": kind,
            }
            answer = httpx.post(f"{url}/embeddings", json=wanted, timeout=600, trust_env=False)
            for entry in answer.raise_for_status().json()["data"]:
                vectors[prefix + some[entry["index"]].text] = entry["embedding"]
    print(f"{len(vectors)} texts embedded in {time.monotonic() - begun:.0f} s", flush=True)
    return vectors


async def _measure(scratch: Scratch, collection: Collection) -> None:
    async with httpx.AsyncClient(
        base_url=scratch.url, headers=scratch.headers(), timeout=600, trust_env=False
    ) as client:
        await add_documents(client, collection)
        await _embedded(client, collection)
        print("\n".join(table_head()))
        for strategy in STRATEGIES:
            rankings = await ask_all(client, collection, strategy)
            print(row_of(collection, strategy, rankings).line(), flush=True)
        print(
            f"\n{'relevant in the snapshot, second half':<40}"
            + "".join(f"{one:>8}" for one in BUDGETS)
        )
        later = collection.queries[len(collection.queries) // 2 :]
        for strategy in _PACKED:
            shares = [await _share(client, collection, later, strategy, one) for one in BUDGETS]
            print(
                f"{collection.name:<14}{strategy:<26}" + "".join(f"{one:8.3f}" for one in shares),
                flush=True,
            )


async def _embedded(client: httpx.AsyncClient, collection: Collection) -> None:
    """Wait until every document has its vector."""
    before = -1
    while True:
        request = ask_for(collection, collection.queries[0], "vector-only", 8000)
        answer = await client.post("/snapshots", params={"refresh": "true"}, json=request)
        report = (await client.get(f"/snapshots/{answer.json()['hash']}/report")).json()
        (leg,) = report["report"]["retrievers"]
        if leg["vectors"] == len(collection.docs):
            return
        if leg["vectors"] == before:
            print(f"{before} of {len(collection.docs)} documents have vectors", flush=True)
        before = leg["vectors"]
        await asyncio.sleep(_WAIT_S)


async def _share(
    client: httpx.AsyncClient,
    collection: Collection,
    queries: Sequence[Text],
    strategy: str,
    budget: int,
) -> float:
    """The mean share of the relevant documents that are items, over queries that have any."""
    shares = []
    for query in (one for one in queries if one.id in collection.qrels):
        request = ask_for(collection, query, strategy, budget)
        answer = await client.post("/snapshots", params={"refresh": "true"}, json=request)
        shown = {item["sourceId"] for item in answer.json()["items"]}
        relevant = collection.qrels[query.id].keys()
        shares.append(len(shown & relevant) / len(relevant))
    return float(np.mean(shares))


if __name__ == "__main__":
    main()
