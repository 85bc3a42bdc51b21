"""Rate limits of subjects and tenants: the generic cell rate algorithm (ITU-T I.371).

Each call takes an equal part of a window of a minute; the whole quota may be used at once,
and comes back evenly. A refused call takes nothing, but where the tenant's limit refuses it,
it counts for its subject.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

WINDOW_S = 60
_WINDOW_US = WINDOW_S * 1_000_000


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Calls a minute; 0 is no limit."""

    per_subject: int
    per_tenant: int

    @property
    def exist(self) -> bool:
        return self.per_subject > 0 or self.per_tenant > 0


@dataclass(frozen=True, slots=True)
class Quota:
    """What one call met: `full_in_us` microseconds from now the whole quota is there again."""

    name: str
    calls: int
    full_in_us: int
    refused: bool

    @property
    def remaining(self) -> int:
        """Calls that may follow at once."""
        left_us = 0 if self.refused else max(0, _WINDOW_US - self.full_in_us)
        return left_us * self.calls // _WINDOW_US

    @property
    def full_in_s(self) -> int:
        return _whole_seconds(self.full_in_us)

    @property
    def retry_after_s(self) -> int:
        """Seconds until a refused call would be let through; at least 1."""
        return max(1, _whole_seconds(self.full_in_us + _WINDOW_US // self.calls - _WINDOW_US))


@dataclass(frozen=True, slots=True)
class Usage:
    """The quotas of one call's subject and tenant; None for those that do not exist."""

    subject: Quota | None
    tenant: Quota | None

    @property
    def refusal(self) -> Quota | None:
        return next((quota for quota in self.quotas() if quota.refused), None)

    def quotas(self) -> Iterator[Quota]:
        yield from (quota for quota in (self.subject, self.tenant) if quota is not None)


class RateLimiter(Protocol):
    """Counts calls, together for all processes of the service."""

    async def count(self, tenant: str, subject: str, limits: RateLimits) -> Usage:
        """Count one call, if it may go on; UnavailableError when that cannot be told."""
        ...


def _whole_seconds(microseconds: int) -> int:
    return -(-microseconds // 1_000_000)
