"""Freshness over HTTP: recipes of a folder, heads and expiry, at an evaluation time."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api.parts import Parts
from tests.api.service import Api, Json, question, source, source_ids
from tests.recipes import calling

NOW = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
NEWER = "a newer revision 2 is known"
EXPIRED = "expired at 2026-01-31T09:30:00Z"
POLICIES = ("allow", "prefer-fresh", "exclude")
RECIPES = {
    f"{policy}-stale": f"retrievers: [{{name: lexical}}]\nfreshness: {{stale: {policy}}}"
    for policy in POLICIES
}
AT: list[datetime] = [NOW]
"""The clock of the service: what it gives is the evaluation time."""


@pytest.fixture(scope="module")
def timed(running: FastAPI) -> FastAPI:
    parts: Parts = running.state.parts
    running.state.parts = replace(parts, now=lambda: AT[0])
    return running


@pytest.fixture
def clock() -> Iterator[Callable[[datetime], None]]:
    """Sets the evaluation time of one test."""
    AT[0] = NOW
    yield lambda at: AT.__setitem__(0, at)
    AT[0] = NOW


@pytest.fixture
async def client(timed: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(timed) as opened:
        yield opened


async def put_head(api: Api, source_id: str, revision: str = "2") -> None:
    one = {"project": "booking", "sourceId": source_id, "sourceRevision": revision}
    answer = await api.client.put("/sources/heads", json={"heads": [one]}, headers=api.headers())
    assert answer.status_code == 200, answer.text


def asked(policy: str, query: str | None = "cancel", **members: Any) -> Json:
    return question(query, strategy=f"{policy}-stale", **members)


def left_out(snapshot: Json) -> list[tuple[str, str, str]]:
    return [(one["sourceId"], one["reason"], one["detail"]) for one in snapshot["exclusions"]]


async def freshness_of(api: Api, snapshot: Json) -> Json:
    report = (await api.read(f"/snapshots/{snapshot['hash']}/report"))["report"]
    return dict(report["freshness"])


async def index_old_and_new(api: Api) -> None:
    """The stale ones are the best hits: `old` by its head, `expired` by this very instant."""
    await api.index(
        source("old", "cancel cancel"),
        source("expired", "cancel cancel now", expiresAt=NOW.isoformat()),
        source("fresh", "cancel a booking of today"),
        source("lasting", "cancel an order of today too", expiresAt=(NOW + INSTANT).isoformat()),
    )
    await put_head(api, "old")
    await put_head(api, "fresh", "1")


@pytest.mark.parametrize(
    ("policy", "items", "exclusions"),
    [
        ("allow", ["old", "expired", "fresh", "lasting"], []),
        ("prefer-fresh", ["fresh", "lasting", "old", "expired"], []),
        (
            "exclude",
            ["fresh", "lasting"],
            [("old", "stale", NEWER), ("expired", "stale", EXPIRED)],
        ),
    ],
)
async def test_a_strategy_says_what_becomes_of_what_is_stale(
    api: Api, policy: str, items: list[str], exclusions: list[tuple[str, str, str]]
) -> None:
    await index_old_and_new(api)
    snapshot = await api.assemble(asked(policy))
    assert source_ids(snapshot) == items
    assert left_out(snapshot) == exclusions
    assert await freshness_of(api, snapshot) == {"policy": policy, "stale": 2}
    verified = await api.read(f"/snapshots/{snapshot['hash']}/verify")
    assert verified["ok"], verified


async def test_a_source_expires_as_time_goes_by(
    api: Api, clock: Callable[[datetime], None]
) -> None:
    await api.index(source("a.md", "cancel", expiresAt=NOW.isoformat()))
    request = asked("exclude")
    clock(NOW - INSTANT)
    before = await api.assemble(request)
    assert source_ids(before) == ["a.md"]
    clock(NOW)
    repeated = await api.post(request)
    assert (repeated.status_code, repeated.json()["hash"]) == (200, before["hash"])
    anew = await api.post(request, {"refresh": "true"})
    assert anew.status_code == 201
    assert left_out(anew.json()) == [("a.md", "stale", EXPIRED)]


async def test_a_head_is_seen_by_a_new_snapshot_and_not_by_a_repeat(api: Api) -> None:
    await api.index(source("a.md", "cancel"))
    request = asked("exclude")
    before = await api.assemble(request)
    await put_head(api, "a.md")
    repeated = await api.post(request)
    assert (repeated.status_code, repeated.json()) == (200, before)
    anew = (await api.post(request, {"refresh": "true"})).json()
    assert left_out(anew) == [("a.md", "stale", NEWER)]
    await api.index(source("a.md", "cancel", sourceRevision="2"))
    renewed = (await api.post(request, {"refresh": "true"})).json()
    assert [one["sourceRevision"] for one in renewed["items"]] == ["2"]


async def test_heads_of_other_sources_change_nothing(api: Api) -> None:
    """Unknown ones, those of another project, and those that the caller does not see."""
    await api.index(
        source("a.md", "cancel"),
        source("a.md", "cancel", project="billing"),
        source("hidden", "cancel", classification="restricted"),
    )
    request = asked("exclude")
    caller: Json = {"projects": ["booking"], "max_classification": "internal"}
    before = await api.post(request, **caller)
    for name, project in (("unknown", "booking"), ("hidden", "booking"), ("a.md", "billing")):
        one = {"project": project, "sourceId": name, "sourceRevision": "2"}
        await api.client.put("/sources/heads", json={"heads": [one]}, headers=api.headers())
    after = await api.post(request, {"refresh": "true"}, **caller)
    assert (after.status_code, after.content) == (200, before.content)


async def test_a_pinned_source_stays_and_the_report_tells(api: Api) -> None:
    await index_old_and_new(api)
    pins = [{"project": "booking", "sourceId": "old"}]
    snapshot = await api.assemble(asked("exclude", pins=pins))
    assert source_ids(snapshot) == ["old", "fresh", "lasting"]
    assert left_out(snapshot) == [("expired", "stale", EXPIRED)]
    assert await freshness_of(api, snapshot) == {
        "policy": "exclude",
        "stale": 2,
        "pinned": [{"project": "booking", "sourceId": "old", "chunkId": "0", "detail": NEWER}],
    }


async def test_an_explanation_names_the_stage(api: Api) -> None:
    await index_old_and_new(api)
    snapshot = await api.assemble(asked("exclude"))
    path = f"/snapshots/{snapshot['hash']}/explain"
    stages = (await api.read(path, {"project": "booking", "sourceId": "old"}))["stages"]
    assert stages[-1] == {
        "stage": "freshness",
        "outcome": "stale",
        "detail": f"chunk 0: {NEWER}",
    }


async def test_a_snapshot_with_stale_sources_is_assembled_again_as_it_was(
    api: Api, clock: Callable[[datetime], None]
) -> None:
    """From its own evaluation time, and from the heads of its index version."""
    await index_old_and_new(api)
    made = [await api.assemble(asked(policy)) for policy in POLICIES]
    clock(NOW + timedelta(days=400))
    await put_head(api, "fresh", "7")
    await put_head(api, "old", "1")
    for one in made:
        answer = await api.client.post(f"/snapshots/{one['hash']}/replay", headers=api.headers())
        assert answer.json() == {"match": True, "hash": one["hash"]}


async def test_the_index_as_it_was_has_the_heads_of_then(api: Api) -> None:
    await api.index(source("a.md", "cancel"))
    first = await api.assemble(asked("exclude"))
    await put_head(api, "a.md")
    past = await api.assemble(asked("exclude", asOf={"snapshot": first["hash"]}))
    assert (source_ids(past), left_out(past)) == (["a.md"], [])
    assert past["items"][0]["indexVersion"] == first["items"][0]["indexVersion"]
    present = await api.assemble(asked("exclude"))
    assert left_out(present) == [("a.md", "stale", NEWER)]


async def test_who_sees_that_a_source_is_stale_sees_another_version(api: Api) -> None:
    await api.index(source("a.md", "cancel"))
    before = await api.assemble(asked("allow"))
    await put_head(api, "a.md")
    after = await api.assemble(asked("allow"))
    versions = {one["items"][0]["indexVersion"] for one in (before, after)}
    assert versions >= {f"lexical:{await api.visible_version()}"}
    assert len(versions) == 2
