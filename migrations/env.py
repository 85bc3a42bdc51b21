"""Alembic's environment; `app.adapters.postgres.schema` runs it with an open connection."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=None,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
