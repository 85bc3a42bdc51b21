"""The index as it was: `asOf`, under the labels of then and of now."""

from typing import Any

import pytest

from tests.api.service import Api, Json, assert_problem, question, source, source_ids

LOW: Json = {"max_classification": "internal", "scope": "snapshots:assemble snapshots:read"}


def _as_of(snapshot: Json, query: str = "cancel", **members: Any) -> Json:
    return question(query, asOf={"snapshot": snapshot["hash"]}, **members)


async def test_a_snapshot_of_the_past_has_what_was_there(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"), source("b.md", "cancel an order"))
    first = await api.assemble(question("cancel"))
    await api.index(source("a.md", "refund a booking", sourceRevision="2"))
    await api.index(source("c.md", "cancel everything"))
    await api.delete("booking", "b.md")
    assert source_ids(await api.assemble(question("cancel"))) == ["c.md"]
    for ref in (first["hash"], first["snapshotId"], first["snapshotId"].upper()):
        past = await api.assemble(question("cancel", asOf={"snapshot": ref}))
        assert past["items"] == first["items"]
        assert past["exclusions"] == first["exclusions"]


async def test_a_pin_of_the_past_is_the_revision_of_then(api: Api) -> None:
    pins = [{"project": "booking", "sourceId": "a.md"}]
    await api.index(source("a.md", "one"))
    first = await api.assemble(question(None, pins=pins))
    await api.index(source("a.md", "two", sourceRevision="2"))
    past = await api.assemble({**_as_of(first), "query": "x", "pins": pins})
    assert past["items"] == first["items"]


async def test_what_is_hidden_now_is_not_shown_by_the_past_nor_counted_in_it(api: Api) -> None:
    """As if the source had not been there: texts, ranking, fingerprints and languages."""
    kept = [
        source("a.md", "cancel a booking and the order"),
        source("b.md", "cancel cancel", language="en"),
    ]
    raised = source("secret.md", "cancel order order", language="de")
    pin = {"project": "booking", "sourceId": "secret.md", "required": False}
    answers = []
    for with_secret in (True, False):
        there = api.elsewhere()
        await there.index(source("empty.md", "nothing"))
        before = await there.assemble(question("nothing", pins=[]), **LOW)
        await there.index(*kept)
        if with_secret:
            await there.index(raised)
        privileged = await there.assemble(question("nothing"))
        await there.index(source("later.md", "cancel later"))
        if with_secret:
            await there.index({**raised, "classification": "restricted"})
        asked = _as_of(privileged, "cancel order", pins=[pin])
        past = await there.assemble(asked, **LOW)
        assert source_ids(past) == ["a.md", "b.md"]
        assert before["items"]
        answers.append((past["items"], past["exclusions"]))
    assert answers[0] == answers[1]


async def test_what_was_hidden_then_stays_hidden_though_it_is_admitted_now(api: Api) -> None:
    await api.index(source("a.md", "cancel", classification="restricted"))
    await api.index(source("b.md", "cancel"))
    first = await api.assemble(question("cancel"), **LOW)
    await api.index(source("a.md", "cancel", classification="internal", sourceRevision="2"))
    past = await api.assemble(_as_of(first), **LOW)
    assert source_ids(past) == ["b.md"]


async def test_a_snapshot_that_cannot_be_read_is_answered_like_an_unknown_one(api: Api) -> None:
    await api.index(source("a.md", "cancel", classification="restricted"))
    secret = await api.assemble(question("cancel"))
    unknown = "sha256:" + "0" * 64
    answers = []
    for ref in (secret["hash"], secret["snapshotId"], unknown):
        answer = await api.post(question("cancel", asOf={"snapshot": ref}), **LOW)
        problem = assert_problem(answer, 422, "as-of-unavailable", "/asOf/snapshot")
        del problem["requestId"]
        answers.append(problem)
    assert answers[0] == answers[1] == answers[2]


async def test_a_version_needs_the_right_to_write_and_has_to_be_kept(api: Api) -> None:
    await api.index(source("a.md", "cancel"))
    version = await api.index_version()
    await api.index(source("a.md", "refund", sourceRevision="2"))
    past = await api.assemble(question("cancel", asOf={"indexVersion": version}))
    assert [one["sourceRevision"] for one in past["items"]] == ["1"]
    nothing = await api.assemble(question("cancel", asOf={"indexVersion": 0}))
    assert nothing["items"] == []
    asked = question("cancel", asOf={"indexVersion": version + 9})
    assert_problem(await api.post(asked), 422, "version-not-kept", "/asOf")
    refused = await api.post(question("cancel", asOf={"indexVersion": version}), **LOW)
    assert_problem(refused, 403, "permission-missing", "/asOf/indexVersion")


@pytest.mark.parametrize(
    "as_of",
    [
        {},
        {"snapshot": None},
        {"snapshot": "x"},
        {"snapshot": "sha256:" + "0" * 64, "indexVersion": 1},
        {"indexVersion": -1},
        {"indexVersion": "1"},
        {"indexVersion": True},
        {"time": "2026-01-01T00:00:00Z"},
        "sha256:" + "0" * 64,
    ],
)
async def test_anything_else_is_refused(api: Api, as_of: Any) -> None:
    answer = await api.post(question("cancel", asOf=as_of))
    assert_problem(answer, 422, "invalid-request")
