"""Giving up past versions of the index, and the rounds that do it in the background.

Guarantees: a version is refused for some time before anything of it is removed, so that
whoever is reading it then can end; a failed round is logged, and made again an hour later.

Not handled: tenants that nobody has called since this process started.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from app.background import in_background
from app.storage.labels import IndexVersion

_INTERVAL = timedelta(hours=1)
_POLL_S = 60.0

_log = structlog.get_logger()


class IndexCompaction(Protocol):
    async def give_up(self, tenant: str, before: datetime) -> IndexVersion | None:
        """From now on refuse versions that were followed by another one before that time.

        Returns the oldest version that is kept, or None where nothing of those before it is
        left to be removed.
        """

    async def remove(self, tenant: str, oldest: IndexVersion) -> None:
        """Remove what had ended by the oldest version, in batches of a transaction each.

        Labels of deleted sources and all texts stay: stored snapshots need them.
        """


class Compactor:
    """Keeps when each tenant is due; without a retention everything is kept.

    `grace_s` is the longest that a request may take: whoever reads a version when it is given
    up has ended by then.
    """

    def __init__(
        self,
        compaction: IndexCompaction,
        *,
        retention: timedelta | None,
        now: Callable[[], datetime],
        grace_s: float,
    ) -> None:
        self._compaction = compaction
        self._retention = retention
        self._now = now
        self._grace_s = grace_s
        self._due: dict[str, datetime] = {}

    def saw(self, tenant: str) -> None:
        """Tell that this process answered a call of the tenant's."""
        if self._retention is not None:
            self._due.setdefault(tenant, self._now())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compact in rounds inside of the block."""
        async with in_background(self._rounds(), "index-compactor"):
            yield

    async def compact_due(self) -> None:
        """One round over the tenants that are due; each of them is due again in an hour."""
        if self._retention is None:
            return
        now = self._now()
        given_up: dict[str, IndexVersion] = {}
        for tenant in [tenant for tenant, due in self._due.items() if due <= now]:
            self._due[tenant] = now + _INTERVAL
            with _logged():
                oldest = await self._compaction.give_up(tenant, now - self._retention)
                if oldest is not None:
                    given_up[tenant] = oldest
        if given_up:
            await asyncio.sleep(self._grace_s)
        for tenant, oldest in given_up.items():
            with _logged():
                await self._compaction.remove(tenant, oldest)

    async def _rounds(self) -> None:
        while True:
            await self.compact_due()
            await asyncio.sleep(_POLL_S)


@contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Whatever it was: one that ended the rounds would end them for everyone.
        _log.error("index_compaction_failed", error_type=type(error).__name__)
