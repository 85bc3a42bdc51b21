"""The common way to search text in PostgreSQL, over the same rows: tsvector, GIN, `ts_rank`.

The rows carry the label's columns, so that the service's own scope filter applies to them word
for word. They have no row-level security, under which a GIN index could not be used at all.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.scope_filter import label_filter, scope_arguments
from app.scope.access import Predicate
from bench.scratch import TENANT

RANKINGS = ("ts_rank", "ts_rank_cd")
LIMIT = 100

_FILL = """
    CREATE TABLE full_text AS
    SELECT l.tenant_key, l.project, l.class, l.classification, l.trust_tier, l.allow, l.deny,
        c.chunk_key, x.text, to_tsvector('english', x.text) AS terms
    FROM chunks c JOIN source_versions s USING (tenant_key, source_key)
    JOIN labels l USING (tenant_key, label_key)
    JOIN source_contents x ON x.tenant_key = c.tenant_key AND x.project = s.project
        AND x.source_id = s.source_id AND x.digest = c.content_digest
"""


async def fill(owner: AsyncEngine) -> None:
    """Copy what is indexed into a table of its own, index it and analyze it."""
    async with owner.begin() as connection:
        await connection.execute(sa.select(sa.func.enter_tenant(TENANT, False)))
        for statement in (
            _FILL,
            "CREATE INDEX ON full_text USING gin (terms)",
            "CREATE INDEX ON full_text (tenant_key, project)",
        ):
            await connection.execute(sa.text(statement))
    async with owner.connect() as connection:
        outside = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await outside.execute(sa.text("VACUUM ANALYZE full_text"))


async def search(owner: Database, predicate: Predicate, query: str, ranking: str) -> Sequence[int]:
    """The best chunks for any of the query's words, with their texts."""
    statement = Statement(
        f"""
        SELECT l.chunk_key, l.text FROM full_text l CROSS JOIN (
            SELECT replace(
                plainto_tsquery('english', $2->>'query')::text, ' & ', ' | ')::tsquery AS q
        ) asked WHERE l.terms @@ q AND {label_filter(predicate)}
        ORDER BY {ranking}(l.terms, q) DESC, l.chunk_key LIMIT {LIMIT}
        """,
        "chunk_key bigint, text text",
    )
    arguments = {**scope_arguments(predicate), "query": query}
    rows = await owner.run(TENANT, statement, arguments)
    return [row.chunk_key for row in rows]
