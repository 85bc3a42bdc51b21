"""Ending a request's work before it is done: at its deadline, or when its caller has left.

Guarantees: work that is ended leaves nothing behind, because whoever makes something lasting
says so first (`begin_commit`), and is not ended from then on. Tasks that the work awaits end
with it.

Not handled: threads. What runs in one goes on to its own end, and its result is dropped.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

_current: ContextVar["Interruption | None"] = ContextVar("interruption", default=None)


class Interruption:
    """The end of one request's work; it does nothing once the work is being stored."""

    def __init__(self, timer: asyncio.Timeout) -> None:
        self._timer = timer
        self.caller_left = False

    @property
    def happened(self) -> bool:
        return self._timer.expired()

    def end_for_absent_caller(self) -> None:
        """End the work now, unless it is over or being stored."""
        if self._timer.when() is not None and not self._timer.expired():
            self.caller_left = True
            self._timer.reschedule(asyncio.get_running_loop().time())

    def rule_out(self) -> None:
        """From now on the work goes on to its end; too late where it is being ended already."""
        if not self._timer.expired():
            self._timer.reschedule(None)


@asynccontextmanager
async def interruptible(limit_s: float) -> AsyncIterator[Interruption]:
    """Raises TimeoutError, and `happened` is true, when the block was ended early."""
    async with asyncio.timeout(limit_s) as timer:
        interruption = Interruption(timer)
        before = _current.set(interruption)
        try:
            yield interruption
        finally:
            _current.reset(before)


def begin_commit() -> None:
    """To be called before a transaction is committed, or a statement that commits is sent.

    Whether a statement that is interrupted took effect cannot be told.
    """
    interruption = _current.get()
    if interruption is not None:
        interruption.rule_out()
