"""Rate limits on the real database: exact under concurrency, shared, and apart by tenant."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.adapters.postgres.rate_limits import PostgresRateLimiter
from app.config import Settings
from app.errors import UnavailableError
from app.main import create_app
from app.rate_limits import WINDOW_S, RateLimits, Usage
from tests.api.service import Api, assert_problem, question
from tests.recipes import calling
from tests.tokens import TokenFactory

PER_SUBJECT = RateLimits(per_subject=5, per_tenant=0)
PER_TENANT = RateLimits(per_subject=0, per_tenant=5)


@pytest.fixture
def limiter(database: Database) -> PostgresRateLimiter:
    return PostgresRateLimiter(database)


async def _let_time_pass(owner: Database, tenant: str, seconds: float) -> None:
    """What is held is as if it had been counted so long before."""
    async with owner.engine.connect() as connection:
        await connection.execute(sa.text("SELECT enter_tenant(:name, false)"), {"name": tenant})
        await connection.execute(
            sa.text("UPDATE rate_limits SET full_at = full_at - make_interval(secs => :passed)"),
            {"passed": seconds},
        )
        await connection.commit()


def _refused(usage: Usage) -> bool:
    return usage.refusal is not None


async def test_of_many_calls_at_once_from_two_processes_exactly_the_quota_goes_through(
    migrated: EmbeddedDatabase, limiter: PostgresRateLimiter, tenant: str
) -> None:
    elsewhere = Database(migrated.serving_url)
    both = (limiter, PostgresRateLimiter(elsewhere))
    try:
        calls = [both[n % 2].count(tenant, "ana", PER_SUBJECT) for n in range(40)]
        usages = await asyncio.gather(*calls)
    finally:
        await elsewhere.close()
    assert sum(not _refused(usage) for usage in usages) == PER_SUBJECT.per_subject


async def test_what_is_left_goes_down_by_one_and_a_refusal_says_when_to_come_back(
    limiter: PostgresRateLimiter, tenant: str
) -> None:
    remaining = []
    for _ in range(5):
        quota = (await limiter.count(tenant, "ana", PER_SUBJECT)).subject
        assert quota is not None
        remaining.append(quota.remaining)
    # What came back meanwhile is far less than one call: one takes 12 seconds.
    assert remaining == [4, 3, 2, 1, 0]
    refusal = (await limiter.count(tenant, "ana", PER_SUBJECT)).refusal
    assert refusal is not None
    assert refusal.name == "subject"
    assert 1 <= refusal.retry_after_s <= WINDOW_S / 5
    assert WINDOW_S - WINDOW_S / 5 < refusal.full_in_s <= WINDOW_S


async def test_after_the_time_that_a_refusal_names_one_call_goes_through_and_no_more(
    limiter: PostgresRateLimiter, owner: Database, tenant: str
) -> None:
    for _ in range(5):
        await limiter.count(tenant, "ana", PER_SUBJECT)
    refusal = (await limiter.count(tenant, "ana", PER_SUBJECT)).refusal
    assert refusal is not None
    await _let_time_pass(owner, tenant, refusal.retry_after_s)
    assert not _refused(await limiter.count(tenant, "ana", PER_SUBJECT))
    assert _refused(await limiter.count(tenant, "ana", PER_SUBJECT))


async def test_refused_calls_take_nothing(
    limiter: PostgresRateLimiter, owner: Database, tenant: str
) -> None:
    for _ in range(30):
        await limiter.count(tenant, "ana", PER_SUBJECT)
    await _let_time_pass(owner, tenant, WINDOW_S)
    usages = [await limiter.count(tenant, "ana", PER_SUBJECT) for _ in range(6)]
    assert [_refused(usage) for usage in usages] == [False] * 5 + [True]


async def test_time_without_calls_saves_up_no_more_than_the_quota(
    limiter: PostgresRateLimiter, owner: Database, tenant: str
) -> None:
    await limiter.count(tenant, "ana", PER_SUBJECT)
    await _let_time_pass(owner, tenant, 100 * WINDOW_S)
    usages = [await limiter.count(tenant, "ana", PER_SUBJECT) for _ in range(6)]
    assert [_refused(usage) for usage in usages] == [False] * 5 + [True]


async def test_subjects_and_tenants_have_quotas_of_their_own(
    limiter: PostgresRateLimiter, make_tenant: Callable[[], str], tenant: str
) -> None:
    for _ in range(6):
        await limiter.count(tenant, "ana", PER_SUBJECT)
    assert not _refused(await limiter.count(tenant, "bob", PER_SUBJECT))
    assert not _refused(await limiter.count(make_tenant(), "ana", PER_SUBJECT))
    assert _refused(await limiter.count(tenant, "ana", PER_SUBJECT))


async def test_all_subjects_of_a_tenant_share_its_quota_and_a_noisy_one_takes_only_its_own(
    limiter: PostgresRateLimiter, tenant: str
) -> None:
    both = RateLimits(per_subject=3, per_tenant=5)
    noisy = [await limiter.count(tenant, "ana", both) for _ in range(20)]
    assert [_refused(usage) for usage in noisy] == [False] * 3 + [True] * 17
    assert {usage.refusal.name for usage in noisy[3:] if usage.refusal} == {"subject"}
    others = [await limiter.count(tenant, name, both) for name in ("bob", "eve", "joe")]
    assert [_refused(usage) for usage in others] == [False, False, True]
    assert others[2].refusal is not None
    assert others[2].refusal.name == "tenant"


async def test_a_limit_of_the_tenant_alone_counts_all_subjects(
    limiter: PostgresRateLimiter, tenant: str
) -> None:
    usages = [await limiter.count(tenant, f"s{n}", PER_TENANT) for n in range(6)]
    assert [_refused(usage) for usage in usages] == [False] * 5 + [True]
    assert usages[0].subject is None


async def test_without_a_limit_nothing_is_stored(
    limiter: PostgresRateLimiter, owner: Database, tenant: str
) -> None:
    usage = await limiter.count(tenant, "ana", RateLimits(0, 0))
    assert list(usage.quotas()) == []
    async with owner.engine.connect() as connection:
        await connection.execute(sa.text("SELECT enter_tenant(:name, false)"), {"name": tenant})
        held = await connection.execute(sa.text("SELECT count(*) FROM rate_limits"))
        assert held.scalar_one() == 0


async def test_a_subject_is_held_as_a_digest(
    limiter: PostgresRateLimiter, owner: Database, tenant: str
) -> None:
    await limiter.count(tenant, "ana@example.com", RateLimits(1, 1))
    async with owner.engine.connect() as connection:
        await connection.execute(sa.text("SELECT enter_tenant(:name, false)"), {"name": tenant})
        held = await connection.execute(sa.text("SELECT length(who) FROM rate_limits ORDER BY who"))
        assert list(held.scalars()) == [0, 32]


async def test_a_limiter_without_its_database_says_so(unused_tcp_port: int, tmp_path: Path) -> None:
    away = Database(f"postgresql://nobody:x@127.0.0.1:{unused_tcp_port}/none", pool_timeout_s=1)
    try:
        with pytest.raises(UnavailableError):
            await PostgresRateLimiter(away).count("acme", "ana", PER_SUBJECT)
    finally:
        await away.close()


@pytest.fixture(scope="module")
async def limited(service_settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    limits = {"rate_limit_per_minute": 3, "rate_limit_per_minute_per_tenant": 5}
    app = create_app(service_settings.model_copy(update=limits))
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        calling(app) as client,
    ):
        yield client


@pytest.fixture
def limited_api(
    limited: httpx.AsyncClient, token: TokenFactory, make_tenant: Callable[[], str]
) -> Api:
    return Api(limited, token, make_tenant, make_tenant())


async def test_callers_are_told_their_limit_and_refused_beyond_it(
    limited_api: Api, client: httpx.AsyncClient, token: TokenFactory
) -> None:
    api = limited_api
    answers = [await api.post(question(None)), await api.get("/nowhere"), await api.get("/index")]
    assert [answer.status_code for answer in answers] == [201, 404, 200]
    policy = '"subject";q=3;w=60, "tenant";q=5;w=60'
    assert [answer.headers["ratelimit-policy"] for answer in answers] == [policy] * 3
    assert [answer.headers["ratelimit"].split(";t=")[0] for answer in answers] == [
        '"subject";r=2', '"subject";r=1', '"subject";r=0'
    ]  # fmt: skip
    refused = await api.post(question(None))
    assert_problem(refused, 429, "rate-limited", path="/snapshots")
    assert refused.headers["ratelimit-policy"] == policy
    assert refused.headers["ratelimit"].startswith('"subject";r=0;t=')
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    # Of what others of the tenant have left nothing is told before it runs out.
    assert [(await api.get("/index", sub=name)).status_code for name in ("bob", "eve", "joe")] == [
        200, 200, 429
    ]  # fmt: skip
    last = await api.get("/index", sub="joe")
    assert '"tenant";r=0;t=' in last.headers["ratelimit"]
    assert (await api.client.get("/healthz")).headers.get("ratelimit") is None
    unlimited = Api(client, token, api.make_tenant, api.tenant)
    assert "ratelimit" not in (await unlimited.get("/index")).headers
    [event] = [
        event
        for event in (await unlimited.read("/audit"))["events"]
        if event["subject"] == "ana" and event.get("code") == "rate-limited"
    ]
    assert (event["action"], event["outcome"]) == ("createSnapshot", "refused")


async def test_a_refused_call_s_body_is_not_read(limited_api: Api) -> None:
    for _ in range(3):
        await limited_api.get("/index")

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    answer = await limited_api.client.post(
        "/snapshots", content=never(), headers=limited_api.headers()
    )
    assert_problem(answer, 429, "rate-limited")
