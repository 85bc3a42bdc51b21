"""A database of one test's own on the shared server, owned and served by the usual roles."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from app.adapters.postgres.embedded import OWNER_ROLE, SERVING_ROLE, EmbeddedDatabase


@asynccontextmanager
async def scratch_database(embedded: EmbeddedDatabase) -> AsyncIterator[EmbeddedDatabase]:
    """An empty database; it is dropped at the end, with whoever is still connected."""
    name = f"scratch_{secrets.token_hex(4)}"
    engine = create_async_engine(embedded.superuser_url, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            await connection.execute(sa.text(f"CREATE DATABASE {name} OWNER {OWNER_ROLE}"))
            await connection.execute(sa.text(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC"))
            await connection.execute(sa.text(f"GRANT CONNECT ON DATABASE {name} TO {SERVING_ROLE}"))
        yield EmbeddedDatabase(
            owner_url=changed_url(embedded.owner_url, database=name),
            serving_url=changed_url(embedded.serving_url, database=name),
            superuser_url=changed_url(embedded.superuser_url, database=name),
        )
        async with engine.connect() as connection:
            await connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        await engine.dispose()


def changed_url(url: str, *, host: str | None = None, **parts: str) -> str:
    """The URL with another user, password or database, or another socket folder as host."""
    changed = sa.make_url(url).set(**parts)  # type: ignore[arg-type]
    if host is not None:
        changed = changed.update_query_dict({"host": host})
    return changed.render_as_string(hide_password=False)
