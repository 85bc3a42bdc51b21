"""Idempotency-Key: one key of one subject stands for one request, and for its first snapshot."""

import asyncio
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.adapters.postgres.database import Database
from tests.api.service import Api, Json, assert_problem, question, source, source_ids

KEY = "order-41/1"
MISSING_PIN: Json = {"pins": [{"project": "booking", "sourceId": "nowhere.md"}]}


async def _post(
    api: Api, request: Json, key: str | bytes = KEY, refresh: str = "false", **claims: Any
) -> httpx.Response:
    headers: dict[str, Any] = {**api.headers(**claims), "Idempotency-Key": key}
    parameters = {"refresh": refresh}
    return await api.client.post("/snapshots", json=request, params=parameters, headers=headers)


async def _kept(owner: Database, tenant: str) -> int:
    async with owner.transaction(tenant) as (connection, key):
        counted = await connection.execute(
            sa.text("SELECT count(*) FROM idempotency_keys WHERE tenant_key = :key"), {"key": key}
        )
        return int(counted.scalar_one())


async def _hashes(api: Api) -> list[str]:
    return [one["hash"] for one in (await api.read("/snapshots"))["snapshots"]]


@pytest.mark.parametrize("refresh", ["false", "true"])
async def test_the_same_key_gives_the_first_snapshot_when_the_index_has_moved_on(
    api: Api, refresh: str
) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    first = await _post(api, asked, refresh=refresh)
    assert first.status_code == 201
    await api.index(source("b.md", "cancel an order"))
    for again in (refresh, "true", "false"):
        answer = await _post(api, asked, refresh=again)
        assert (answer.status_code, answer.content) == (200, first.content)
        assert answer.headers["location"] == first.headers["location"]
    fresh = await api.post(asked, {"refresh": "true"})
    assert sorted(source_ids(fresh.json())) == ["a.md", "b.md"]


async def test_a_refresh_under_a_key_leaves_the_repeat_of_the_request_as_it_was(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    first = await api.post(asked)
    await api.index(source("b.md", "cancel an order"))
    fresh = await _post(api, asked, refresh="true")
    assert (fresh.status_code, len(source_ids(fresh.json()))) == (201, 2)
    assert (await api.post(asked)).content == first.content
    assert (await _post(api, asked, refresh="true")).content == fresh.content


async def test_a_key_of_another_body_is_refused_and_nothing_is_stored(
    api: Api, owner: Database
) -> None:
    asked, other = question("cancel"), question("refund")
    first = await _post(api, asked)
    for refresh in ("false", "true"):
        answer = await _post(api, other, refresh=refresh)
        assert_problem(answer, 409, "idempotency-key-reused")
    assert await _hashes(api) == [first.json()["hash"]]
    assert await _kept(owner, api.tenant) == 1
    assert (await _post(api, other, "another")).status_code == 201


async def test_a_key_under_another_scope_is_refused(api: Api) -> None:
    asked = question("cancel")
    assert (await _post(api, asked, groups=["hr"])).status_code == 201
    answer = await _post(api, asked, groups=[])
    assert_problem(answer, 409, "idempotency-key-reused")


async def test_other_subjects_and_tenants_have_keys_of_their_own(api: Api) -> None:
    await _post(api, question("cancel"))
    for other, claims in ((api, {"sub": "bob"}), (api.elsewhere(), {})):
        assert (await _post(other, question("refund"), **claims)).status_code == 201


async def test_a_key_that_meets_a_repeat_stands_for_it_from_then_on(api: Api) -> None:
    asked = question("cancel")
    first = await api.post(asked)
    answer = await _post(api, asked)
    assert (answer.status_code, answer.content) == (200, first.content)
    assert_problem(await _post(api, question("refund")), 409, "idempotency-key-reused")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (MISSING_PIN, 422),
        ({"budget": {"maxTokens": 0}}, 422),
        ({"scope": {"groups": ["never-granted"]}}, 403),
    ],
    ids=["pin", "budget", "scope"],
)
async def test_a_failed_request_leaves_no_key_behind(
    api: Api, owner: Database, request_: Json, status: int
) -> None:
    assert (await _post(api, question("cancel", **request_))).status_code == status
    assert await _kept(owner, api.tenant) == 0
    assert (await _post(api, question("refund"))).status_code == 201
    assert await _kept(owner, api.tenant) == 1


@pytest.mark.parametrize(
    "key",
    ["", " ", "a b", "\t", b"\xe9", "x" * 256, b"\x7f", b"\x00"],
    ids=repr,
)
async def test_what_is_no_key_is_refused_by_name(api: Api, key: str | bytes) -> None:
    problem = assert_problem(await _post(api, question(None), key), 422, "invalid-request")
    assert [error["parameter"] for error in problem["errors"]] == ["Idempotency-Key"]
    assert "255" in problem["detail"]


@pytest.mark.parametrize("key", ["x" * 255, "!~\"',;=", "' OR '1'='1' --".replace(" ", "")])
async def test_any_visible_ascii_is_a_key(api: Api, key: str) -> None:
    asked = question(None)
    statuses = [(await _post(api, asked, key)).status_code for _ in range(2)]
    assert statuses == [201, 200]


async def test_a_key_is_given_once_only(api: Api) -> None:
    headers = [*api.headers().items(), ("Idempotency-Key", "a"), ("Idempotency-Key", "a")]
    answer = await api.client.post("/snapshots", json=question(None), headers=headers)
    problem = assert_problem(answer, 422, "invalid-request")
    assert [error["parameter"] for error in problem["errors"]] == ["Idempotency-Key"]


async def test_what_the_caller_may_no_longer_read_is_not_returned(api: Api) -> None:
    shown, low = source("a.md", "cancel"), {"max_classification": "internal"}
    await api.index(shown)
    asked = question("cancel")
    first = await _post(api, asked, **low)
    await api.index({**shown, "classification": "confidential"})
    anew = await _post(api, asked, **low)
    assert (anew.status_code, anew.json()["items"]) == (201, [])
    assert_problem(await _post(api, question("x"), **low), 409, "idempotency-key-reused")
    await api.index(shown)
    back = await _post(api, asked, **low)
    assert (back.status_code, back.content) == (200, first.content)


@pytest.mark.parametrize("refresh", ["false", "true"])
async def test_twenty_calls_at_once_with_one_key_make_one_snapshot(
    api: Api, owner: Database, refresh: str
) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    answers = await asyncio.gather(*(_post(api, asked, refresh=refresh) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.content for answer in answers}) == 1
    assert await _hashes(api) == [answers[0].json()["hash"]]
    assert await _kept(owner, api.tenant) == 1


async def test_of_two_bodies_at_once_under_one_key_one_is_stored(api: Api, owner: Database) -> None:
    bodies = [question("cancel"), question("refund")] * 10
    answers = await asyncio.gather(*(_post(api, one) for one in bodies))
    done = [answer for answer in answers if answer.status_code != 409]
    assert sorted(answer.status_code for answer in done) == [200] * 9 + [201]
    assert len({answer.content for answer in done}) == 1
    for answer in answers:
        if answer not in done:
            assert_problem(answer, 409, "idempotency-key-reused")
    assert await _hashes(api) == [done[0].json()["hash"]]
    assert await _kept(owner, api.tenant) == 1


async def test_calls_at_once_with_and_without_keys_make_one_snapshot(
    api: Api, owner: Database
) -> None:
    asked = question("cancel")
    calls = [_post(api, asked, f"key-{at % 4}") for at in range(12)]
    answers = await asyncio.gather(*calls, *(api.post(asked) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.content for answer in answers}) == 1
    assert len(await _hashes(api)) == 1
    assert await _kept(owner, api.tenant) == 4
