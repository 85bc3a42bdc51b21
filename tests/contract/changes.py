"""The plans of statements that run in a transaction, and a tenant's rows as they are stored."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.database import Database
from tests.contract.test_query_plans import Scan, scans


@contextmanager
def explaining_changes() -> Iterator[list[tuple[str, tuple[Scan, ...]]]]:
    """Statements with what they read, as they come; each is tried in a savepoint first."""
    run, found = AsyncConnection.exec_driver_sql, list[tuple[str, tuple[Scan, ...]]]()

    async def explain_and_run(
        self: AsyncConnection, statement: str, parameters: Any = None, **options: Any
    ) -> Any:
        if "in_tenant" in statement:
            return await run(self, statement, parameters, **options)
        many = parameters if isinstance(parameters, list) else [parameters]
        for one in many[:2]:
            trial = await self.begin_nested()
            plan = await run(self, f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", one)
            found.append((statement, tuple(scans(plan.scalar_one()[0]["Plan"]))))
            await trial.rollback()
        return await run(self, statement, parameters, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncConnection, "exec_driver_sql", explain_and_run)
        yield found


async def rows_of(owner: Database, tenant: str) -> dict[str, list[str]]:
    """Every row of a tenant's in every table, as PostgreSQL writes it."""
    tables = sa.text(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    async with owner.transaction(tenant) as (connection, _):
        names = (await connection.execute(tables)).scalars().all()
        return {
            name: [
                str(row) for row in (
                    await connection.execute(sa.text(f"SELECT t::text FROM {name} t"))
                ).scalars()
            ]
            for name in names
        }  # fmt: skip


async def forget_statistics(owner: Database) -> None:
    """Let the planner know nothing of any table, as right after the first load."""
    attributes = """
        SELECT pg_clear_attribute_stats(schemaname, tablename, attname, inherited) FROM pg_stats
        WHERE schemaname = 'public'
    """
    tables = """
        SELECT pg_clear_relation_stats('public', relname) FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    """
    async with owner.engine.connect() as connection:
        for statement in (attributes, tables):
            await connection.execute(sa.text(statement))
        await connection.commit()
