"""Reading the index: listings, counts and versions show what the caller may know, no more."""

import pytest

from tests.api.service import Api, Json, assert_problem, chunks, source, source_ids

HIDDEN: dict[str, Json] = {
    "project": source("hidden", "x", project="billing"),
    "class": source("hidden", "x", class_="code"),
    "classification": source("hidden", "x", classification="restricted"),
    "allow list": source("hidden", "x", acl={"allow": ["group:hr", "user:bob"]}),
    "empty allow list": source("hidden", "x", acl={"allow": []}),
    "denied group": source("hidden", "x", acl={"allow": ["user:ana"], "deny": ["group:eng"]}),
}
READER: Json = {
    "projects": ["booking"],
    "classes": ["documents", "policy"],
    "max_classification": "internal",
    "groups": ["eng"],
}


async def _all_pages(api: Api, limit: int, **params: str) -> list[str]:
    listed: list[str] = []
    cursor: str | None = None
    while True:
        more: dict[str, str] = {"cursor": cursor} if cursor else {}
        page = await api.read("/sources", {"limit": limit, **params, **more})
        assert len(page["sources"]) <= limit
        listed += source_ids(page, "sources")
        cursor = page["nextCursor"]
        if cursor is None:
            return listed


async def test_a_listing_shows_each_source_with_its_attributes(api: Api) -> None:
    await api.index(
        source(
            "a.md",
            chunks=chunks("one", "two"),
            classification="public",
            trustTier="tool-result",
            mediaType="text/markdown",
            language="en-GB",
            provenance="git:abc",
            expiresAt="2030-01-01T01:00:00+01:00",
        )
    )
    [listed] = (await api.read("/sources"))["sources"]
    expires = listed.pop("expiresAt")
    assert expires.replace("+00:00", "Z") == "2030-01-01T00:00:00Z"
    assert listed == {
        "sourceId": "a.md",
        "sourceRevision": "1",
        "project": "booking",
        "class": "documents",
        "classification": "public",
        "trustTier": "tool-result",
        "chunks": 2,
        "mediaType": "text/markdown",
        "language": "en-GB",
        "provenance": "git:abc",
        "stale": False,
    }


async def test_listings_narrow_by_project_id_and_prefix(api: Api) -> None:
    await api.index(
        *[source(name, "x") for name in ("a%b", "a_b", "axb", "a\\b", "b/a", "B/a", "é")],
        source("a_b", "x", project="billing"),
    )
    everything = ["B/a", "a%b", "a\\b", "a_b", "a_b", "axb", "b/a", "é"]
    assert await _all_pages(api, 1000) == everything
    assert await _all_pages(api, 2) == everything
    assert await _all_pages(api, 2, project="billing") == ["a_b"]
    assert await _all_pages(api, 1, sourceId="a_b") == ["a_b", "a_b"]
    for prefix, expected in {
        "a": ["a%b", "a\\b", "a_b", "a_b", "axb"],
        "a_": ["a_b", "a_b"],
        "a%": ["a%b"],
        "a\\": ["a\\b"],
        "*": [],
        "": everything,
    }.items():
        assert await _all_pages(api, 3, prefix=prefix) == expected


async def test_a_walk_through_pages_is_stable_while_the_index_changes(api: Api) -> None:
    steady = [f"s{at:02d}" for at in range(12)]
    await api.index(*[source(name, "x") for name in steady])
    first = await api.read("/sources", {"limit": 5})
    assert source_ids(first, "sources") == steady[:5]
    await api.index(source("s04+", "new, ahead"), source("a", "new, behind"))
    await api.index(source("s01", "changed", sourceRevision="2"))
    await api.delete("booking", "s04")
    await api.delete("booking", "s07")
    rest, cursor = [], first["nextCursor"]
    while cursor:
        page = await api.read("/sources", {"limit": 3, "cursor": cursor})
        rest += source_ids(page, "sources")
        cursor = page["nextCursor"]
    assert rest == ["s04+", *(name for name in steady[5:] if name != "s07")]


@pytest.mark.parametrize("name", HIDDEN)
async def test_what_a_caller_does_not_see_is_neither_listed_nor_counted(
    api: Api, name: str
) -> None:
    await api.index(source("shown", "x"), HIDDEN[name])
    assert len((await api.read("/sources"))["sources"]) >= 1
    page = await api.read("/sources", **READER)
    assert source_ids(page, "sources") == ["shown"]
    named = await api.read("/sources", {"sourceId": "hidden"}, **READER)
    assert named == {"sources": [], "nextCursor": None}
    described = await api.read("/index", **READER)
    assert (described["sources"], described["chunks"]) == (1, 1)


async def test_the_same_source_id_in_two_projects_shows_once_to_a_reader_of_one(api: Api) -> None:
    await api.index(source("a.md", "x"), source("a.md", "x y", project="billing"))
    [listed] = (await api.read("/sources", **READER))["sources"]
    assert listed["project"] == "booking"


async def test_another_tenant_sees_nothing(api: Api) -> None:
    await api.index(source("a.md", "x"))
    other = api.elsewhere()
    assert (await other.read("/sources"))["sources"] == []
    described = await other.read("/index")
    assert (described["sources"], described["chunks"], described["indexVersion"]) == (0, 0, 0)


@pytest.mark.parametrize("name", HIDDEN)
async def test_the_visible_version_ignores_changes_outside_of_the_scope(
    api: Api, name: str
) -> None:
    await api.index(source("shown", "x"))
    before = await api.read("/index", **READER, scope="index:read")
    await api.index(HIDDEN[name])
    assert await api.read("/index", **READER, scope="index:read") == before
    await api.index({**HIDDEN[name], "sourceRevision": "2"})
    await api.delete(HIDDEN[name]["project"], "hidden")
    assert await api.read("/index", **READER, scope="index:read") == before


async def test_the_visible_version_is_that_of_the_content_not_of_its_history(api: Api) -> None:
    empty = await api.visible_version()
    await api.index(source("a.md", "x"))
    one = await api.visible_version()
    await api.index(source("b.md", "y"))
    both = await api.visible_version()
    await api.index(source("a.md", "changed"))
    changed = await api.visible_version()
    assert len({empty, one, both, changed}) == 4
    await api.index(source("a.md", "x"))
    assert await api.visible_version() == both
    await api.delete("booking", "b.md")
    assert await api.visible_version() == one
    await api.delete("booking", "a.md")
    assert await api.visible_version() == empty
    twin = api.elsewhere()
    await twin.index(source("b.md", "y"), source("a.md", "x"))
    assert await twin.visible_version() == both


async def test_who_else_may_read_a_source_does_not_show_in_the_visible_version(api: Api) -> None:
    await api.index(source("a.md", "x"))
    before = await api.visible_version()
    await api.index(source("a.md", "x", acl={"allow": ["user:ana", "user:bob"]}))
    assert await api.visible_version() == before
    assert await api.index_version() == 2


async def test_the_index_version_is_given_to_writers_only(api: Api) -> None:
    await api.index(source("a.md", "x"))
    assert (await api.read("/index"))["indexVersion"] == 1
    described = await api.read("/index", scope="index:read snapshots:read audit:read")
    assert "indexVersion" not in described
    assert described["engine"]
    assert described["embeddingProfile"] is None


@pytest.mark.parametrize(
    "cursor", ["", "x", "W10", "WyJhIl0", "WzEsMl0", "WyJcdWQ4M2QiLCAiYSJd", "é", "'; DROP TABLE"]
)
async def test_a_cursor_of_nobodys_making_is_refused(api: Api, cursor: str) -> None:
    answer = await api.get("/sources", {"cursor": cursor})
    assert_problem(answer, 422, "invalid-cursor", path="/sources")
