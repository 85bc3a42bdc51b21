"""The audit log: events, which of them are not sealed yet, and the chain of seals."""

from alembic import op

from migrations.tenancy import grant, isolate_by_tenant, make_immutable

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLES = (
    """
    CREATE TABLE audit_events (
        tenant_key integer NOT NULL,
        at timestamptz NOT NULL,
        id uuid NOT NULL,
        subject text NOT NULL,
        agent text,
        action text NOT NULL,
        outcome text NOT NULL CHECK (outcome IN ('allowed', 'refused', 'failed')),
        code text,
        request_id text,
        targets jsonb NOT NULL CHECK (jsonb_typeof(targets) = 'object'),
        PRIMARY KEY (tenant_key, at, id)
    )
    """,
    # An event leaves this table in the transaction that seals it: none is skipped, whatever
    # order transactions commit in, and none is sealed twice.
    """
    CREATE TABLE audit_unsealed (
        tenant_key integer NOT NULL,
        at timestamptz NOT NULL,
        id uuid NOT NULL,
        PRIMARY KEY (tenant_key, at, id),
        FOREIGN KEY (tenant_key, at, id) REFERENCES audit_events
    )
    """,
    """
    CREATE TABLE audit_seals (
        tenant_key integer NOT NULL,
        sequence bigint NOT NULL CHECK (sequence > 0),
        sealed_at timestamptz NOT NULL,
        previous bytea,
        hash bytea NOT NULL CHECK (octet_length(hash) = 32),
        event_ats timestamptz[] NOT NULL,
        event_ids uuid[] NOT NULL,
        PRIMARY KEY (tenant_key, sequence),
        CHECK ((previous IS NULL) = (sequence = 1)),
        CHECK (cardinality(event_ids) > 0),
        CHECK (cardinality(event_ids) = cardinality(event_ats))
    )
    """,
    """
    CREATE FUNCTION await_seal() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit_unsealed (tenant_key, at, id) VALUES (NEW.tenant_key, NEW.at, NEW.id);
        RETURN NULL;
    END
    $$
    """,
    # Whoever inserts an event: it cannot be left out of the chain by forgetting it.
    """
    CREATE TRIGGER await_seal AFTER INSERT ON audit_events
    FOR EACH ROW EXECUTE FUNCTION await_seal()
    """,
    "REVOKE EXECUTE ON FUNCTION await_seal() FROM PUBLIC",
)


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)
    rights = {
        "audit_events": "SELECT, INSERT",
        "audit_unsealed": "SELECT, INSERT, DELETE",
        "audit_seals": "SELECT, INSERT",
    }
    for table, granted in rights.items():
        isolate_by_tenant(table)
        grant(table, granted)
    for table in ("audit_events", "audit_seals"):
        make_immutable(table)
