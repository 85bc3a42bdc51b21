"""What reads can be had as a table: harmless at a terminal, tagged and authorised like JSON."""

import unicodedata
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from app.api.text_tables import VIEWS, as_text
from app.visible import is_visible
from tests.api.service import Api, assert_problem, item, question, source

PLAIN = "text/plain"
HOSTILE = "a\x1b[31mb\x07\u202edetrever\u202c\u2066x\u2069\x9b2J\x7f\u200b\r\tz\u2028y"


async def _table(api: Api, path: str, params: Any = None, **claims: Any) -> str:
    headers = {**api.headers(**claims), "Accept": PLAIN}
    answer = await api.client.get(path, params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["vary"] == "Accept, Authorization"
    assert answer.headers["cache-control"] == "private, no-cache"
    return answer.text


def _unseen(text: str) -> set[str]:
    return {char for char in text if char != "\n" and not is_visible(char)} | {
        char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs") and char != "\n"
    }


def _paths(snapshot: str, other: str) -> Iterator[tuple[str, str, Any]]:
    at = f"/snapshots/{snapshot}"
    yield "getSnapshot", at, None
    yield "getSnapshotReport", f"{at}/report", None
    yield "verifySnapshot", f"{at}/verify", None
    yield "explainSnapshot", f"{at}/explain", {"project": "booking", "sourceId": HOSTILE}
    yield "diffSnapshots", f"{at}/diff/{other}", None
    yield "listSnapshots", "/snapshots", None
    yield "listSources", "/sources", None
    yield "getIndex", "/index", None
    yield "listStrategies", "/strategies", None
    yield "getStrategy", "/strategies/default", None
    yield "listAuditEvents", "/audit", None
    yield "listAuditSeals", "/audit/seals", None


async def test_every_table_shows_what_the_json_has_and_nothing_that_steers_a_terminal(
    api: Api,
) -> None:
    hostile = source(HOSTILE, "cancel a booking", provenance=HOSTILE, sourceRevision="1\x1b[2J")
    await api.index(hostile, source("テスト.md", "cancel"))
    one = await api.assemble(question("cancel", items=[item("task\x1b]0;x\x07", "Do it.")]))
    other = await api.assemble(question("cancel"))
    seen = {}
    for operation, path, params in _paths(one["hash"], other["hash"]):
        text = seen[operation] = await _table(api, path, params)
        assert _unseen(text) == set(), operation
    assert set(seen) == {*VIEWS, "getSnapshot"}
    shown = HOSTILE.encode("unicode_escape").decode("ascii")
    for operation in ("getSnapshot", "listSources", "diffSnapshots", "listAuditEvents"):
        assert ("task" if operation == "diffSnapshots" else shown) in seen[operation], operation
    assert "テスト.md" in seen["listSources"]
    for member in (one["hash"], one["snapshotId"], str(one["budget"]["usedTokens"])):
        assert member in seen["getSnapshot"]
    assert {line.split()[1] for line in seen["verifySnapshot"].splitlines()[1:-2]} == {"yes"}
    assert one["hash"] in seen["listSnapshots"]


async def test_columns_stand_below_each_other(api: Api) -> None:
    await api.index(source("a.md", "cancel"), source("日本語.md", "cancel"))
    head, *rows = (await _table(api, "/sources")).splitlines()
    assert len(rows) == 2
    wide = next(row for row in rows if "日本語" in row)
    narrow = next(row for row in rows if "a.md" in row)
    # Each of the three characters takes two cells.
    assert wide.index("documents") + 3 == narrow.index("documents") == head.index("class")


async def test_a_list_names_the_cursor_of_what_follows(api: Api) -> None:
    await api.index(source("a.md", "x"), source("b.md", "x"))
    cursor = (await api.read("/sources", {"limit": 1}))["nextCursor"]
    lines = (await _table(api, "/sources", {"limit": 1})).splitlines()
    assert lines[-1] == f"nextCursor  {cursor}"


async def test_each_representation_has_its_own_tag_and_304_comes_after_the_right_to_read(
    api: Api,
) -> None:
    await api.index(source("a.md", "cancel"))
    path = f"/snapshots/{(await api.assemble(question('cancel')))['hash']}"
    json_, text = [
        await api.client.get(path, headers={**api.headers(), "Accept": accept})
        for accept in ("*/*", PLAIN)
    ]
    assert json_.headers["content-type"] == "application/json"
    assert json_.headers["etag"] != text.headers["etag"]
    for accept, tag, status in (
        (PLAIN, text.headers["etag"], 304),
        ("*/*", json_.headers["etag"], 304),
        (PLAIN, json_.headers["etag"], 200),
        ("*/*", text.headers["etag"], 200),
    ):
        headers = {**api.headers(), "Accept": accept, "If-None-Match": tag}
        answer = await api.client.get(path, headers=headers)
        assert answer.status_code == status
        assert answer.headers["vary"] == "Accept, Authorization"
    for tag in (text.headers["etag"], "*"):
        stranger = {**api.headers(projects=["other"]), "Accept": PLAIN, "If-None-Match": tag}
        assert_problem(await api.client.get(path, headers=stranger), 404, "not-found")


async def test_what_has_no_table_is_json_whatever_is_accepted(api: Api) -> None:
    await api.index(source("a.md", "cancel"))
    made = await api.client.post(
        "/snapshots", json=question("cancel"), headers={**api.headers(), "Accept": PLAIN}
    )
    assert made.headers["content-type"] == "application/json"
    headers = {**api.headers(), "Accept": PLAIN}
    contents = await api.client.get(f"{made.headers['location']}/contents", headers=headers)
    assert contents.json()["contents"]
    missing = await api.client.get("/snapshots/unknown", headers=headers)
    assert_problem(missing, 404, "not-found")


def test_every_operation_with_a_table_says_so(app: FastAPI) -> None:
    told = {
        operation["operationId"]
        for methods in app.openapi()["paths"].values()
        for operation in methods.values()
        if {"text/plain", "application/json"}
        <= set(operation["responses"].get("200", {}).get("content", {}))
    }
    assert told - {"getSnapshotPrompt"} == set(VIEWS)


def test_empty_values_are_marked_and_nested_ones_told_by_their_path() -> None:
    text = as_text("getStrategy", {"a": {"b": [1, {"c": True}]}, "d": [], "e": None, "f": ""})
    assert [line.split() for line in text.splitlines()] == [
        ["a.b.0", "1"], ["a.b.1.c", "yes"], ["d", "-"], ["e", "-"], ["f"]
    ]  # fmt: skip
