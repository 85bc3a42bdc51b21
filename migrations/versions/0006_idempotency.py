"""Idempotency keys: which request each of them was first used for."""

from alembic import op

from migrations.tenancy import grant, isolate_by_tenant

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # By way of the repeat a key leads to a snapshot, and there is none that leads nowhere.
    # `key_digest` is of the subject and the key: keys of two subjects never meet.
    op.execute(
        """
        CREATE TABLE idempotency_keys (
            tenant_key integer NOT NULL,
            key_digest bytea NOT NULL,
            repeat_key bytea NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (tenant_key, key_digest),
            FOREIGN KEY (tenant_key, repeat_key) REFERENCES repeats
        )
        """
    )
    # Whoever removes a repeat is asked for the keys of it.
    op.execute(
        "CREATE INDEX idempotency_keys_by_repeat ON idempotency_keys (tenant_key, repeat_key)"
    )
    isolate_by_tenant("idempotency_keys")
    grant("idempotency_keys", "SELECT, INSERT")
