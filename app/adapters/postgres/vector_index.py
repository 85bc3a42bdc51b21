"""Vectors in PostgreSQL: which chunks have none, and adding them as a change of the index."""

from collections.abc import Mapping, Sequence
from typing import Final

from app.adapters.postgres.database import Database, Statement, translated_errors
from app.adapters.postgres.index_writer import IndexWriter
from app.adapters.postgres.vector_states import HAS_VECTORS, profile_key, sums_of_labels
from app.adapters.postgres.vector_writer import ChunkVector, VectorWriter
from app.canonical import JsonObject
from app.indexing.embedding import (
    EmbeddingProfile,
    HalfVector,
    UnembeddedChunk,
    UnembeddedPage,
)

_BYTES_PER_LOOK = 4 * 1024 * 1024
"""Of texts; a look ends with the one that reaches it, since a writer's own chunk may be large."""

# Where to go on comes along without a text, so that a look that finds nothing gets on too.
_UNEMBEDDED: Final = Statement(
    """
    WITH seen AS MATERIALIZED (
        SELECT chunk_key, source_key, content_digest FROM chunks
        WHERE tenant_key = $1 AND chunk_key > ($2->>'after')::bigint
        ORDER BY chunk_key LIMIT ($2->>'limit')::integer
    ), found AS MATERIALIZED (
        SELECT seen.chunk_key, x.text,
            sum(octet_length(x.text)) OVER (ORDER BY seen.chunk_key) - octet_length(x.text)
            AS before
        FROM seen CROSS JOIN LATERAL (
            SELECT project, source_id, label_key FROM source_versions
            WHERE tenant_key = $1 AND source_key = seen.source_key
            AND valid_to = 9223372036854775807 LIMIT 1
        ) s CROSS JOIN LATERAL (
            SELECT text FROM source_contents WHERE tenant_key = $1 AND project = s.project
            AND source_id = s.source_id AND digest = seen.content_digest LIMIT 1
        ) x LEFT JOIN LATERAL (
            SELECT true AS found FROM vectors
            WHERE tenant_key = $1 AND profile = ($2->>'profile')::bigint
            AND label_key = s.label_key AND chunk_key = seen.chunk_key LIMIT 1
        ) v ON true
        WHERE v.found IS NULL
    )
    SELECT chunk_key, text FROM found WHERE before < ($2->>'bytes')::bigint
    UNION ALL
    SELECT COALESCE(
        (SELECT min(chunk_key) - 1 FROM found WHERE before >= ($2->>'bytes')::bigint),
        (SELECT max(chunk_key) FROM seen)
    ), NULL
    """,
    "chunk_key bigint, text text",
)
_LIVE_CHUNKS = """
    SELECT c.chunk_key, c.content_digest, s.label_key
    FROM unnest($2::bigint[]) AS given (key) CROSS JOIN LATERAL (
        SELECT chunk_key, source_key, content_digest FROM chunks
        WHERE tenant_key = $1 AND chunk_key = given.key LIMIT 1
    ) c CROSS JOIN LATERAL (
        SELECT label_key FROM source_versions WHERE tenant_key = $1
        AND source_key = c.source_key AND valid_to = 9223372036854775807 LIMIT 1
    ) s
"""


async def has_vectors(database: Database) -> bool:
    """Whether the tables are there: pgvector was installed when the schema was migrated."""
    with translated_errors():
        async with database.engine.connect() as connection:
            return bool((await connection.exec_driver_sql(HAS_VECTORS)).scalar_one())


class PostgresVectorIndex:
    """Implements `indexing.embedding.VectorIndex`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def unembedded(
        self, tenant: str, profile: EmbeddingProfile, after_key: int, limit: int
    ) -> UnembeddedPage:
        arguments: JsonObject = {
            "profile": str(profile_key(profile.id)),
            "after": after_key,
            "limit": limit,
            "bytes": _BYTES_PER_LOOK,
        }
        rows = await self._database.run(tenant, _UNEMBEDDED, arguments)
        chunks = [UnembeddedChunk(row.chunk_key, row.text) for row in rows if row.text is not None]
        last = next((row.chunk_key for row in rows if row.text is None), None)
        return UnembeddedPage(tuple(sorted(chunks, key=lambda chunk: chunk.key)), last)

    async def add_vectors(
        self, tenant: str, profile: EmbeddingProfile, vectors: Mapping[int, HalfVector]
    ) -> int:
        async with self._database.transaction(tenant) as (connection, tenant_key):
            change = _VectorChange(connection, tenant_key)
            return await change.add(profile_key(profile.id), vectors)

    async def count_vectors(
        self, tenant: str, profile: EmbeddingProfile, label_keys: Sequence[int], version: int
    ) -> int:
        key = profile_key(profile.id)
        sums = await sums_of_labels(self._database, tenant, label_keys, version, [key])
        return sums[key].vectors


class _VectorChange(IndexWriter):
    async def add(self, profile: int, vectors: Mapping[int, HalfVector]) -> int:
        await self._lock()
        rows = await self._run(_LIVE_CHUNKS, list(vectors))
        live = [
            ChunkVector(row.label_key, row.chunk_key, row.content_digest, vectors[row.chunk_key])
            for row in rows
        ]
        writer = VectorWriter(self._connection, self._tenant_key, self._version + 1)
        added = await writer.add(profile, live)
        if added:
            self._version += 1
            await writer.finish()
            await self._finish("none")
        return added
