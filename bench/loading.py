"""Loading real text through the service's own index, and what that costs.

Labels decide what a scope admits. `few`: a file is a source, labelled by project and class.
`per-source`: a chunk is a source with an access list of its own, so that there are as many labels
as chunks: the worst case for whatever works label by label.
"""

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from app.adapters.postgres.source_index import PostgresSourceIndex
from app.indexing.preparation import SourcePreparer
from app.indexing.source import ChunkDraft, SourceDraft
from app.scope.grant import Grant
from app.scope.label import Label
from app.scope.vocabulary import (
    ALL_PROJECTS,
    Classification,
    KnowledgeClass,
    Permission,
    TrustTier,
)
from bench.corpus import Document
from bench.scratch import SUBJECT, TENANT

PROJECTS = tuple(f"project-{number:02}" for number in range(50))
"""Each gets 2 % of the chunks, as far as whole sources allow."""

EVERYONE = "everyone"
GRANT = Grant(
    tenant=TENANT,
    subject=SUBJECT,
    agent=None,
    projects=(ALL_PROJECTS,),
    groups=(EVERYONE,),
    classes=tuple(KnowledgeClass),
    max_classification=Classification.RESTRICTED,
    max_trust_tier=TrustTier.SYSTEM_POLICY,
    permissions=frozenset(Permission),
)
_CHUNKS_PER_PUT = 1000


@dataclass(frozen=True, slots=True)
class Loaded:
    """Seconds of one process, one batch after the other."""

    chunks: int
    sources: int
    prepare_s: float
    store_s: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes in the database; `all` covers every table and index of the service."""

    postings: int
    postings_heap: int
    postings_indexes: int
    all: int


def drafts_of(documents: Iterable[Document], *, label_per_source: bool) -> Iterator[SourceDraft]:
    """Sources over the projects: the next one always goes to the project with fewest chunks."""
    held = [(0, project) for project in PROJECTS]
    for document in documents:
        parts: list[tuple[str, tuple[str, ...]]]
        if label_per_source:
            parts = [(f"{document.path}#{at}", (text,)) for at, text in enumerate(document.chunks)]
        else:
            parts = [(document.path, tuple(document.chunks))]
        for source_id, texts in parts:
            chunks, project = held[0]
            heapq.heapreplace(held, (chunks + len(texts), project))
            allow = tuple(sorted((f"group:{EVERYONE}", f"user:owner of {source_id}"[:250])))
            yield SourceDraft(
                source_id=source_id,
                revision="1",
                label=Label(
                    project=project,
                    knowledge_class=document.knowledge_class,
                    classification=Classification.INTERNAL,
                    trust_tier=TrustTier.TRUSTED_KNOWLEDGE,
                    allow=allow if label_per_source else None,
                ),
                chunks=tuple(ChunkDraft(str(at), text) for at, text in enumerate(texts)),
                media_type=document.media_type,
            )


async def load(
    index: PostgresSourceIndex, preparer: SourcePreparer, drafts: Iterable[SourceDraft]
) -> Loaded:
    """Prepare and store in batches, one transaction and index version each."""
    chunks = sources = 0
    prepare_s = store_s = 0.0
    for batch in _batches(drafts):
        begun = time.perf_counter()
        prepared = [preparer.prepare(draft) for draft in batch]
        ready = time.perf_counter()
        await index.put_sources(GRANT, prepared)
        prepare_s += ready - begun
        store_s += time.perf_counter() - ready
        chunks += sum(len(source.chunks) for source in prepared)
        sources += len(prepared)
    return Loaded(chunks, sources, prepare_s, store_s)


def _batches(drafts: Iterable[SourceDraft]) -> Iterator[Sequence[SourceDraft]]:
    batch: list[SourceDraft] = []
    size = 0
    for draft in drafts:
        batch.append(draft)
        size += len(draft.chunks or ())
        if size >= _CHUNKS_PER_PUT:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def measure_sizes(owner: AsyncEngine) -> Sizes:
    async with owner.connect() as connection:
        row = (
            await connection.execute(
                sa.text(
                    """
                    SELECT pg_total_relation_size('postings'), pg_table_size('postings'),
                        pg_indexes_size('postings'), (
                            SELECT sum(pg_total_relation_size(oid)) FROM pg_class
                            WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
                        )::bigint
                    """
                )
            )
        ).one()
    return Sizes(*row)


async def tidy(owner: AsyncEngine) -> float:
    """VACUUM ANALYZE by the owner, which autovacuum would come round to; seconds."""
    begun = time.perf_counter()
    async with owner.connect() as connection:
        outside = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await outside.execute(sa.text("VACUUM ANALYZE"))
    return time.perf_counter() - begun


async def autovacuumed(owner: AsyncEngine) -> tuple[str, ...]:
    """Tables that autovacuum has analyzed or vacuumed so far."""
    async with owner.connect() as connection:
        found = await connection.execute(
            sa.text(
                "SELECT relname FROM pg_stat_user_tables WHERE autoanalyze_count > 0 "
                "OR autovacuum_count > 0 ORDER BY relname"
            )
        )
        return tuple(found.scalars())
