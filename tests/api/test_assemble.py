"""Assembling: answers, repeats, inline items, pins and what a scope takes away."""

import asyncio
import re
import uuid

import pytest

from app.api.snapshot_examples import CREATE_SNAPSHOT_EXAMPLES
from tests.api.service import (
    Api,
    Json,
    assert_problem,
    item,
    question,
    source,
    source_ids,
)

PIN = {"project": "booking", "sourceId": "a.md"}


async def test_a_new_snapshot_is_201_and_a_repeat_is_200_with_the_same_bytes(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    first, second = await api.post(asked), await api.post(asked)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.content == first.content
    digest = first.json()["hash"]
    for answer in (first, second):
        assert answer.headers["location"] == f"/snapshots/{digest}"
        assert answer.headers["etag"] == f'"{digest}"'
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "private, no-cache"
        assert answer.headers["vary"] == "Accept, Authorization"
        assert "snapshot-degraded" not in answer.headers
    assert (await api.get(first.headers["location"])).content == first.content


async def test_a_snapshot_says_what_it_was_made_of(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking", provenance="git:abc"))
    asked = question(
        "cancel",
        stepId=str(uuid.uuid4()),
        budget={"maxTokens": 2000, "reservedForOutput": 100, "encoding": "cl100k_base"},
    )
    claims: Json = {"act": {"sub": "agent-7"}, "groups": ["ops", "eng"]}
    snapshot = await api.assemble(asked, **claims)
    assert {name: snapshot[name] for name in ("runId", "stepId", "attemptId")} == {
        name: asked[name] for name in ("runId", "stepId", "attemptId")
    }
    scope = snapshot["scope"]
    assert (scope["tenantId"], scope["subject"], scope["agentId"]) == (api.tenant, "ana", "agent-7")
    assert (scope["projects"], scope["groups"]) == (["*"], ["eng", "ops"])
    assert snapshot["strategy"] == "default@1"
    budget = snapshot["budget"]
    assert (budget["maxTokens"], budget["reservedForOutput"]) == (2000, 100)
    assert (budget["encoding"], budget["format"]) == ("cl100k_base", "text")
    assert budget["assembly"]["degraded"] == []
    [one] = snapshot["items"]
    assert one["indexVersion"] == f"lexical:{await api.visible_version()}"
    assert (one["project"], one["sourceRevision"], one["rank"]) == ("booking", "1", 1)
    assert one["provenance"] == "git:abc"
    assert budget["usedTokens"] == one["tokens"] > 0


async def test_a_repeat_survives_changes_of_the_index_and_refresh_sees_them(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    first = await api.post(asked)
    same = await api.post(asked, {"refresh": "true"})
    assert (same.status_code, same.content) == (200, first.content)
    await api.index(source("b.md", "cancel an order"))
    repeat = await api.post(asked)
    assert (repeat.status_code, repeat.content) == (200, first.content)
    fresh = await api.post(asked, {"refresh": "true"})
    assert fresh.status_code == 201
    assert sorted(source_ids(fresh.json())) == ["a.md", "b.md"]
    again = await api.post(asked)
    assert again.content == first.content


async def test_other_callers_get_no_repeat_that_is_not_theirs(api: Api) -> None:
    await api.index(
        source("a.md", "cancel"), source("hr.md", "cancel pay", acl={"allow": ["group:hr"]})
    )
    asked = question("cancel")
    with_group = await api.post(asked, groups=["hr"])
    assert sorted(source_ids(with_group.json())) == ["a.md", "hr.md"]
    others: list[Json] = [{"groups": []}, {"sub": "bob"}, {"act": {"sub": "agent"}}]
    for claims in others:
        answer = await api.post(asked, **claims)
        assert answer.status_code == 201, claims
        assert source_ids(answer.json()) == ["a.md"]
    narrowed = await api.post({**asked, "scope": {"groups": []}}, groups=["hr"])
    assert (narrowed.status_code, source_ids(narrowed.json())) == (201, ["a.md"])
    again = await api.post(asked, groups=["hr"])
    assert (again.status_code, again.content) == (200, with_group.content)


async def test_members_in_another_order_and_ids_in_another_case_are_the_same_request(
    api: Api,
) -> None:
    asked = question("cancel", scope={"projects": ["b", "a"], "groups": []})
    first = await api.post(asked)
    turned = {name: asked[name] for name in reversed(asked)}
    turned["runId"] = turned["runId"].upper()
    turned["scope"] = {"groups": [], "projects": ["a", "b", "a"]}
    again = await api.post(turned)
    assert (again.status_code, again.content) == (200, first.content)


@pytest.mark.parametrize("refresh", ["false", "true"])
async def test_twenty_calls_at_once_make_one_snapshot(api: Api, refresh: str) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    answers = await asyncio.gather(*(api.post(asked, {"refresh": refresh}) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.content for answer in answers}) == 1
    listed = (await api.read("/snapshots"))["snapshots"]
    assert [one["hash"] for one in listed] == [answers[0].json()["hash"]]


async def test_calls_that_race_with_the_index_still_make_one_snapshot(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    changes = [api.put(source(f"{at}.md", f"cancel {at}")) for at in range(10)]
    answers = await asyncio.gather(*(api.post(asked) for _ in range(10)), *changes)
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.content for answer in answers[:10]}) == 1
    assert len((await api.read("/snapshots"))["snapshots"]) == 1


async def test_without_a_query_only_what_was_named_is_in(api: Api) -> None:
    await api.index(source("a.md", "x"), source("b.md", "y"))
    snapshot = await api.assemble(question(None))
    assert (snapshot["items"], snapshot["exclusions"]) == ([], [])
    assert snapshot["budget"]["usedTokens"] == 0
    named = await api.assemble(question(None, items=[item("t", "z")], pins=[PIN]))
    assert source_ids(named) == ["t", "a.md"]


@pytest.mark.parametrize("query", [" ", "\t\n", "?!", "the of and", "\U0001f600", "\ufeff", "%_\\"])
async def test_a_query_without_words_finds_nothing(api: Api, query: str) -> None:
    await api.index(source("a.md", "the cancellation of a booking"))
    assert (await api.assemble(question(query)))["items"] == []


@pytest.mark.parametrize(
    "scope",
    [
        {"projects": []},
        {"classes": []},
        {"sources": {"allow": []}},
        {"sources": {"allow": ["*"], "deny": ["*"]}},
    ],
    ids=str,
)
async def test_an_empty_list_in_a_scope_retrieves_nothing(api: Api, scope: Json) -> None:
    await api.index(source("a.md", "cancel"))
    snapshot = await api.assemble(question("cancel", scope=scope))
    assert (snapshot["items"], snapshot["exclusions"]) == ([], [])


async def test_an_empty_list_of_groups_takes_all_groups_away(api: Api) -> None:
    await api.index(source("a.md", "cancel", acl={"allow": ["group:eng"]}))
    asked = question("cancel", scope={"groups": []})
    assert (await api.assemble(asked, groups=["eng"]))["items"] == []
    assert source_ids(await api.assemble(question("cancel"), groups=["eng"])) == ["a.md"]


@pytest.mark.parametrize("claim", ["projects", "groups", "max_classification"])
async def test_a_missing_claim_gives_nothing(api: Api, claim: str) -> None:
    await api.index(source("a.md", "cancel", acl={"allow": ["group:eng"]}))
    claims: Json = {"groups": ["eng"], claim: None}
    assert (await api.assemble(question("cancel"), **claims))["items"] == []


async def test_patterns_select_sources_and_deny_wins(api: Api) -> None:
    names = ["docs/a.md", "docs/b.md", "drafts/a.md", "x' OR '1'='1' --", "a%b", "a_b"]
    await api.index(*[source(name, f"cancel {at}") for at, name in enumerate(names)])

    async def found(**patterns: list[str]) -> list[str]:
        return sorted(
            source_ids(await api.assemble(question("cancel", scope={"sources": patterns})))
        )

    assert await found() == sorted(names)
    assert await found(allow=["docs/*"]) == ["docs/a.md", "docs/b.md"]
    assert await found(allow=["*/a.md"], deny=["drafts/*"]) == ["docs/a.md"]
    assert await found(allow=["x' OR '1'='1' --"]) == ["x' OR '1'='1' --"]
    assert await found(allow=["a%b", "a_b"]) == ["a%b", "a_b"]
    assert await found(allow=["%", "____", "docs/?.md", "docs"]) == []
    assert await found(deny=["*a*", "*OR*"]) == ["docs/b.md"]


async def test_a_scope_beyond_the_grant_is_refused_member_by_member(api: Api) -> None:
    scope = {
        "projects": ["booking", "billing"],
        "groups": ["hr"],
        "classes": ["documents", "code"],
        "maxClassification": "restricted",
    }
    claims: Json = {"projects": ["booking"], "classes": ["documents"], "max_classification": None}
    answer = await api.post(question("x", scope=scope), **claims)
    assert_problem(
        answer,
        403,
        "scope-exceeds-grant",
        "/scope/projects/1",
        "/scope/groups/0",
        "/scope/classes/1",
        "/scope/maxClassification",
    )
    star = await api.post(question("x", scope={"projects": ["*"]}), **claims)
    assert_problem(star, 403, "scope-exceeds-grant", "/scope/projects/0")


async def test_the_floor_of_trust_keeps_lower_tiers_out(api: Api) -> None:
    await api.index(
        source("high", "cancel one", trustTier="agent"),
        source("low", "cancel two", trustTier="untrusted-external"),
    )
    asked = question("cancel", scope={"minTrustTier": "trusted-knowledge"})
    assert source_ids(await api.assemble(asked)) == ["high"]


async def test_an_unknown_strategy_is_refused_with_the_known_ones(api: Api) -> None:
    answer = await api.post(question("x", strategy="best"))
    problem = assert_problem(answer, 422, "unknown-strategy", "/strategy")
    listed = (await api.read("/strategies"))["strategies"]
    for recipe in listed:
        name = f"{recipe['id']}@{recipe['version']}"
        assert name in problem["detail"]
        assert (await api.assemble(question("x", strategy=name)))["strategy"] == name
        assert await api.read(f"/strategies/{name}") == recipe
        assert await api.read(f"/strategies/{recipe['id']}") == recipe
    assert_problem(await api.get("/strategies/best"), 404, "not-found")


async def test_the_same_paragraph_in_two_places_keeps_its_own_provenance(api: Api) -> None:
    elsewhere = api.elsewhere()
    text = "A reservation is cancelled by its owner."
    await api.index(
        source("a.md", text, provenance="one"),
        source("a.md", text, project="billing", provenance="two"),
    )
    await elsewhere.index(source("b.md", text, provenance="three"))
    seen = {
        project: await api.assemble(question("reservation", scope={"projects": [project]}))
        for project in ("booking", "billing")
    }
    theirs = await elsewhere.assemble(question("reservation"))
    found = [*seen.values(), theirs]
    assert [one["items"][0]["provenance"] for one in found] == ["one", "two", "three"]
    assert len({one["items"][0]["contentHash"] for one in found}) == 1
    both = await api.assemble(question("reservation"))
    assert [one["reason"] for one in both["exclusions"]] == ["duplicate"]
    await api.delete("booking", "a.md")
    after = await api.assemble(question("reservation"))
    assert [one["project"] for one in after["items"]] == ["billing"]
    for one, caller in ((seen["booking"], api), (theirs, elsewhere)):
        contents = await caller.read(f"/snapshots/{one['hash']}/contents")
        assert [entry["text"] for entry in contents["contents"]] == [text]


async def test_every_example_of_the_contract_can_be_sent(api: Api) -> None:
    await api.index(source("docs/cancel.md", "Reservations are cancelled by their owners."))
    for example in CREATE_SNAPSHOT_EXAMPLES.values():
        snapshot = await api.assemble(example["value"])
        assert "docs/cancel.md" in source_ids(snapshot)
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", snapshot["hash"])
