"""What the audit log costs, and whether sealing it slows those who append.

Many callers append to one tenant's log of an embedded database with its usual settings, in
turns with nobody sealing and with two sealers at work all the time. Run it with
`python -m bench.audit`.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from uuid import uuid4

from app.adapters.postgres.audit_log import PostgresAuditLog
from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import SERVING_ROLE, start_embedded
from app.adapters.postgres.schema import migrate
from app.audit.event import AuditEvent, Outcome
from app.audit.log import seal_all

TENANT = "bench"
_CALLERS = 16
_SEALERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one turn")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ctxsnap-bench-") as folder,
        start_embedded(Path(folder)) as server,
    ):
        asyncio.run(migrate(server.database.owner_url, serving_role=SERVING_ROLE))
        asyncio.run(_measure(server.database.serving_url, options.turns, options.seconds))


async def _measure(url: str, turns: int, turn_s: float) -> None:
    appending, sealing = Database(url, pool_size=_CALLERS), Database(url, pool_size=_SEALERS)
    log, sealers = PostgresAuditLog(appending), PostgresAuditLog(sealing)
    alone, beside, latencies_ms = list[float](), list[float](), list[float]()
    await _appends(log, 1.0)
    await seal_all(sealers, TENANT, _now)
    for _ in range(turns):
        found = await _appends(log, turn_s)
        alone.append(len(found) / turn_s)
        latencies_ms.extend(found)
        tasks = [asyncio.create_task(_seal_on(sealers)) for _ in range(_SEALERS)]
        beside.append(len(await _appends(log, turn_s)) / turn_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    begun = time.perf_counter()
    left = await seal_all(sealers, TENANT, _now)
    rate = left / (time.perf_counter() - begun)
    _print(alone, beside, latencies_ms)
    print(f"sealing alone: {rate:,.0f} events a second ({left:,} were left)")
    await appending.close()
    await sealing.close()


async def _appends(log: PostgresAuditLog, turn_s: float) -> list[float]:
    """Milliseconds of each append that all callers made within the time."""
    found, ends = list[float](), time.perf_counter() + turn_s

    async def call() -> None:
        while (begun := time.perf_counter()) < ends:
            await log.append(TENANT, _event())
            found.append((time.perf_counter() - begun) * 1000)

    await asyncio.gather(*(call() for _ in range(_CALLERS)))
    return found


async def _seal_on(log: PostgresAuditLog) -> None:
    while True:
        await seal_all(log, TENANT, _now)
        await asyncio.sleep(0.05)


def _event() -> AuditEvent:
    return AuditEvent(
        id=str(uuid4()),
        at=_now(),
        subject="ana",
        agent="agent:planner",
        action="getSnapshot",
        outcome=Outcome.ALLOWED,
        code=None,
        request_id=str(uuid4()),
        targets={"snapshot": "sha256:" + "0" * 64, "ref": "sha256:" + "0" * 64},
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _print(alone: Sequence[float], beside: Sequence[float], latencies_ms: Sequence[float]) -> None:
    ratio = median(beside) / median(alone)
    print(f"appends a second, {_CALLERS} callers, one tenant: {median(alone):,.0f} alone, ", end="")
    print(f"{median(beside):,.0f} beside {_SEALERS} sealers: ratio {ratio:.2f}")
    p95 = quantiles(latencies_ms, n=20)[-1]
    print(f"one append, alone: p50 {median(latencies_ms):.1f} ms, p95 {p95:.1f} ms")


if __name__ == "__main__":
    main()
