"""What a writer may not write: limits of a call, and the ceilings of its grant."""

import random

import pytest

from tests.api.service import (
    Api,
    Json,
    assert_problem,
    chunks,
    question,
    source,
    source_ids,
    without_request,
)


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({"sourceId": "x" * 1025}, "1024"),
        ({"sourceRevision": "x" * 257}, "256"),
        ({"project": "x" * 129}, "128"),
        ({"provenance": "x" * 2049}, "2048"),
        ({"language": "x" * 36}, "35"),
        ({"links": ["x"] * 1001}, "1000"),
        ({"acl": {"allow": ["user:x"] * 1001}}, "1000"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
async def test_a_limit_that_is_passed_is_named(api: Api, members: Json, limit: str) -> None:
    answer = await api.put({**source("a.md", "x"), **members})
    problem = assert_problem(answer, 422, "invalid-request")
    assert limit in problem["errors"][0]["detail"]


async def test_the_most_entries_of_a_call_are_named(api: Api) -> None:
    many_chunks = source("a.md", chunks=chunks(*["x"] * 10_001))
    answer = await api.put(many_chunks)
    problem = assert_problem(answer, 422, "invalid-request", "/sources/0/chunks")
    assert "10000" in problem["detail"]
    many = await api.put(*[source(str(at), "") for at in range(10_001)])
    assert "10000" in assert_problem(many, 422, "invalid-request", "/sources")["detail"]
    assert_problem(await api.put(), 422, "invalid-request", "/sources")


@pytest.mark.parametrize(
    ("first", "last", "length"),
    [(0x4E00, 0x9FFF, 682), (0x20000, 0x2A6DF, 512), (0x400, 0x4FF, 1024), (1, 31, 1024)],
    ids=["3 bytes each", "4 bytes each", "2 bytes each", "controls"],
)
async def test_the_longest_names_work_in_every_call(
    api: Api, first: int, last: int, length: int
) -> None:
    """Too random to be compressed, so that every index row is as long as it can be."""
    drawn = random.Random(7)

    def name(length: int) -> str:
        return "".join(chr(drawn.randint(first, last)) for _ in range(length))

    project, ids = name(128), [name(length) for _ in range(3)]
    await api.index(*[source(one, "cancel", project=project) for one in ids])
    snapshot = await api.assemble(question("cancel", budget={"maxTokens": 100_000}))
    assert len(snapshot["items"]) + len(snapshot["exclusions"]) == 3
    assert (await api.read(f"/snapshots/{snapshot['hash']}/verify"))["ok"]
    listed: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await api.read("/sources", {"limit": 1} | ({"cursor": cursor} if cursor else {}))
        listed += source_ids(page, "sources")
        cursor = page["nextCursor"]
    assert listed == sorted(ids)
    assert (await api.delete(project, ids[0])).status_code == 200


async def test_a_source_id_of_too_many_bytes_is_refused_with_the_limit(api: Api) -> None:
    answer = await api.put(source("\U00020000" * 513, "x"))
    problem = assert_problem(answer, 422, "invalid-request", "/sources/0/sourceId")
    assert "2048 bytes" in problem["detail"]


BEYOND: dict[str, tuple[Json, Json]] = {
    "project": ({"project": "billing"}, {"projects": ["booking"]}),
    "class": ({"class": "code"}, {"classes": ["documents"]}),
    "classification": ({"classification": "confidential"}, {"max_classification": "internal"}),
    "trustTier": ({"trustTier": "skill"}, {"max_trust_tier": "user"}),
}


@pytest.mark.parametrize("member", BEYOND)
async def test_a_writer_cannot_write_beyond_its_grant(api: Api, member: str) -> None:
    members, claims = BEYOND[member]
    answer = await api.put(source("a.md", "x"), source("b.md", "x") | members, **claims)
    assert_problem(answer, 403, "scope-exceeds-grant", f"/sources/1/{member}")
    assert await api.index_version() == 0


@pytest.mark.parametrize("member", ["class", "classification", "trustTier"])
async def test_a_writer_replaces_and_deletes_nothing_above_its_ceilings(
    api: Api, member: str
) -> None:
    members, claims = BEYOND[member]
    await api.index(source("a.md", "theirs") | members)
    replacing = await api.put(source("a.md", "mine"), **claims)
    assert_problem(replacing, 403, "scope-exceeds-grant", "/sources/0/sourceId")
    deleting = await api.delete("booking", "a.md", **claims)
    assert_problem(deleting, 404, "not-found")
    assert await api.index_version() == 1


async def test_a_writer_replaces_what_an_access_list_keeps_from_its_eyes(api: Api) -> None:
    await api.index(source("a.md", "theirs", acl={"allow": []}))
    assert (await api.read("/sources"))["sources"] == []
    assert (await api.put(source("a.md", "mine"))).status_code == 200
    assert source_ids(await api.read("/sources"), "sources") == ["a.md"]


@pytest.mark.parametrize(
    ("claims", "classification", "tier"),
    [
        ({}, "internal", "trusted-knowledge"),
        ({"max_classification": "public"}, "public", "trusted-knowledge"),
        ({"max_trust_tier": "untrusted-external"}, "internal", "untrusted-external"),
        ({"max_trust_tier": None, "max_classification": None}, "public", "trusted-knowledge"),
    ],
    ids=["generous", "low ceiling", "low tier", "no claims"],
)
async def test_what_a_source_leaves_out_gets_the_usual_value_or_a_lower_one(
    api: Api, claims: Json, classification: str, tier: str
) -> None:
    await api.index(source("a.md", "x"), **claims)
    [listed] = (await api.read("/sources"))["sources"]
    assert (listed["classification"], listed["trustTier"]) == (classification, tier)


async def test_the_project_may_be_left_out_where_the_grant_has_one(api: Api) -> None:
    bare = source("a.md", "x")
    del bare["project"]
    assert_problem(await api.put(bare), 422, "invalid-request", "/sources/0/project")
    two = await api.put(bare, projects=["booking", "billing"])
    assert_problem(two, 422, "invalid-request", "/sources/0/project")
    change = await api.index(bare, projects=["billing"])
    assert change["sources"][0]["project"] == "billing"


async def test_deleting_what_is_forbidden_is_answered_like_what_is_unknown(api: Api) -> None:
    elsewhere = api.elsewhere()
    await elsewhere.index(source("theirs.md", "x"))
    await api.index(
        source("other-project.md", "x", project="billing"),
        source("too-high.md", "x", classification="restricted"),
    )
    claims = {"projects": ["booking"], "max_classification": "internal"}
    answers = [
        await api.delete(project, name, **claims)
        for project, name in (
            ("booking", "unknown.md"),
            ("billing", "other-project.md"),
            ("billing", "unknown.md"),
            ("booking", "too-high.md"),
            ("booking", "theirs.md"),
            ("*", "other-project.md"),
        )
    ]
    first = without_request(assert_problem(answers[0], 404, "not-found"))
    assert all(without_request(answer.json()) == first for answer in answers)
    assert await api.index_version() == 1
    assert len((await elsewhere.read("/sources"))["sources"]) == 1
