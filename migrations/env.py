"""Alembic's environment; `app.adapters.postgres.schema` runs it with an open connection."""

from alembic import context
from alembic.operations import Operations

from migrations import vectors

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=None,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
if context.get_context().get_current_revision() == context.script.get_current_head():
    with Operations.context(context.get_context()):
        vectors.ensure()
