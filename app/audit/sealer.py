"""Sealing in the background: the tenants that this process wrote for, every few seconds.

Guarantees: a failed round is logged, and made again with the next one; the last round runs
when the service stops, for at most some seconds.

Not handled: events of a process that was killed. They wait, unsealed but stored, until any
process writes for their tenant again or somebody asks for the seals.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import structlog

from app.audit.log import AuditLog, seal_all
from app.background import in_background

_LAST_ROUND_S = 10.0
"""A database that is away must not keep the service from stopping."""

_log = structlog.get_logger()


class Sealer:
    """Keeps which tenants have something to seal."""

    def __init__(self, log: AuditLog, *, interval_s: float, now: Callable[[], datetime]) -> None:
        self._audit = log
        self._interval_s = interval_s
        self._now = now
        self._written: set[str] = set()

    def wrote(self, tenant: str) -> None:
        """Tell that this process appended an event of the tenant's."""
        self._written.add(tenant)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Seal in rounds inside of the block, and once more at its end."""
        try:
            async with in_background(self._rounds(), "audit-sealer"):
                yield
        finally:
            try:
                async with asyncio.timeout(_LAST_ROUND_S):
                    await self.seal_written()
            except TimeoutError:
                _log.warning("audit_left_unsealed", tenants=len(self._written))

    async def seal_written(self) -> None:
        """One round; a tenant whose sealing fails or is cut short is taken up again."""
        for tenant in tuple(self._written):
            self._written.discard(tenant)
            try:
                await seal_all(self._audit, tenant, self._now)
            except Exception as error:
                # Whatever it was: one that ended the rounds would end them for everyone.
                self._written.add(tenant)
                _log.error("audit_sealing_failed", error_type=type(error).__name__)
            except BaseException:
                self._written.add(tenant)
                raise

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.seal_written()
