"""Immutable snapshots, what stands beside them, and repeats."""

from alembic import op

from migrations.tenancy import grant, isolate_by_tenant, make_immutable

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = (
    # `canonical`, `request` and `report` are RFC 8785 bytes, never jsonb: jsonb would
    # order members its own way. The `inline_` columns bound what its inline items need.
    """
    CREATE TABLE snapshots (
        tenant_key integer NOT NULL,
        hash bytea NOT NULL CHECK (octet_length(hash) = 32),
        snapshot_id uuid NOT NULL,
        run_id uuid NOT NULL,
        step_id uuid,
        attempt_id uuid NOT NULL,
        canonical bytea NOT NULL,
        request bytea NOT NULL,
        report bytea NOT NULL,
        timings jsonb NOT NULL,
        index_version bigint NOT NULL,
        evaluated_at timestamptz NOT NULL,
        engine text NOT NULL,
        used_tokens integer NOT NULL,
        degraded text[] NOT NULL,
        inline_projects text[] NOT NULL,
        inline_classes text[] NOT NULL,
        inline_classification smallint NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (tenant_key, hash),
        UNIQUE (tenant_key, snapshot_id)
    )
    """,
    "CREATE INDEX snapshots_by_time ON snapshots (tenant_key, created_at, hash)",
    "CREATE INDEX snapshots_by_run ON snapshots (tenant_key, run_id, created_at, hash)",
    "CREATE INDEX snapshots_by_attempt ON snapshots (tenant_key, attempt_id, created_at, hash)",
    # Which sources a snapshot shows or accounts for: who may read it follows their
    # present labels.
    """
    CREATE TABLE snapshot_sources (
        tenant_key integer NOT NULL,
        hash bytea NOT NULL,
        project text COLLATE "C" NOT NULL,
        source_id text COLLATE "C" NOT NULL,
        PRIMARY KEY (tenant_key, hash, project, source_id),
        FOREIGN KEY (tenant_key, hash) REFERENCES snapshots
    )
    """,
    """
    CREATE INDEX snapshot_sources_by_source
    ON snapshot_sources (tenant_key, project, source_id)
    """,
    # Inline texts and the query, by the snapshot that used them.
    """
    CREATE TABLE snapshot_contents (
        tenant_key integer NOT NULL,
        hash bytea NOT NULL,
        digest bytea NOT NULL,
        text text NOT NULL,
        PRIMARY KEY (tenant_key, hash, digest),
        FOREIGN KEY (tenant_key, hash) REFERENCES snapshots
    )
    """,
    # The first snapshot of a request under a scope.
    """
    CREATE TABLE repeats (
        tenant_key integer NOT NULL,
        repeat_key bytea NOT NULL,
        hash bytea NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (tenant_key, repeat_key),
        FOREIGN KEY (tenant_key, hash) REFERENCES snapshots
    )
    """,
)


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)
    rights = {
        "snapshots": "SELECT, INSERT",
        "snapshot_sources": "SELECT, INSERT",
        "snapshot_contents": "SELECT, INSERT",
        "repeats": "SELECT, INSERT, UPDATE",
    }
    for table, granted in rights.items():
        isolate_by_tenant(table)
        grant(table, granted)
    for table in ("snapshots", "snapshot_sources"):
        make_immutable(table)
