"""The door to PostgreSQL: one engine, statements limited to one tenant, errors translated.

Guarantees: a statement sees and writes rows of the entered tenant only, because the
tenant is set for its transaction and row-level security is forced; nothing outlives the
transaction, so that a pooled connection carries no tenant. `run` costs one round trip.
Not handled here: which statements there are (the other modules of this package).
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from app.canonical import JsonValue
from app.errors import ServiceError, UnavailableError
from app.interruption import begin_commit

_IN_TENANT = "SELECT * FROM in_tenant($1, $2, $3, $4, $5, $6) AS answer({columns})"

_SET_LOCAL = """
    SELECT set_config(given.name, given.value, true)
    FROM unnest($1::text[], $2::text[]) AS given (name, value)
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL that runs inside a tenant, and the columns of its answer.

    The SQL knows four parameters: $1 the tenant's key (integer), $2 arguments (jsonb),
    $3 numbers (bigint[]), $4 blobs (bytea[]). A statement that stores something may add
    the tenant; to any other an unknown tenant is an empty one.
    """

    sql: str
    columns: str
    adds_tenant: bool = False


def connection_url(url: str) -> sa.URL:
    """An asyncpg URL from any PostgreSQL URL (`postgres://`, `postgresql://`, …)."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+asyncpg")
    return parsed


class Database:
    """A pool of connections under the serving role.

    With `transaction_pooling` (pgbouncer) no prepared statement outlives a transaction,
    which costs more round trips. `note_wait_s` is told how long each use waited for its
    connection, in seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        pool_timeout_s: float = 5.0,
        statement_timeout_s: float = 30.0,
        transaction_pooling: bool = False,
        note_wait_s: Callable[[float], object] = lambda _: None,
    ) -> None:
        arguments: dict[str, Any] = {
            "timeout": pool_timeout_s,
            "command_timeout": statement_timeout_s,
        }
        if transaction_pooling:
            arguments |= {
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: f"s{uuid4().hex}",
            }
        self._transaction_pooling = transaction_pooling
        self._note_wait_s = note_wait_s
        self.engine: AsyncEngine = create_async_engine(
            connection_url(url),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=pool_timeout_s,
            pool_reset_on_return="rollback",
            connect_args=arguments,
            hide_parameters=True,
        )
        self._autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def connections_in_use(self) -> int:
        pool = self.engine.pool
        return pool.checkedout() if isinstance(pool, AsyncAdaptedQueuePool) else 0

    @asynccontextmanager
    async def _connected(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        async with AsyncExitStack() as stack:
            started = time.perf_counter()
            try:
                connection = await stack.enter_async_context(engine.connect())
            finally:
                self._note_wait_s(time.perf_counter() - started)
            yield connection

    async def close(self) -> None:
        await self.engine.dispose()

    async def run(
        self,
        tenant: str,
        statement: Statement,
        arguments: JsonValue = None,
        *,
        numbers: Sequence[int] = (),
        blobs: Sequence[bytes] = (),
        settings: Mapping[str, str] | None = None,
    ) -> Sequence[sa.Row[Any]]:
        """Run one statement in a transaction of its own inside the tenant.

        `settings` of the database hold for that transaction; they cost further round trips.
        Statements are safe to repeat: one that meets a connection which the server has
        closed meanwhile is sent once more, on a fresh one.
        Raises UnavailableError when the database cannot be reached in time.
        """
        call = _IN_TENANT.format(columns=statement.columns)
        values = (
            tenant,
            statement.adds_tenant,
            statement.sql,
            json.dumps(arguments),
            list(numbers),
            list(blobs),
        )
        with translated_errors():
            try:
                return await self._run_once(call, values, settings, stores=statement.adds_tenant)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return await self._run_once(call, values, settings, stores=statement.adds_tenant)

    async def _run_once(
        self,
        call: str,
        values: tuple[object, ...],
        settings: Mapping[str, str] | None,
        *,
        stores: bool,
    ) -> Sequence[sa.Row[Any]]:
        # A pooler may give each transaction another server; without one, leaving BEGIN
        # and COMMIT to the statement itself saves two round trips.
        in_transaction = self._transaction_pooling or bool(settings)
        engine = self.engine if in_transaction else self._autocommit
        async with self._connected(engine) as connection:
            if stores:
                begin_commit()
            if settings:
                given = list(settings), list(settings.values())
                await connection.exec_driver_sql(_SET_LOCAL, given)
            rows = (await connection.exec_driver_sql(call, values)).fetchall()
            if in_transaction:
                await connection.commit()
            return rows

    @asynccontextmanager
    async def transaction(self, tenant: str) -> AsyncIterator[tuple[AsyncConnection, int]]:
        """A transaction inside the tenant, and the tenant's key; commits at the end."""
        with translated_errors():
            async with self._connected(self.engine) as connection:
                key = await _enter(connection, tenant, may_add=False)
                if not key:
                    # Committed at once: whoever adds the same tenant waits for the row, and
                    # every call does with its audit entry, while a load may take minutes.
                    await _enter(connection, tenant, may_add=True)
                    await connection.commit()
                    key = await _enter(connection, tenant, may_add=False)
                yield connection, key
                begin_commit()
                await connection.commit()


async def _enter(connection: AsyncConnection, tenant: str, *, may_add: bool) -> int:
    entered = await connection.exec_driver_sql("SELECT enter_tenant($1, $2)", (tenant, may_add))
    return int(entered.scalar_one())


def stored_time(value: datetime | None) -> datetime | None:
    """A time that was stored with its zone.

    The driver takes the first and the last time that Python knows for the infinite ones, and
    gives them back without a zone.
    """
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the driver's and the pool's errors into the service's."""
    try:
        yield
    except PoolTimeoutError as error:
        raise UnavailableError(
            "Every database connection is in use; try again shortly.", code="overloaded"
        ) from error
    except (OperationalError, InterfaceError) as error:
        raise UnavailableError("The database cannot be reached; try again shortly.") from error
    except DBAPIError as error:
        raise _from_driver(error) from error
    except (OSError, TimeoutError, asyncpg.PostgresConnectionError) as error:
        raise UnavailableError("The database cannot be reached; try again shortly.") from error


_TRY_AGAIN_CLASSES = ("08", "40", "53", "55", "57", "58")
"""SQLSTATE classes that say nothing about the request: connection, rollback, resources."""


def _from_driver(error: DBAPIError) -> ServiceError:
    state = str(getattr(error.orig, "sqlstate", None) or "")
    if error.connection_invalidated or state.startswith(_TRY_AGAIN_CLASSES):
        return UnavailableError("The database could not answer; try again shortly.")
    return ServiceError(f"The database refused a statement (SQLSTATE {state or 'unknown'}).")
