"""Inline items and pins: what a caller brings along or asks for by name."""

import pytest

from tests.api.service import (
    Api,
    Json,
    assert_problem,
    chunks,
    item,
    question,
    source,
    source_ids,
    without_request,
)

PIN = {"project": "booking", "sourceId": "a.md"}
NARROW: Json = {
    "projects": ["booking"],
    "classes": ["documents", "task"],
    "max_classification": "internal",
    "scope": "snapshots:assemble snapshots:read",
}


async def test_inline_items_come_first_and_count_in_full(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    items = [
        item("task:1", "Add a cancel endpoint."),
        item("task:2", "Mind </item> and <|endoftext|>."),
    ]
    snapshot = await api.assemble(question("cancel", items=items))
    assert source_ids(snapshot) == ["task:1", "task:2", "a.md"]
    assert all("indexVersion" not in one for one in snapshot["items"][:2])
    contents = await api.read(f"/snapshots/{snapshot['hash']}/contents")
    assert [one["text"] for one in contents["contents"][:2]] == [one["text"] for one in items]


async def test_an_indexed_text_that_came_inline_is_a_duplicate(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    snapshot = await api.assemble(question("cancel", items=[item("t", "cancel a booking")]))
    assert source_ids(snapshot) == ["t"]
    assert [(one["sourceId"], one["reason"]) for one in snapshot["exclusions"]] == [
        ("a.md", "duplicate")
    ]


@pytest.mark.parametrize(
    ("claims", "classification", "tier"),
    [
        ({}, "internal", "user"),
        ({"max_classification": "public"}, "public", "user"),
        ({"max_trust_tier": "tool-result"}, "internal", "tool-result"),
        ({"max_classification": None, "max_trust_tier": None}, "public", "user"),
    ],
    ids=["generous", "low ceiling", "low tier", "no claims"],
)
async def test_what_an_inline_item_leaves_out_gets_the_usual_value_or_a_lower_one(
    api: Api, claims: Json, classification: str, tier: str
) -> None:
    snapshot = await api.assemble(question(None, items=[item("t", "x")]), **claims)
    [one] = snapshot["items"]
    assert (one["classification"], one["trustTier"]) == (classification, tier)


async def test_inline_items_beyond_the_grant_are_refused_member_by_member(api: Api) -> None:
    items = [
        item("ok", "x"),
        item("t", "x", classification="restricted", trustTier="agent", project="billing"),
        item("t", "x", class_="code"),
    ]
    answer = await api.post(
        question(None, items=items),
        projects=["booking"],
        classes=["task"],
        max_classification="internal",
        max_trust_tier="user",
    )
    assert_problem(
        answer,
        403,
        "scope-exceeds-grant",
        "/items/1/project",
        "/items/1/classification",
        "/items/1/trustTier",
        "/items/2/class",
    )
    assert (await api.read("/snapshots"))["snapshots"] == []


async def test_an_inline_item_above_the_narrowed_ceiling_is_excluded_as_classification(
    api: Api,
) -> None:
    items = [item("high", "x", classification="confidential"), item("low", "y")]
    snapshot = await api.assemble(
        question(None, items=items, scope={"maxClassification": "internal"})
    )
    assert source_ids(snapshot) == ["low"]
    [left_out] = snapshot["exclusions"]
    assert (left_out["sourceId"], left_out["chunkId"], left_out["reason"]) == (
        "high",
        "0",
        "classification",
    )


async def test_an_inline_item_outside_of_the_narrowed_scope_is_excluded_as_denied(api: Api) -> None:
    items = [item("a", "x", project="billing"), item("b", "y"), item("c", "z", class_="code")]
    scope = {"projects": ["booking"], "classes": ["task"]}
    snapshot = await api.assemble(question(None, items=items, scope=scope))
    assert source_ids(snapshot) == ["b"]
    assert [(one["sourceId"], one["reason"]) for one in snapshot["exclusions"]] == [
        ("a", "denied"),
        ("c", "denied"),
    ]


async def test_policies_are_of_the_tier_of_policies_alone(api: Api) -> None:
    for tier in ("agent", "user", "untrusted-external", None):
        members = {} if tier is None else {"trustTier": tier}
        answer = await api.post(question(None, items=[item("p", "x", class_="policy") | members]))
        assert_problem(answer, 422, "invalid-request", "/items/0/trustTier")
    allowed = item("p", "x", class_="policy", trustTier="system-policy")
    assert source_ids(await api.assemble(question(None, items=[allowed]))) == ["p"]


async def test_a_pin_brings_all_chunks_of_its_source_in_their_order(api: Api) -> None:
    await api.index(
        source("a.md", chunks=chunks("one", "two", "three")), source("b.md", "two more")
    )
    snapshot = await api.assemble(question("two", pins=[PIN]))
    shown = [(one["sourceId"], one["chunkId"]) for one in snapshot["items"]]
    assert shown == [("a.md", "0"), ("a.md", "1"), ("a.md", "2"), ("b.md", "0")]
    assert snapshot["exclusions"] == []
    assert snapshot["items"][0]["indexVersion"] == f"pinned:{await api.visible_version()}"


async def test_a_pin_may_name_one_chunk_and_come_twice(api: Api) -> None:
    await api.index(source("a.md", chunks=chunks("one", "two", "three")))
    one = await api.assemble(question(None, pins=[{**PIN, "chunkId": "1"}]))
    assert [entry["chunkId"] for entry in one["items"]] == ["1"]
    twice = await api.assemble(question("two", pins=[PIN, {**PIN, "chunkId": "1"}, PIN]))
    assert [entry["chunkId"] for entry in twice["items"]] == ["0", "1", "2"]
    assert twice["exclusions"] == []


FORBIDDEN: dict[str, Json] = {
    "project": source("a.md", "x", project="billing"),
    "classification": source("a.md", "x", classification="restricted"),
    "class": source("a.md", "x", class_="code"),
    "access list": source("a.md", "x", acl={"allow": ["group:hr"]}),
    "denied": source("a.md", "x", acl={"deny": ["user:ana"]}),
}


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("chunk", [None, "0"])
async def test_a_forbidden_pin_is_answered_like_an_unknown_one(
    api: Api, name: str, chunk: str | None
) -> None:
    project = FORBIDDEN[name]["project"]
    pin = {"project": project, "sourceId": "a.md"} | ({"chunkId": chunk} if chunk else {})
    asked, soft = question("x", pins=[pin]), question("x", pins=[{**pin, "required": False}])
    unknown, unknown_soft = await api.post(asked, **NARROW), await api.post(soft, **NARROW)
    await api.index(FORBIDDEN[name])
    forbidden = await api.post(asked, **NARROW)
    forbidden_soft = await api.post(soft, {"refresh": "true"}, **NARROW)
    problem = assert_problem(forbidden, 422, "pin-unavailable", "/pins/0")
    assert without_request(problem) == without_request(unknown.json())
    assert unknown_soft.status_code == 201
    assert forbidden_soft.content == unknown_soft.content
    [left_out] = forbidden_soft.json()["exclusions"]
    assert (left_out["sourceId"], left_out["reason"]) == ("a.md", "denied")
    assert left_out.get("chunkId") == chunk


LOW: Json = {"max_classification": "internal"}
AUDITOR = "snapshots:assemble snapshots:read audit:read"


async def test_an_auditor_is_told_that_the_classification_keeps_a_named_source_out(
    api: Api,
) -> None:
    for one in FORBIDDEN.values():
        await api.index({**one, "sourceId": f"{one['project']}/{one['sourceId']}"})
    await api.index(source("secret.md", "x", classification="confidential"))
    pins = [{"project": "booking", "sourceId": "secret.md", "required": False}]
    asked = question("x", pins=pins, scope={"maxClassification": "internal"})
    told = await api.assemble(asked, scope=AUDITOR)
    assert [(one["sourceId"], one["reason"]) for one in told["exclusions"]] == [
        ("secret.md", "classification")
    ]
    plain = await api.assemble(asked, scope="snapshots:assemble snapshots:read")
    assert [(one["sourceId"], one["reason"]) for one in plain["exclusions"]] == [
        ("secret.md", "denied")
    ]
    # What tells of the source is read back only by whoever may know it.
    path = f"/snapshots/{told['hash']}"
    assert (await api.get(path, scope=AUDITOR)).status_code == 200
    low = await api.get(path, scope=AUDITOR, **LOW)
    assert low.status_code == 404
    assert (await api.get(f"/snapshots/{plain['hash']}", **LOW)).status_code == 200


@pytest.mark.parametrize("name", [name for name in FORBIDDEN if name != "classification"])
async def test_an_auditor_is_told_of_nothing_but_the_classification(api: Api, name: str) -> None:
    await api.index(FORBIDDEN[name])
    pin = {"project": FORBIDDEN[name]["project"], "sourceId": "a.md", "required": False}
    told = await api.assemble(question("x", pins=[pin]), **{**NARROW, "scope": AUDITOR})
    assert [one["reason"] for one in told["exclusions"]] == ["denied"]


async def test_a_pin_outside_of_the_patterns_or_of_the_chunks_is_not_available(api: Api) -> None:
    await api.index(source("a.md", "x"))
    pins = [{**PIN, "chunkId": "9"}, {"project": "booking", "sourceId": "A.md"}, PIN]
    answer = await api.post(question(None, pins=pins))
    assert_problem(answer, 422, "pin-unavailable", "/pins/0", "/pins/1")
    denied = question(None, pins=[PIN], scope={"sources": {"deny": ["*.md"]}})
    assert_problem(await api.post(denied), 422, "pin-unavailable", "/pins/0")


async def test_the_project_may_be_left_out_where_the_scope_has_one(api: Api) -> None:
    await api.index(source("a.md", "x"))
    bare_item = item("t", "y")
    del bare_item["project"]
    bare = question(None, items=[bare_item], pins=[{"sourceId": "a.md"}])
    by_scope = await api.assemble({**bare, "scope": {"projects": ["booking"]}})
    assert source_ids(by_scope) == ["t", "a.md"]
    by_grant = await api.assemble(bare, projects=["booking"])
    assert {one["project"] for one in by_grant["items"]} == {"booking"}
    for scope, projects in (
        ({}, ["*"]),
        ({}, ["booking", "billing"]),
        ({"projects": []}, ["booking"]),
        ({"projects": ["booking", "billing"]}, ["*"]),
        ({"projects": ["*"]}, ["*"]),
    ):
        answer = await api.post({**bare, "scope": scope}, projects=projects)
        assert_problem(answer, 422, "invalid-request", "/items/0/project")
    pin_only = await api.post(question(None, pins=[{"sourceId": "a.md"}]))
    assert_problem(pin_only, 422, "invalid-request", "/pins/0/project")
