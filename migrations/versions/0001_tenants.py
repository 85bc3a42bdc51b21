"""Tenants, and the functions through which a statement enters one."""

from alembic import op

from migrations.tenancy import grant, serving_role

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE tenants (
            tenant_key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            name text COLLATE "C" NOT NULL UNIQUE,
            index_version bigint NOT NULL DEFAULT 0,
            last_label_key integer NOT NULL DEFAULT 0,
            last_source_key bigint NOT NULL DEFAULT 0,
            last_chunk_key bigint NOT NULL DEFAULT 0
        )
        """
    )
    op.execute("ALTER TABLE tenants ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE tenants FORCE ROW LEVEL SECURITY")
    op.execute(
        "CREATE POLICY tenant_isolation ON tenants "
        "USING (name = current_setting('ctxsnap.tenant', true))"
    )
    grant("tenants", "SELECT, INSERT, UPDATE")
    op.execute(
        """
        CREATE FUNCTION enter_tenant(tenant text, may_add boolean) RETURNS integer
        LANGUAGE plpgsql AS $$
        DECLARE
            entered integer;
        BEGIN
            PERFORM set_config('ctxsnap.tenant', tenant, true);
            SELECT tenant_key INTO entered FROM tenants WHERE name = tenant;
            IF entered IS NULL AND may_add THEN
                INSERT INTO tenants (name) VALUES (tenant) ON CONFLICT (name) DO NOTHING;
                SELECT tenant_key INTO STRICT entered FROM tenants WHERE name = tenant;
            END IF;
            PERFORM set_config('ctxsnap.tenant_key', COALESCE(entered, 0)::text, true);
            RETURN COALESCE(entered, 0);
        END
        $$
        """
    )
    op.execute(
        """
        COMMENT ON FUNCTION enter_tenant(text, boolean) IS
        'Limits the running transaction to one tenant and returns its key; 0: unknown, no rows.'
        """
    )
    # One statement, one round trip, one tenant: planned anew each time, because the best
    # plan depends on how many labels a scope admits.
    op.execute(
        """
        CREATE FUNCTION in_tenant(
            tenant text, may_add boolean, statement text,
            arguments jsonb, numbers bigint[], blobs bytea[]
        ) RETURNS SETOF record LANGUAGE plpgsql AS $$
        BEGIN
            RETURN QUERY EXECUTE statement
            USING enter_tenant(tenant, may_add), arguments, numbers, blobs;
        END
        $$
        """
    )
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '% is immutable: % is refused', TG_TABLE_NAME, TG_OP
                USING ERRCODE = 'restrict_violation';
        END
        $$
        """
    )
    for function in (
        "enter_tenant(text, boolean)",
        "in_tenant(text, boolean, text, jsonb, bigint[], bytea[])",
    ):
        op.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {serving_role()}")
    # Readiness compares the schema's revision with the program's.
    grant("alembic_version", "SELECT")
