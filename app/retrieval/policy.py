"""What the service allows a retriever outside of its own database.

Guarantees: a backend that does not apply each part of a scope is never asked; no more calls
are under way at once than its policy says; after some failures in a row it is left alone for a
while, and then tried with one call. A call that is refused here is that leg's failure.

Not handled: trying again, which is the adapter's, and the deadline, which is the caller's
(`fan_out`). State is of one process.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import ConfigurationError, RetrieverUnavailableError
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import SCOPE_PARTS, ExternalBackend, ScopedQuery

_CLOCK_S = 0.001
"""A timer may fire this much early."""


@dataclass(frozen=True, slots=True)
class RetrieverPolicy:
    """`breaker_failures` in a row open the breaker for `breaker_reset_s`."""

    concurrency: int = 16
    breaker_failures: int = 5
    breaker_reset_s: float = 30.0


class GuardedRetriever:
    """Implements `retrieval.retriever.Retriever`: a backend under its policy.

    `now` is the event loop's time, by which deadlines are too.
    """

    def __init__(
        self, backend: ExternalBackend, policy: RetrieverPolicy, now: Callable[[], float]
    ) -> None:
        self._backend = backend
        self._now = now
        self._slots = asyncio.Semaphore(policy.concurrency)
        self._breaker = _Breaker(policy)
        self._applies_scope = False

    @property
    def name(self) -> str:
        return self._backend.name

    async def check_scope(self) -> None:
        """Ask once what the backend filters by.

        Raises ConfigurationError where that is not the whole scope, and UnavailableError where
        the backend gives no answer: it is asked again before the first query.
        """
        missing = [part for part in SCOPE_PARTS if part not in await self._backend.filters()]
        if missing:
            raise ConfigurationError(
                f"The retriever {self.name} cannot be used: its backend does not filter by "
                f"{', '.join(missing)} while it searches."
            )
        self._applies_scope = True

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        if query.recorded is not None:
            # A replay asks nobody: it must not fail because the backend is away.
            return await self._backend.retrieve(query)
        now = self._now
        async with self._slots:
            self._breaker.refuse_while_open(self.name, now())
            try:
                if not self._applies_scope:
                    await self.check_scope()
                answer = await self._backend.retrieve(query)
            except Exception:
                self._breaker.failed(now())
                raise
            except asyncio.CancelledError:
                # Whoever gave up earlier says nothing about the backend.
                if _is_late(query, now):
                    self._breaker.failed(now())
                raise
            self._breaker.succeeded()
            return answer


def _is_late(query: ScopedQuery, now: Callable[[], float]) -> bool:
    return query.deadline is not None and now() >= query.deadline - _CLOCK_S


class _Breaker:
    """Closed until too many calls in a row have failed; times are those of the event loop."""

    def __init__(self, policy: RetrieverPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._opens_at: float | None = None

    def refuse_while_open(self, name: str, now: float) -> None:
        if self._opens_at is None:
            return
        if now < self._opens_at:
            raise RetrieverUnavailableError(
                f"The retriever {name} failed repeatedly, and is left alone for a while.",
                retry_after_s=math.ceil(self._opens_at - now),
            )
        # This call is the trial; the others go on being refused until it has an answer.
        self._opens_at = now + self._policy.breaker_reset_s

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._failures >= self._policy.breaker_failures:
            self._opens_at = now + self._policy.breaker_reset_s

    def succeeded(self) -> None:
        self._failures, self._opens_at = 0, None
