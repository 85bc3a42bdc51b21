"""A table that is locked for everybody, so that requests stop where they need it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from app.adapters.postgres.database import Database

PATIENCE_S = 30
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = CAST(:table AS regclass)"


@dataclass(frozen=True)
class HeldTable:
    """`wait_for` returns once so many statements wait for the table."""

    owner: Database
    table: str

    async def wait_for(self, statements: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self._waiting() != statements:  # noqa: ASYNC110 -- it is the database's state
                await asyncio.sleep(0.02)

    async def _waiting(self) -> int:
        async with self.owner.engine.connect() as connection:
            found = await connection.execute(sa.text(_WAITING), {"table": self.table})
            return int(found.scalar_one())


@asynccontextmanager
async def held(owner: Database, table: str) -> AsyncIterator[HeldTable]:
    async with owner.engine.connect() as connection:
        await connection.execute(sa.text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        yield HeldTable(owner, table)
        await connection.rollback()
