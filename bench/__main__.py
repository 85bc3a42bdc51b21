"""How fast a snapshot is assembled over real text, and what the index costs.

Loads text of this machine (documentation and Python sources, or the given folders) into an
embedded database with its usual settings, under the serving role, and measures right after the
load as well as after VACUUM ANALYZE. `retrieval` is the SQL (open, postings, chosen) and scoring.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import httpx
from sqlalchemy.ext.asyncio import create_async_engine

from app.adapters.postgres.database import Database, connection_url
from app.adapters.postgres.source_index import PostgresSourceIndex
from app.adapters.tokens import TiktokenCounter
from app.bootstrap import source_preparer
from bench import full_text
from bench.assembly import Bench, TimedDatabase, queries_from, table
from bench.corpus import DEFAULT_FOLDERS, Document, read_documents
from bench.loading import (
    EVERYONE,
    Loaded,
    Sizes,
    autovacuumed,
    drafts_of,
    load,
    measure_sizes,
    tidy,
)
from bench.scratch import Scratch, scratch_service

_MAX_CHUNK_TOKENS = 400
_ORIGINS_SHOWN = 12


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="where to look for text")
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--labels", nargs="+", choices=("few", "per-source"), default=["few"])
    parser.add_argument("--queries", type=int, default=30)
    options = parser.parse_args()
    tokens = TiktokenCounter()
    documents = _read(options.folders or DEFAULT_FOLDERS, options.chunks, tokens)
    for labels in options.labels:
        print(f"\n== labels: {labels}")
        with scratch_service({}) as scratch:
            asyncio.run(_run(scratch, tokens, documents, labels, options.queries))


def _read(folders: Sequence[Path], chunks: int, tokens: TiktokenCounter) -> list[Document]:
    begun = time.perf_counter()
    documents = list(
        read_documents(
            folders,
            chunks,
            max_tokens=_MAX_CHUNK_TOKENS,
            count_tokens=partial(tokens.count, encoding="o200k_base"),
        )
    )
    taken_s = time.perf_counter() - begun
    origins = Counter[str]()
    for document in documents:
        origins[document.origin] += len(document.chunks)
    found = origins.total()
    chars = sum(len(text) for document in documents for text in document.chunks)
    print(f"{found:,} chunks of {len(documents):,} files, {chars / found:.0f} characters each")
    if found < chunks:
        print(f"{chunks:,} were asked for: there is no more text in the folders")
    print(f"read and cut in {taken_s:.0f} s: {found / taken_s:.0f} chunks a second")
    for origin, count in origins.most_common(_ORIGINS_SHOWN):
        print(f"{count:>9,}  {origin}")
    print(f"{found - sum(n for _, n in origins.most_common(_ORIGINS_SHOWN)):>9,}  elsewhere")
    return documents


async def _run(
    scratch: Scratch,
    tokens: TiktokenCounter,
    documents: Sequence[Document],
    labels: str,
    query_count: int,
) -> None:
    engine = create_async_engine(connection_url(scratch.database.owner_url))
    serving, owner = (
        TimedDatabase(scratch.database.serving_url),
        Database(scratch.database.owner_url),
    )
    client = httpx.AsyncClient(
        base_url=scratch.url, headers=scratch.headers(EVERYONE), timeout=120, trust_env=False
    )
    drafts = drafts_of(documents, label_per_source=labels == "per-source")
    preparer = source_preparer(tokens, _MAX_CHUNK_TOKENS)
    loaded = await load(PostgresSourceIndex(serving), preparer, drafts)
    _print_load(loaded, await measure_sizes(engine))

    queries = queries_from(documents, query_count)
    print(f"{len(queries)} queries of nine terms, such as: {queries[0]!r}")
    seen = ", ".join(await autovacuumed(engine)) or "no table"
    print(f"\nRight after the load; autovacuum has seen {seen}")
    print("\n".join(table(await Bench(client, serving, None).measure(queries))))
    print(f"\nAfter VACUUM ANALYZE by the owner ({await tidy(engine):.0f} s)")
    await full_text.fill(engine)
    print("\n".join(table(await Bench(client, serving, owner).measure(queries))))
    await client.aclose()
    await serving.close()
    await owner.close()
    await engine.dispose()


def _print_load(loaded: Loaded, sizes: Sizes) -> None:
    chunks, total_s = loaded.chunks, loaded.prepare_s + loaded.store_s
    print(
        f"loaded {chunks:,} chunks of {loaded.sources:,} sources in {total_s:.0f} s: "
        f"{chunks / total_s:.0f} chunks a second "
        f"(analysis and token counts {chunks / loaded.prepare_s:.0f}, "
        f"storing {chunks / loaded.store_s:.0f})"
    )
    print(
        f"bytes per chunk: postings {sizes.postings / chunks:.0f} "
        f"(heap {sizes.postings_heap / chunks:.0f}, index {sizes.postings_indexes / chunks:.0f}), "
        f"everything {sizes.all / chunks:.0f}"
    )


if __name__ == "__main__":
    main()
