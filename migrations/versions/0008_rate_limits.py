"""Rate limits: when each subject, and each tenant, will have its whole quota again."""

from alembic import op

from migrations.tenancy import grant, isolate_by_tenant

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Unlogged: a call does not wait for the disk, and after a crash of the database all have
    # their quotas again. `who` is a digest of the subject, or empty for the tenant as a whole.
    # Half of each page is left free, so that a row that changes with each call stays in it.
    op.execute(
        """
        CREATE UNLOGGED TABLE rate_limits (
            tenant_key integer NOT NULL,
            who bytea NOT NULL,
            full_at timestamptz NOT NULL,
            PRIMARY KEY (tenant_key, who)
        ) WITH (fillfactor = 50)
        """
    )
    isolate_by_tenant("rate_limits")
    grant("rate_limits", "SELECT, INSERT, UPDATE")
