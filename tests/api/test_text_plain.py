"""GET /snapshots/{ref} for people at a terminal: a table, where plain text is asked for."""

import httpx
import pytest

from tests.api.service import Api, assert_problem, chunks, item, question, source


async def _get(api: Api, ref: str, accept: str) -> httpx.Response:
    headers = {**api.headers(), "Accept": accept}
    return await api.client.get(f"/snapshots/{ref}", headers=headers)


async def test_a_table_shows_items_exclusions_and_what_identifies_them(api: Api) -> None:
    await api.index(source("big.md", chunks=chunks("cancel " * 900)), source("a.md", "cancel"))
    snapshot = await api.assemble(question("cancel", budget={"maxTokens": 500}))
    answer = await _get(api, snapshot["hash"], "text/plain")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    lines = answer.text.splitlines()
    assert lines[0].split() == ["hash", snapshot["hash"]]
    assert lines[1].split() == ["snapshotId", snapshot["snapshotId"]]
    [shown] = [line for line in lines if line.startswith("1 ")]
    assert shown.split()[:5] == ["1", "documents", "booking", "a.md", "1"]
    [left_out] = [line for line in lines if line.startswith("budget ") and "big.md" in line]
    assert left_out.split()[:4] == ["budget", "booking", "big.md", "0"]
    assert answer.headers["etag"] != f'"{snapshot["hash"]}"'
    assert answer.headers["vary"] == "Accept, Authorization"


@pytest.mark.parametrize(
    ("accept", "is_text"),
    [
        ("text/plain", True),
        ("Text/Plain;charset=utf-8", True),
        ("text/plain, application/json;q=0.5", True),
        ("text/plain, */*;q=0.1", True),
        ("text/plain, */*;q=0.1, application/json", False),
        ("application/json, text/plain", False),
        ("text/plain;q=0.2, application/json;q=0.3", False),
        ("text/plain;q=0", False),
        ("text/plain;q=x", False),
        ("text/*", True),
        ("*/*", False),
        ("", False),
        (",;;q=,=", False),
    ],
)
async def test_json_is_what_is_given_unless_plain_text_is_preferred(
    api: Api, accept: str, *, is_text: bool
) -> None:
    snapshot = await api.assemble(question(None))
    answer = await _get(api, snapshot["hash"], accept)
    media_type = answer.headers["content-type"].partition(";")[0]
    assert media_type == ("text/plain" if is_text else "application/json")


async def test_a_table_holds_nothing_that_a_terminal_obeys(api: Api) -> None:
    named = item("t\x1b[2J\n\u202e", "x", sourceRevision="\r1")
    snapshot = await api.assemble(question(None, items=[named]))
    table = (await _get(api, snapshot["hash"], "text/plain")).text
    assert table.replace("\n", "").isprintable()
    assert "t\\x1b[2J\\n\\u202e" in table


async def test_a_table_is_for_readers_only(api: Api) -> None:
    await api.index(source("a.md", "cancel", classification="restricted"))
    snapshot = await api.assemble(question("cancel"))
    headers = {**api.headers(max_classification="public"), "Accept": "text/plain"}
    answer = await api.client.get(f"/snapshots/{snapshot['hash']}", headers=headers)
    assert_problem(answer, 404, "not-found")
