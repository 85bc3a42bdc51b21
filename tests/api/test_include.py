"""`include` sends parts along with a snapshot, a dry run stores nothing of it."""

from itertools import combinations
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.adapters.postgres.database import Database
from tests.api.service import Api, Json, assert_problem, item, question, source, source_ids

PARTS = ("contents", "report", "prompt")
SOME = [",".join(names) for length in (1, 2, 3) for names in combinations(reversed(PARTS), length)]
STORES = ("snapshots", "snapshot_sources", "snapshot_contents", "repeats", "idempotency_keys")


async def _parts(api: Api, answer: httpx.Response) -> Json:
    """Each part as its own call reads it."""
    path = f"/snapshots/{answer.json()['snapshot']['hash']}"
    prompt = await api.get(f"{path}/prompt")
    is_text = prompt.headers["content-type"].startswith("text/plain")
    return {
        "snapshot": await api.read(path),
        "contents": (await api.read(f"{path}/contents"))["contents"],
        "report": (await api.read(f"{path}/report"))["report"],
        "prompt": prompt.text if is_text else prompt.json(),
    }


async def _rows(owner: Database, tenant: str) -> dict[str, int]:
    async with owner.transaction(tenant) as (connection, key):
        return {
            table: (
                await connection.execute(
                    sa.text(f"SELECT count(*) FROM {table} WHERE tenant_key = :key"), {"key": key}
                )
            ).scalar_one()
            for table in STORES
        }


@pytest.mark.parametrize("format_", ["text", "messages"])
@pytest.mark.parametrize("include", SOME)
async def test_what_was_asked_for_stands_beside_the_snapshot_and_nothing_else(
    api: Api, include: str, format_: str
) -> None:
    await api.index(source("a.md", "cancel  a <b>\n"))
    asked = question("cancel", items=[item("t", "")], budget={"format": format_})
    answer = await api.post(asked, {"include": include})
    assert (answer.status_code, answer.headers["content-type"]) == (201, "application/json")
    parts = await _parts(api, answer)
    wanted = {name: parts[name] for name in ("snapshot", *include.split(","))}
    assert answer.json() == wanted
    digest = parts["snapshot"]["hash"]
    canonical = (await api.get(f"/snapshots/{digest}")).content
    assert answer.content.startswith(b'{"snapshot":' + canonical)
    assert answer.headers["location"] == f"/snapshots/{digest}"
    repeat = await api.post(asked, {"include": include})
    assert (repeat.status_code, repeat.content) == (200, answer.content)
    assert repeat.headers["etag"] == answer.headers["etag"] != f'"{digest}"'


async def test_each_representation_has_a_tag_of_its_own(api: Api) -> None:
    asked = question("cancel")
    bare = await api.post(asked)
    tags = {(await api.post(asked, {"include": include})).headers["etag"] for include in SOME}
    # The order in which parts are asked for does not matter.
    assert len(tags) == len(SOME)
    assert bare.headers["etag"] not in tags
    turned = await api.post(asked, {"include": "contents,prompt,report"})
    assert turned.headers["etag"] in tags


async def test_a_repeat_of_erased_texts_says_what_is_gone(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    first = await api.post(asked, {"include": "contents"})
    erase = {"project": "booking", "sourceId": "a.md", "erase": "true"}
    assert (
        await api.client.delete("/sources", params=erase, headers=api.headers())
    ).status_code == 200
    repeat = await api.post(asked, {"include": "contents,prompt"})
    assert repeat.status_code == 200
    assert repeat.json()["snapshot"] == first.json()["snapshot"]
    assert repeat.json()["prompt"] is None
    [held] = repeat.json()["contents"]
    assert (held["text"], held["erased"]) == (None, True)
    again = await api.post(asked, {"include": "contents"})
    assert again.headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize(
    "include",
    ["", "texts", "contents,", ",report", "contents,contents", "contents, report", "PROMPT", "\0"],
)
async def test_unknown_parts_and_parts_named_twice_are_refused(api: Api, include: str) -> None:
    answer = await api.post(question(None), {"include": include})
    problem = assert_problem(answer, 422, "invalid-request")
    assert [error["parameter"] for error in problem["errors"]] == ["include"]
    assert (await api.read("/snapshots"))["snapshots"] == []


@pytest.mark.parametrize("include", [None, "contents,report,prompt"])
async def test_a_dry_run_tells_what_would_be_stored_and_stores_nothing(
    api: Api, owner: Database, include: str | None
) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel", items=[item("t", "Add an endpoint.")])
    parameters = {"include": include} if include else {}
    before = await _rows(owner, api.tenant)
    dry = await api.post(asked, {**parameters, "dryRun": "true"})
    assert (dry.status_code, await _rows(owner, api.tenant)) == (200, before)
    assert "location" not in dry.headers
    document: dict[str, Any] = dry.json()
    assert set(document) == {"snapshot", *(include or "snapshot").split(",")}
    digest = document["snapshot"]["hash"]
    assert_problem(await api.get(f"/snapshots/{digest}"), 404, "not-found")
    event = (await api.read("/audit"))["events"][1]
    assert (event["action"], event["outcome"], event["code"]) == (
        "createSnapshot",
        "allowed",
        "dry-run",
    )
    stored = await api.post(asked, parameters)
    assert stored.status_code == 201
    assert stored.json() == (document if include else document["snapshot"])


async def test_a_dry_run_assembles_anew_where_there_is_a_repeat(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    first = await api.post(asked)
    await api.index(source("b.md", "cancel an order"))
    dry = await api.post(asked, {"dryRun": "true"})
    assert sorted(source_ids(dry.json()["snapshot"])) == ["a.md", "b.md"]
    assert (await api.post(asked)).content == first.content


async def test_a_dry_run_is_refused_like_any_other_request(api: Api) -> None:
    asked = question(None, items=[item("t", "word " * 500)], budget={"maxTokens": 100})
    answer = await api.post(asked, {"dryRun": "true"})
    wanted = assert_problem(answer, 422, "budget-too-small")["requiredTokens"]
    asked["budget"]["maxTokens"] = wanted
    assert (await api.post(asked, {"dryRun": "true"})).status_code == 200


async def test_a_dry_run_takes_no_key(api: Api) -> None:
    headers = {**api.headers(), "Idempotency-Key": "k"}
    answer = await api.client.post(
        "/snapshots", json=question(None), params={"dryRun": "true"}, headers=headers
    )
    problem = assert_problem(answer, 422, "invalid-request")
    assert [error["parameter"] for error in problem["errors"]] == ["Idempotency-Key"]
