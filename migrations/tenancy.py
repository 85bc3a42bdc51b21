"""What every table with a tenant gets: forced row-level security, and only named rights."""

from alembic import context, op


def serving_role() -> str:
    """The quoted name of the role that the service runs under; it owns nothing."""
    name = context.config.attributes["serving_role"]
    return '"' + str(name).replace('"', '""') + '"'


def isolate_by_tenant(table: str) -> None:
    """Show and accept rows of the entered tenant only, for the table's owner too.

    Outside of `enter_tenant` the setting is absent or empty, so that no row matches.
    """
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant_isolation ON {table} USING (tenant_key = "
        f"NULLIF(current_setting('ctxsnap.tenant_key', true), '')::integer)"
    )


def grant(table: str, rights: str) -> None:
    op.execute(f"GRANT {rights} ON {table} TO {serving_role()}")


def make_immutable(table: str) -> None:
    """Let the database itself refuse UPDATE, DELETE and TRUNCATE, whoever asks."""
    op.execute(
        f"CREATE TRIGGER immutable_rows BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION refuse_change()"
    )
    op.execute(
        f"CREATE TRIGGER immutable_table BEFORE TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    # ALWAYS: also while session_replication_role is `replica`.
    op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER immutable_rows")
    op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER immutable_table")
