"""The audit log on the real database: many append and seal at once, nothing is skipped."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from app.adapters.postgres.audit_log import PostgresAuditLog, append_event
from app.adapters.postgres.database import Database
from app.audit import log as audit_log
from app.audit.chain import ChainCheck, Seal
from app.audit.event import AuditEvent, Outcome
from app.audit.log import BATCH_EVENTS, AuditLog, EventFilter, seal_all
from app.audit.sealer import Sealer
from app.errors import ServiceError, UnavailableError


def now() -> datetime:
    return datetime.now(UTC)


def event(**members: Any) -> AuditEvent:
    usual: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "at": now(),
        "subject": "ana",
        "agent": None,
        "action": "getSnapshot",
        "outcome": Outcome.ALLOWED,
        "code": None,
        "request_id": None,
        "targets": {"project": "テスト", "count": 3},
    }
    return AuditEvent(**{**usual, **members})


@pytest.fixture
def log(database: Database) -> PostgresAuditLog:
    return PostgresAuditLog(database)


async def every_seal(log: AuditLog, tenant: str) -> list[Seal]:
    found: list[Seal] = []
    while page := await log.seals(tenant, found[-1].sequence if found else 0, 3):
        found.extend(page)
    return found


async def sealed_ids(log: AuditLog, tenant: str) -> list[str]:
    """The ids in the order of the chain, which holds."""
    check, seals = ChainCheck(tenant), await every_seal(log, tenant)
    for seal in seals:
        check.take(seal.document())
    assert check.faults == []
    return [one.id for seal in seals for one in seal.events]


async def test_an_event_reads_back_as_it_was_appended(log: PostgresAuditLog, tenant: str) -> None:
    full = event(agent="agent:x", code="repeat", request_id="r-1", outcome=Outcome.REFUSED)
    for one in (full, event(targets={})):
        await log.append(tenant, one)
        assert (await log.list_events(tenant, EventFilter(limit=1)))[0] == one


async def test_an_event_that_is_appended_again_is_there_once(
    log: PostgresAuditLog, tenant: str
) -> None:
    """A statement whose answer was lost is sent once more."""
    first = event(code="assembled")
    await log.append(tenant, first)
    await log.append(tenant, AuditEvent(**{**_members(first), "code": "repeat"}))
    assert await log.list_events(tenant, EventFilter()) == (first,)
    assert await seal_all(log, tenant, now) == 1


def _members(one: AuditEvent) -> dict[str, Any]:
    return {name: getattr(one, name) for name in AuditEvent.__slots__}


async def test_listing_goes_from_the_newest_and_pages_through_equal_times(
    log: PostgresAuditLog, tenant: str
) -> None:
    start = now()
    events = [event(at=start + timedelta(seconds=number // 3)) for number in range(10)]
    for one in events:
        await log.append(tenant, one)
    wanted = sorted(events, key=lambda one: (one.at, uuid.UUID(one.id).bytes), reverse=True)
    found: list[AuditEvent] = []
    before = None
    while page := await log.list_events(tenant, EventFilter(before=before, limit=3)):
        found.extend(page)
        before = (page[-1].at, page[-1].id)
    assert found == wanted
    since = start + timedelta(seconds=2)
    later = await log.list_events(tenant, EventFilter(since=since))
    assert list(later) == [one for one in wanted if one.at >= since]


async def test_an_empty_log_has_no_seal(log: PostgresAuditLog, tenant: str) -> None:
    assert await log.seal(tenant, now()) == 0
    assert await every_seal(log, tenant) == []


async def test_many_append_and_seal_at_once_and_nothing_is_skipped_or_sealed_twice(
    database: Database, log: PostgresAuditLog, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.adapters.postgres.audit_log.BATCH_EVENTS", 7)
    monkeypatch.setattr(audit_log, "BATCH_EVENTS", 7)
    appended: list[str] = []
    stopped = asyncio.Event()

    async def append() -> None:
        for number in range(40):
            one = event()
            if number % 2:
                await log.append(tenant, one)
            else:
                # Commits later than others that began after it.
                async with database.transaction(tenant) as (connection, key):
                    await append_event(connection, key, one)
                    await asyncio.sleep(0.002 * (number % 5))
            appended.append(one.id)

    async def seal() -> None:
        while not stopped.is_set():
            await log.seal(tenant, now())
            await asyncio.sleep(0)

    sealers = [asyncio.create_task(seal()) for _ in range(3)]
    await asyncio.gather(*(append() for _ in range(4)))
    stopped.set()
    await asyncio.gather(*sealers)
    await seal_all(log, tenant, now)
    found = await sealed_ids(log, tenant)
    assert Counter(found) == Counter(appended)
    assert len(appended) == 160
    assert len(await every_seal(log, tenant)) > 10


async def test_an_event_that_commits_late_is_sealed_later(
    database: Database, log: PostgresAuditLog, tenant: str
) -> None:
    late, early = event(), event()
    # Also in a tenant that is met for the first time.
    async with database.transaction(tenant) as (connection, key):
        await append_event(connection, key, late)
        await log.append(tenant, early)
        # Sealing waits for no open transaction.
        assert await asyncio.wait_for(seal_all(log, tenant, now), 5) == 1
        assert await sealed_ids(log, tenant) == [early.id]
    assert await seal_all(log, tenant, now) == 1
    assert await sealed_ids(log, tenant) == [early.id, late.id]


async def test_an_event_whose_transaction_fails_is_in_no_seal(
    database: Database, log: PostgresAuditLog, tenant: str
) -> None:
    async def give_up() -> None:
        async with database.transaction(tenant) as (connection, key):
            await append_event(connection, key, event())
            raise RuntimeError("given up")

    with pytest.raises(RuntimeError, match="given up"):
        await give_up()
    assert await seal_all(log, tenant, now) == 0
    assert await log.list_events(tenant, EventFilter()) == ()


async def test_appending_does_not_wait_for_a_sealer(
    database: Database, log: PostgresAuditLog, tenant: str
) -> None:
    await log.append(tenant, event())
    async with database.transaction(tenant) as (connection, key):
        lock = sa.text("SELECT pg_advisory_xact_lock(1635083380, :key)")
        await connection.execute(lock, {"key": key})
        sealing = asyncio.create_task(log.seal(tenant, now()))
        await asyncio.wait_for(log.append(tenant, event()), 5)
        _, waiting = await asyncio.wait([sealing], timeout=0.2)
        assert waiting, "the lock is not the one that sealers take"
    assert await sealing == 2


async def test_a_batch_is_bounded_and_sealing_goes_on_with_the_next(
    log: PostgresAuditLog, database: Database, tenant: str
) -> None:
    async with database.transaction(tenant) as (connection, key):
        for _ in range(BATCH_EVENTS + 5):
            await append_event(connection, key, event())
    assert await seal_all(log, tenant, now) == BATCH_EVENTS + 5
    assert [seal.count for seal in await every_seal(log, tenant)] == [BATCH_EVENTS, 5]


async def test_nothing_of_one_tenant_shows_in_anothers(
    log: PostgresAuditLog, make_tenant: Callable[[], str]
) -> None:
    mine, other = make_tenant(), make_tenant()
    for tenant in (mine, other):
        await log.append(tenant, event(subject=tenant))
        await seal_all(log, tenant, now)
    assert [one.subject for one in await log.list_events(mine, EventFilter())] == [mine]
    (seal,) = await every_seal(log, mine)
    assert (seal.sequence, [one.subject for one in seal.events]) == (1, [mine])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_events SET subject = 'bob'",
        "DELETE FROM audit_events",
        "UPDATE audit_seals SET hash = hash",
        "DELETE FROM audit_seals",
        "UPDATE audit_unsealed SET at = at",
    ],
)
async def test_the_serving_role_may_change_nothing(
    log: PostgresAuditLog, database: Database, tenant: str, change: str
) -> None:
    await log.append(tenant, event())
    with pytest.raises(ServiceError, match="42501"):
        async with database.transaction(tenant) as (connection, _):
            await connection.execute(sa.text(change))


@pytest.mark.parametrize("table", ["audit_events", "audit_seals"])
async def test_a_stray_statement_of_the_owner_is_refused(
    log: PostgresAuditLog, owner: Database, tenant: str, table: str
) -> None:
    await log.append(tenant, event())
    await log.seal(tenant, now())
    for change in (f"DELETE FROM {table}", f"TRUNCATE {table} CASCADE"):
        with pytest.raises(ServiceError, match="23001"):
            async with owner.transaction(tenant) as (connection, _):
                await connection.execute(sa.text(change))


class _Rounds:
    """The real log, counting and failing as told."""

    def __init__(self, log: PostgresAuditLog, failures: int = 0) -> None:
        self._log, self.failures = log, failures
        self.tenants: list[str] = []

    async def append(self, tenant: str, event: AuditEvent) -> None:
        await self._log.append(tenant, event)

    async def list_events(self, tenant: str, wanted: EventFilter) -> tuple[AuditEvent, ...]:
        return await self._log.list_events(tenant, wanted)

    async def seal(self, tenant: str, sealed_at: datetime) -> int:
        self.tenants.append(tenant)
        if self.failures:
            self.failures -= 1
            raise UnavailableError("The database is away.")
        return await self._log.seal(tenant, sealed_at)

    async def seals(self, tenant: str, after: int, limit: int) -> tuple[Seal, ...]:
        return await self._log.seals(tenant, after, limit)


async def test_the_sealer_seals_what_was_written_and_once_more_at_the_end(
    log: PostgresAuditLog, tenant: str
) -> None:
    others = _sealing_tasks()
    sealer = Sealer(log, interval_s=0.01, now=now)
    async with sealer.running():
        first = event()
        await log.append(tenant, first)
        sealer.wrote(tenant)
        async with asyncio.timeout(5):
            while not await every_seal(log, tenant):  # noqa: ASYNC110 -- it is the database's state
                await asyncio.sleep(0.01)
        last = event()
        await log.append(tenant, last)
        sealer.wrote(tenant)
    assert await sealed_ids(log, tenant) == [first.id, last.id]
    assert _sealing_tasks() == others


def _sealing_tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task.get_name() == "audit-sealer"}


async def test_a_sealer_whose_round_fails_takes_the_tenant_up_again(
    log: PostgresAuditLog, tenant: str
) -> None:
    rounds = _Rounds(log, failures=1)
    sealer = Sealer(rounds, interval_s=60, now=now)
    one = event()
    await log.append(tenant, one)
    sealer.wrote(tenant)
    await sealer.seal_written()
    assert await every_seal(log, tenant) == []
    await sealer.seal_written()
    assert await sealed_ids(log, tenant) == [one.id]
    await sealer.seal_written()
    assert rounds.tenants == [tenant] * 2, "a tenant with nothing to seal was asked for again"
