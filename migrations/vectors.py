"""The tables of the vector leg: made by every migration of a database that has pgvector.

They stand outside of the numbered revisions, because pgvector may be installed later, or
never: without it the service ranks by words alone.
"""

import sqlalchemy as sa
from alembic import op

from migrations.tenancy import grant, isolate_by_tenant

TABLES = (
    # `profile` is the first 64 bits of the embedding profile's digest: vectors of two
    # profiles never meet. PLAIN: a search reads whole pages and never a side table.
    """
    CREATE TABLE vectors (
        tenant_key integer NOT NULL,
        profile bigint NOT NULL,
        label_key integer NOT NULL,
        chunk_key bigint NOT NULL,
        valid_from bigint NOT NULL,
        embedding halfvec NOT NULL,
        PRIMARY KEY (tenant_key, profile, label_key, chunk_key)
    )
    """,
    "ALTER TABLE vectors ALTER COLUMN embedding SET STORAGE PLAIN",
    # The planner needs no samples, and what it keeps would outlive an erasure.
    "ALTER TABLE vectors ALTER COLUMN embedding SET STATISTICS 0",
    # Vectors of chunks that are no longer live move here, as postings do.
    """
    CREATE TABLE ended_vectors (
        tenant_key integer NOT NULL,
        profile bigint NOT NULL,
        label_key integer NOT NULL,
        chunk_key bigint NOT NULL,
        valid_from bigint NOT NULL,
        valid_to bigint NOT NULL,
        embedding halfvec NOT NULL,
        PRIMARY KEY (tenant_key, profile, label_key, valid_to, chunk_key)
    )
    """,
    "ALTER TABLE ended_vectors ALTER COLUMN embedding SET STORAGE PLAIN",
    "ALTER TABLE ended_vectors ALTER COLUMN embedding SET STATISTICS 0",
    # Sums over a label's vectors between two versions: how many there are, and an additive
    # multiset hash, as `label_states` has them for chunks.
    """
    CREATE TABLE vector_states (
        tenant_key integer NOT NULL,
        profile bigint NOT NULL,
        label_key integer NOT NULL,
        valid_from bigint NOT NULL,
        valid_to bigint NOT NULL DEFAULT 9223372036854775807,
        vectors bigint NOT NULL,
        lane_0 bigint NOT NULL,
        lane_1 bigint NOT NULL,
        lane_2 bigint NOT NULL,
        lane_3 bigint NOT NULL,
        PRIMARY KEY (tenant_key, profile, label_key, valid_from)
    )
    """,
    "CREATE INDEX vector_states_by_end ON vector_states (tenant_key, profile, valid_to, label_key)",
)
RIGHTS = {
    "vectors": "SELECT, INSERT, DELETE",
    "ended_vectors": "SELECT, INSERT, DELETE",
    "vector_states": "SELECT, INSERT, UPDATE, DELETE",
}


def ensure() -> None:
    """Make the tables where pgvector is installed and they are not there yet."""
    connection = op.get_bind()
    facts = connection.execute(
        sa.text(
            "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'vector') AS installed, "
            "to_regclass('vectors') IS NOT NULL AS made"
        )
    ).one()
    if not facts.installed or facts.made:
        return
    for statement in TABLES:
        op.execute(statement)
    for table, granted in RIGHTS.items():
        isolate_by_tenant(table)
        grant(table, granted)
