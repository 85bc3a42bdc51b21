"""PUT /sources/heads: what a call changes, what it refuses, and what it does not tell."""

import asyncio
from typing import Any

import httpx
import pytest

from app.api.head_schemas import PUT_HEADS_EXAMPLES
from tests.api.service import Api, Json, assert_problem, source


def head(source_id: str, revision: str = "2", **members: Any) -> Json:
    """A head as PUT /sources/heads takes it; of project `booking` unless told otherwise."""
    return {
        "project": "booking",
        "sourceId": source_id,
        "sourceRevision": revision,
        **members,
    }


async def put(api: Api, *heads: Json, **claims: Any) -> httpx.Response:
    return await api.client.put(
        "/sources/heads", json={"heads": list(heads)}, headers=api.headers(**claims)
    )


async def told(api: Api, *heads: Json, **claims: Any) -> Json:
    answer = await put(api, *heads, **claims)
    assert answer.status_code == 200, answer.text
    change: Json = answer.json()
    return change


async def listed(api: Api, **claims: Any) -> dict[str, tuple[str | None, bool]]:
    """The head and the staleness of each source."""
    sources = (await api.read("/sources", **claims))["sources"]
    return {one["sourceId"]: (one.get("headRevision"), one["stale"]) for one in sources}


async def test_sending_what_is_there_already_changes_nothing(api: Api) -> None:
    first = await told(api, head("a.md"), head("b.md"))
    assert first == {
        "indexVersion": 1,
        "heads": [
            {"project": "booking", "sourceId": "a.md", "unchanged": False},
            {"project": "booking", "sourceId": "b.md", "unchanged": False},
        ],
    }
    again = await told(api, head("a.md"), head("b.md"))
    assert again["indexVersion"] == 1
    assert [one["unchanged"] for one in again["heads"]] == [True, True]
    mixed = await told(api, head("c.md"), head("a.md", "3"), head("b.md"))
    assert mixed["indexVersion"] == 2
    assert [(one["sourceId"], one["unchanged"]) for one in mixed["heads"]] == [
        ("c.md", False),
        ("a.md", False),
        ("b.md", True),
    ]
    assert await api.index_version() == 2


@pytest.mark.parametrize("name", PUT_HEADS_EXAMPLES)
async def test_the_examples_are_taken(api: Api, name: str) -> None:
    heads = PUT_HEADS_EXAMPLES[name]["value"]["heads"]
    assert len((await told(api, *heads))["heads"]) == len(heads)


async def test_a_source_is_stale_until_it_is_indexed_at_its_head(api: Api) -> None:
    await api.index(source("a.md", "x"), source("b.md", "y"))
    assert await listed(api) == {"a.md": (None, False), "b.md": (None, False)}
    await told(api, head("a.md", "2"))
    assert await listed(api) == {"a.md": ("2", True), "b.md": (None, False)}
    await api.index(source("a.md", "x", sourceRevision="2"))
    assert (await listed(api))["a.md"] == (None, False)
    await told(api, head("a.md", "3"))
    assert (await listed(api))["a.md"] == ("3", True)
    # Told that what is indexed is the newest after all.
    await told(api, head("a.md", "2"))
    assert (await listed(api))["a.md"] == (None, False)


async def test_a_head_comes_before_its_source_and_outlives_it(api: Api) -> None:
    await told(api, head("a.md", "2"))
    assert await listed(api) == {}
    await api.index(source("a.md", "x"))
    assert await listed(api) == {"a.md": ("2", True)}
    assert (await api.delete("booking", "a.md")).status_code == 200
    await api.index(source("a.md", "x"))
    assert await listed(api) == {"a.md": ("2", True)}


async def test_a_listing_judges_expiry_by_now(api: Api) -> None:
    await api.index(
        source("old", "x", expiresAt="2020-01-01T00:00:00Z"),
        source("lasting", "x", expiresAt="2120-01-01T00:00:00Z"),
    )
    assert await listed(api) == {"old": (None, True), "lasting": (None, False)}


async def test_the_answer_is_the_same_for_what_is_indexed_hidden_and_unknown(api: Api) -> None:
    """A writer learns nothing of sources above its ceilings."""
    await api.index(
        source("indexed", "x"),
        source("hidden", "x", classification="restricted", trustTier="system-policy"),
    )
    writer: Json = {"max_classification": "public", "max_trust_tier": "user", "classes": []}

    async def answers(name: str) -> list[Json]:
        changes = [await told(api, head(name, revision), **writer) for revision in "223"]
        return [{**one, "heads": [{**one["heads"][0], "sourceId": "?"}]} for one in changes]

    def from_version(change: Json, version: int) -> Json:
        return {**change, "indexVersion": change["indexVersion"] - version}

    found = []
    for name in ("indexed", "hidden", "unknown"):
        before = await api.index_version()
        found.append([from_version(change, before) for change in await answers(name)])
    assert found[0] == found[1] == found[2]
    assert [one["indexVersion"] for one in found[0]] == [1, 1, 2]


async def test_a_head_touches_its_own_project_and_tenant_alone(api: Api) -> None:
    other = api.elsewhere()
    for one in (api, other):
        await one.index(source("a.md", "x"), source("a.md", "x", project="billing"))
    await told(api, head("a.md"))
    shown = (await api.read("/sources"))["sources"]
    assert {one["project"]: one["stale"] for one in shown} == {"billing": False, "booking": True}
    assert not any(one["stale"] for one in (await other.read("/sources"))["sources"])
    assert await other.index_version() == 1
    await told(api, head("a.md", project="billing"))
    await told(api, head("a.md", "1"))
    shown = (await api.read("/sources"))["sources"]
    assert {one["project"]: one["stale"] for one in shown} == {"billing": True, "booking": False}


async def test_a_project_outside_of_the_grant_is_refused_by_its_place(api: Api) -> None:
    answer = await put(
        api, head("a.md"), head("a.md", project="billing"), head("b.md"), projects=["booking"]
    )
    assert_problem(answer, 403, "scope-exceeds-grant", "/heads/1/project", path="/sources/heads")
    assert await api.index_version() == 0


async def test_the_permission_to_write_is_needed(api: Api) -> None:
    answer = await put(api, head("a.md"), scope="index:read snapshots:assemble")
    assert_problem(answer, 403, "permission-missing")
    assert await api.index_version() == 0


async def test_the_project_may_be_left_out_where_there_is_one(api: Api) -> None:
    bare = {"sourceId": "a.md", "sourceRevision": "2"}
    change = await told(api, bare, projects=["booking"])
    assert change["heads"][0]["project"] == "booking"
    for projects in (["*"], ["booking", "billing"], []):
        assert_problem(
            await put(api, bare, projects=projects), 422, "invalid-request", "/heads/0/project"
        )


async def test_a_source_twice_in_one_call_is_refused(api: Api) -> None:
    answer = await put(api, head("a.md"), head("b.md"), head("a.md", "3"))
    assert_problem(answer, 422, "source-repeated", "/heads/2/sourceId")
    assert await api.index_version() == 0
    await told(api, head("a.md"), head("a.md", project="billing"))


BAD_HEADS: dict[str, tuple[Json, str]] = {
    "no revision": ({"sourceId": "bad"}, "/heads/1/sourceRevision"),
    "empty revision": (head("bad", ""), "/heads/1/sourceRevision"),
    "a number": (head("bad", sourceRevision=2), "/heads/1/sourceRevision"),
    "unknown member": (head("bad", text="x"), "/heads/1/text"),
    "project star": (head("bad", project="*"), "/heads/1/project"),
    "NUL": (head("bad\0"), "/heads/1/sourceId"),
    "too long": (head("é" * 1025), "/heads/1/sourceId"),
    "too many bytes": (head("日" * 1000), "/heads/1/sourceId"),
}


@pytest.mark.parametrize("name", BAD_HEADS)
async def test_one_bad_head_keeps_the_whole_call_out(api: Api, name: str) -> None:
    bad, pointer = BAD_HEADS[name]
    answer = await put(api, head("good"), bad, head("last"))
    assert_problem(answer, 422, "invalid-request", pointer)
    assert await api.index_version() == 0


@pytest.mark.parametrize("count", [0, 10_001])
async def test_the_number_of_heads_is_bounded(api: Api, count: int) -> None:
    answer = await put(api, *(head(str(at)) for at in range(count)))
    assert_problem(answer, 422, "invalid-request", "/heads")


async def test_the_longest_names_fit(api: Api) -> None:
    longest = head("é" * 1024, "日" * 256, project="日" * 128)
    await told(api, longest)
    await told(api, {**longest, "sourceRevision": "other"})
    assert await api.index_version() == 2


@pytest.mark.long
async def test_thousands_of_heads_are_one_version(api: Api) -> None:
    change = await told(api, *(head(str(at)) for at in range(10_000)))
    assert (change["indexVersion"], len(change["heads"])) == (1, 10_000)


async def test_calls_at_once_lose_nothing(api: Api) -> None:
    """Of one source the last one counts, and each call is one version."""
    await api.index(source("a.md", "x"))
    await asyncio.gather(*(told(api, head("a.md", f"r{at}"), head(f"own-{at}")) for at in range(5)))
    assert await api.index_version() == 6
    own = [(await told(api, head(f"own-{at}")))["heads"][0]["unchanged"] for at in range(5)]
    assert all(own)
    revision, stale = (await listed(api))["a.md"]
    assert stale
    twin = api.elsewhere()
    await twin.index(source("a.md", "x"))
    await told(twin, head("a.md", str(revision)))
    assert await twin.visible_version() == await api.visible_version()


async def test_each_call_leaves_one_event(api: Api) -> None:
    await told(api, head("a.md"), head("b.md"))
    await told(api, head("a.md"), head("b.md"))
    await put(api, head("a.md"), projects=["billing"])
    found = (await api.read("/audit"))["events"][:3]
    named = [{"project": "booking", "sourceId": name} for name in ("a.md", "b.md")]
    both = {"count": 2, "sources": named}
    assert [(one["action"], one["outcome"], one["targets"]) for one in reversed(found)] == [
        ("putSourceHeads", "allowed", both),
        ("putSourceHeads", "allowed", both),
        ("putSourceHeads", "refused", {"count": 1, "sources": named[:1]}),
    ]


async def test_the_visible_version_changes_exactly_with_what_is_stale(api: Api) -> None:
    await api.index(source("a.md", "x"), source("b.md", "y"))
    plain = await api.visible_version()
    await told(api, head("a.md", "1"), head("unknown"))
    assert await api.visible_version() == plain, "neither makes anything stale"
    await told(api, head("a.md", "2"))
    stale = await api.visible_version()
    await told(api, head("a.md", "3"))
    staler = await api.visible_version()
    await told(api, head("b.md", "3"))
    both = await api.visible_version()
    assert len({plain, stale, staler, both}) == 4
    await told(api, head("b.md", "1"))
    assert await api.visible_version() == staler
    await told(api, head("a.md", "2"))
    assert await api.visible_version() == stale
    await api.index(source("a.md", "x", classification="public"))
    relabelled = await api.visible_version()
    await told(api, head("a.md", "1"))
    twin = api.elsewhere()
    await twin.index(source("a.md", "x", classification="public"), source("b.md", "y"))
    assert await api.visible_version() == await twin.visible_version()
    await told(twin, head("a.md", "2"))
    assert await twin.visible_version() == relabelled
    await twin.delete("booking", "a.md")
    alone = api.elsewhere()
    await alone.index(source("b.md", "y"))
    assert await twin.visible_version() == await alone.visible_version()


HIDDEN: dict[str, Json] = {
    "by project": source("hidden", "x", project="billing"),
    "by classification": source("hidden", "x", classification="restricted"),
    "by class": source("hidden", "x", class_="code"),
    "by its list": source("hidden", "x", acl={"allow": ["group:hr"]}),
}
READER: Json = {
    "projects": ["booking"],
    "classes": ["documents"],
    "max_classification": "internal",
    "groups": ["eng"],
    "scope": "index:read",
}


@pytest.mark.parametrize("name", HIDDEN)
async def test_heads_of_what_a_reader_does_not_see_change_nothing_for_it(
    api: Api, name: str
) -> None:
    await api.index(source("shown", "x"), HIDDEN[name])
    index, shown = await api.read("/index", **READER), await listed(api, **READER)
    whole = await api.visible_version(groups=["hr"])
    await told(api, head("hidden", project=HIDDEN[name]["project"]))
    assert await api.read("/index", **READER) == index
    assert await listed(api, **READER) == shown == {"shown": (None, False)}
    assert await api.visible_version(groups=["hr"]) != whole
