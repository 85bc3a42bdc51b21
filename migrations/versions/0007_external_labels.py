"""Labels of chunks that a snapshot took from outside of the index."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No source stands for such a chunk, so that who may read the snapshot follows from the
    # labels that were recorded with it. A constant default rewrites no row.
    op.execute("ALTER TABLE snapshots ADD COLUMN external_labels jsonb NOT NULL DEFAULT '[]'")
