"""What has to hold before requests are taken."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readiness:
    """One condition; `detail` says what was found, and what to do where it does not hold."""

    name: str
    ok: bool
    detail: str
