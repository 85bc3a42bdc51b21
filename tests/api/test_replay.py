"""Replay: the same hash from what was stored, or the first stage that differs and why."""

import json
from dataclasses import replace
from typing import Any, Never

import pytest

from app.adapters.postgres.database import Database
from app.api.parts import Parts
from app.errors import RetrieverUnavailableError, UnavailableError
from app.replay import replay
from app.retrieval.expansion import ExpansionRules, Seeds
from app.retrieval.retriever import ScopedQuery
from app.scope.claims import ClaimNames, grant_from_claims
from app.snapshot.assembly import ASSEMBLY_VERSION
from app.storage.snapshots import StoredSnapshot
from tests.api.service import Api, Json, assert_problem, chunks, item, question, source


async def _replay(api: Api, snapshot: Json, **claims: Any) -> Json:
    path = f"/snapshots/{snapshot['hash']}/replay"
    answer = await api.client.post(path, headers=api.headers(**claims))
    assert answer.status_code == 200, answer.text
    document: Json = answer.json()
    return document


async def test_a_snapshot_comes_out_again_after_the_index_has_moved_on(api: Api) -> None:
    await api.index(
        source("a.md", chunks=chunks("cancel a booking", "refund a booking")),
        source("b.md", "cancel an order", acl={"allow": ["group:eng"]}),
        source("c.md", "cancel", classification="restricted"),
    )
    pins = [
        {"project": "booking", "sourceId": "a.md"},
        {"project": "booking", "sourceId": "c.md", "required": False},
        {"project": "booking", "sourceId": "unknown", "required": False},
    ]
    asked = question(
        "cancel booking",
        items=[item("task:1", "Do it."), item("task:2", "x", classification="confidential")],
        pins=pins,
        scope={"maxClassification": "internal", "sources": {"deny": ["z*"]}},
        budget={"maxTokens": 900, "format": "messages", "encoding": "cl100k_base"},
    )
    made = [
        await api.assemble(asked, groups=["eng"]),
        await api.assemble(asked, groups=["eng"], scope="snapshots:assemble snapshots:read"),
        await api.assemble(question("refund")),
        await api.assemble(question(None)),
    ]
    assert len({one["hash"] for one in made}) == 4
    await api.index(source("a.md", "something else", sourceRevision="2"))
    await api.index(source("d.md", "cancel booking cancel booking"))
    await api.delete("booking", "b.md")
    for one in made:
        assert await _replay(api, one, groups=["eng"]) == {"match": True, "hash": one["hash"]}


async def test_a_snapshot_of_the_past_comes_out_again_too(api: Api) -> None:
    """Also where a source that its view left out has another label by now."""
    await api.index(source("a.md", "cancel"), source("b.md", "cancel cancel"))
    first = await api.assemble(question("cancel"))
    await api.index(source("b.md", "cancel cancel", classification="restricted"))
    low: Json = {"max_classification": "internal"}
    past = await api.assemble(question("cancel", asOf={"snapshot": first["hash"]}))
    assert len(past["items"]) == 2
    readable = await api.assemble(question("nothing at all"), **low)
    narrow = question("cancel", scope={"maxClassification": "internal"})
    narrowed = await api.assemble({**narrow, "asOf": {"snapshot": first["hash"]}})
    assert len(narrowed["items"]) == 1
    await api.index(source("b.md", "cancel cancel", classification="public"))
    for one in (past, readable, narrowed):
        assert await _replay(api, one) == {"match": True, "hash": one["hash"]}


async def test_nothing_is_stored_and_the_call_is_in_the_audit_log(api: Api) -> None:
    await api.index(source("a.md", "cancel"))
    made = await api.assemble(question("cancel"))
    await _replay(api, made)
    listed = await api.read("/snapshots")
    assert [one["hash"] for one in listed["snapshots"]] == [made["hash"]]
    events = (await api.read("/audit"))["events"]
    assert "replaySnapshot" in {one["action"] for one in events}


async def test_who_may_not_replay(api: Api) -> None:
    await api.index(source("a.md", "cancel", classification="restricted"))
    made = await api.assemble(question("cancel"))
    path = f"/snapshots/{made['hash']}/replay"

    async def answer(**claims: Any) -> Any:
        return await api.client.post(path, headers=api.headers(**claims))

    assert_problem(await answer(scope="snapshots:read"), 403, "permission-missing")
    assert_problem(await answer(max_classification="internal"), 404, "not-found")


async def test_a_difference_names_its_stage_and_the_reason(api: Api, owner: Database) -> None:
    """What the service never does, the owner does here: a text goes, a version is given up."""
    await api.index(source("a.md", "cancel"), source("b.md", "cancel an order"))
    made = await api.assemble(question("cancel"))
    async with owner.transaction(api.tenant) as (connection, key):
        await connection.exec_driver_sql(
            "DELETE FROM source_contents WHERE tenant_key = $1 AND source_id = 'b.md'", (key,)
        )
    found = await _replay(api, made)
    assert (found["match"], found["firstDifference"]["stage"]) == (False, "retrieval:lexical")
    assert found["firstDifference"]["reason"].startswith("unknown")
    async with owner.transaction(api.tenant) as (connection, key):
        await connection.exec_driver_sql(
            "UPDATE source_versions SET erased = true WHERE tenant_key = $1 AND source_id = 'b.md'",
            (key,),
        )
    found = await _replay(api, made)
    assert found["firstDifference"]["reason"].startswith("content erased")
    async with owner.transaction(api.tenant) as (connection, key):
        await connection.exec_driver_sql(
            "UPDATE tenants SET oldest_version = index_version + 1 WHERE tenant_key = $1", (key,)
        )
    found = await _replay(api, made)
    assert found["firstDifference"]["stage"] == "index"
    assert found["firstDifference"]["reason"].startswith("index compacted")


async def test_after_an_upgrade_the_engine_is_the_reason(api: Api, parts: Parts) -> None:
    await api.index(source("a.md", "cancel"))
    stored = await _stored(api, parts, await api.assemble(question("cancel")))
    assert stored.engine.endswith(f", assembly {ASSEMBLY_VERSION}")
    found = await replay(replace(parts.services, engine="a later one"), stored)
    reason = f"engine upgraded: it was {stored.engine}, and is a later one"
    assert (found.stage, found.reason) == ("report", reason)


class _Silent:
    """A graph that gives no answer."""

    async def neighbours(self, query: ScopedQuery, seeds: Seeds, rules: ExpansionRules) -> Never:
        raise UnavailableError("not now")


async def _stored(api: Api, parts: Parts, snapshot: Json) -> StoredSnapshot:
    claims: Json = {"tenant_id": api.tenant, "sub": "ana", "projects": ["*"]}
    grant = grant_from_claims({**claims, "max_classification": "internal"}, ClaimNames())
    return await parts.reader.get(grant, snapshot["hash"])


async def test_a_leg_that_gives_no_answer_now_is_no_difference(api: Api, parts: Parts) -> None:
    await api.index(source("a.md", "cancel", links=["b.md"]), source("b.md", "a neighbour"))
    made = await api.assemble(question("cancel", strategy="code"))
    stored = await _stored(api, parts, made)
    with pytest.raises(RetrieverUnavailableError, match="graph gave no answer"):
        await replay(replace(parts.services, graph=_Silent()), stored)


@pytest.mark.parametrize(
    ("changed", "stage"),
    [
        ({"later": True}, "strategy"),
        ({"budget": {"encoding": "gone_base"}}, "strategy"),
        ({"budget": {"maxTokens": 2, "reservedForOutput": 1}}, "packing"),
    ],
)
async def test_what_this_version_does_not_take_any_more_is_a_difference(
    api: Api, parts: Parts, changed: Json, stage: str
) -> None:
    """As another version could have stored it."""
    made = await api.assemble(question(None, items=[item("task:1", "Do it.")]))
    stored = await _stored(api, parts, made)
    report = json.loads(stored.report)
    report["strategy"] |= changed
    found = await replay(parts.services, replace(stored, report=json.dumps(report).encode()))
    assert (found.hash, found.stage) == (None, stage)
