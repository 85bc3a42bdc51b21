"""The texts that live sources were cut from: another chunker starts from them.

Guarantees: a live source that came as one text has its original, and nothing else has one.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from app.canonical import digest_text, digest_to_bytes
from app.indexing.source import PreparedSource

_ADD_ORIGINALS = """
    INSERT INTO source_originals (tenant_key, project, source_id, digest, text)
    VALUES ($1, $2, $3, $4, $5)
"""
_REMOVE_ORIGINALS = """
    DELETE FROM source_originals WHERE tenant_key = $1 AND project = $2 AND source_id = $3
"""


def original_digest(source: PreparedSource) -> bytes | None:
    """None for a source that came in chunks."""
    text = source.draft.text
    return None if text is None else digest_to_bytes(digest_text(text))


async def add_originals(
    connection: AsyncConnection, tenant_key: int, sources: Sequence[PreparedSource]
) -> None:
    rows = [
        (tenant_key, *source.key, original_digest(source), source.draft.text)
        for source in sources
        if source.draft.text is not None
    ]
    if rows:
        await connection.exec_driver_sql(_ADD_ORIGINALS, rows)


async def remove_originals(
    connection: AsyncConnection, tenant_key: int, names: Sequence[tuple[str, str]]
) -> None:
    """Of sources that end, by project and id."""
    await connection.exec_driver_sql(_REMOVE_ORIGINALS, [(tenant_key, *name) for name in names])
