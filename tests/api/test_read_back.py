"""Reading back: the same bytes to those who may read them, nothing at all to others."""

import hashlib
import uuid
from typing import Any

import httpx
import pytest
import rfc8785

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

PARTS = ("", "/contents", "/prompt", "/report", "/verify")
READER: Json = {
    "projects": ["booking"],
    "classes": ["documents", "task"],
    "max_classification": "internal",
    "groups": ["eng"],
}
SHOWN = source("a.md", "cancel a booking")
TAKEN_AWAY: dict[str, Json] = {
    "class": {"class": "code"},
    "classification": {"classification": "confidential"},
    "access list": {"acl": {"allow": ["group:hr"]}},
    "denied group": {"acl": {"deny": ["group:eng"]}},
    "denied user": {"acl": {"deny": ["user:ana"]}},
    "empty access list": {"acl": {"allow": []}},
}


async def _unknown(api: Api, part: str, **claims: Any) -> Json:
    answer = await api.get(f"/snapshots/sha256:{'0' * 64}{part}", **claims)
    return without_request(assert_problem(answer, 404, "not-found"))


async def test_a_snapshot_is_read_by_hash_and_by_id_in_any_case(api: Api) -> None:
    await api.index(SHOWN)
    posted = await api.post(question("cancel"))
    snapshot = posted.json()
    for ref in (snapshot["hash"], snapshot["snapshotId"], snapshot["snapshotId"].upper()):
        answer = await api.get(f"/snapshots/{ref}")
        assert (answer.status_code, answer.content) == (200, posted.content)
        assert answer.headers["etag"] == f'"{snapshot["hash"]}"'
        assert answer.headers["cache-control"] == "private, no-cache"
        assert answer.headers["vary"] == "Accept, Authorization"
        assert answer.headers["content-type"] == "application/json"


async def test_who_holds_the_bytes_already_gets_304(api: Api) -> None:
    snapshot = await api.assemble(question(None))
    path, tag = f"/snapshots/{snapshot['hash']}", f'"{snapshot["hash"]}"'

    async def conditional(value: str, **claims: Any) -> httpx.Response:
        headers = {**api.headers(**claims), "If-None-Match": value}
        return await api.client.get(path, headers=headers)

    for held in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = await conditional(held)
        assert (answer.status_code, answer.content) == (304, b""), held
        assert answer.headers["etag"] == tag
        assert answer.headers["vary"] == "Accept, Authorization"
    for other in ('"other"', snapshot["hash"], ""):
        assert (await conditional(other)).status_code == 200, other


async def test_the_reader_is_authorised_before_a_304(api: Api) -> None:
    await api.index(SHOWN)
    snapshot = await api.assemble(question("cancel"))
    path, tag = f"/snapshots/{snapshot['hash']}", f'"{snapshot["hash"]}"'
    for headers, status in (
        ({}, 401),
        (api.headers(scope="index:read"), 403),
        (api.headers(projects=["billing"]), 404),
        (api.elsewhere().headers(), 404),
    ):
        for value in (tag, "*"):
            answer = await api.client.get(path, headers={**headers, "If-None-Match": value})
            assert answer.status_code == status
            assert "etag" not in answer.headers


@pytest.mark.parametrize("part", PARTS)
async def test_what_is_not_there_or_not_for_this_caller_is_answered_word_for_word_the_same(
    api: Api, part: str
) -> None:
    await api.index(SHOWN)
    snapshot = await api.assemble(question("cancel"))
    expected = await _unknown(api, part)
    for ref in (
        str(uuid.uuid4()),
        "sha256:xyz",
        "SHA256:" + snapshot["hash"][7:],
        snapshot["hash"].upper(),
        snapshot["hash"][7:],
        snapshot["hash"] + "0",
        "%00",
        "é",
        "'; DROP TABLE snapshots --",
        "x" * 2000,
    ):
        answer = await api.get(f"/snapshots/{ref}{part}")
        if answer.status_code == 422:
            assert "NUL" in answer.text
            continue
        assert without_request(assert_problem(answer, 404, "not-found")) == expected, ref
    for headers in (api.elsewhere().headers(), api.headers(projects=[])):
        for ref in (snapshot["hash"], snapshot["snapshotId"]):
            answer = await api.client.get(f"/snapshots/{ref}{part}", headers=headers)
            assert without_request(assert_problem(answer, 404, "not-found")) == expected


@pytest.mark.parametrize("name", TAKEN_AWAY)
async def test_a_source_that_is_relabelled_takes_its_snapshots_along(api: Api, name: str) -> None:
    await api.index(SHOWN, source("b.md", "other words"))
    asked = question("cancel")
    first = await api.post(asked, **READER)
    other = await api.assemble(question("words"), **READER)
    refs = (first.json()["hash"], first.json()["snapshotId"])
    await api.index({**SHOWN, **TAKEN_AWAY[name]})
    for part in PARTS:
        expected = await _unknown(api, part, **READER)
        for ref in refs:
            answer = await api.get(f"/snapshots/{ref}{part}", **READER)
            assert without_request(assert_problem(answer, 404, "not-found")) == expected
    listed = (await api.read("/snapshots", **READER))["snapshots"]
    assert [one["hash"] for one in listed] == [other["hash"]]
    repeat = await api.post(asked, **READER)
    assert (repeat.status_code, repeat.json()["items"]) == (201, [])
    await api.index(SHOWN)
    for part in PARTS:
        assert (await api.get(f"/snapshots/{refs[0]}{part}", **READER)).status_code == 200
    back = await api.post(asked, **READER)
    assert (back.status_code, back.content) == (200, first.content)


async def test_a_source_that_was_only_excluded_counts_as_well(api: Api) -> None:
    await api.index(source("big.md", chunks=chunks("cancel " * 900)), SHOWN)
    snapshot = await api.assemble(question("cancel", budget={"maxTokens": 500}), **READER)
    assert source_ids(snapshot, "exclusions") == ["big.md"]
    path = f"/snapshots/{snapshot['hash']}"
    await api.index(source("big.md", "moved away", classification="restricted"))
    assert (await api.get(path, **READER)).status_code == 404
    await api.index(source("big.md", "moved back"))
    assert (await api.get(path, **READER)).status_code == 200


async def test_a_deleted_source_keeps_its_last_label(api: Api) -> None:
    await api.index(SHOWN)
    asked = question("cancel")
    first = await api.post(asked, **READER)
    path = f"/snapshots/{first.json()['hash']}"
    await api.delete("booking", "a.md")
    assert (await api.get(path, **READER)).content == first.content
    contents = await api.read(f"{path}/contents", **READER)
    assert [one["text"] for one in contents["contents"]] == ["cancel a booking"]
    assert (await api.read(f"{path}/verify", **READER))["ok"]
    assert (await api.post(asked, **READER)).content == first.content
    await api.index({**SHOWN, "classification": "restricted"})
    await api.delete("booking", "a.md")
    assert (await api.get(path, **READER)).status_code == 404
    assert (await api.get(path)).content == first.content


@pytest.mark.parametrize(
    ("members", "claims"),
    [
        ({"classification": "confidential"}, {"max_classification": "internal"}),
        ({"project": "billing"}, {"projects": ["booking"]}),
        ({"class": "code"}, {"classes": ["task", "documents"]}),
    ],
    ids=["classification", "project", "class"],
)
@pytest.mark.parametrize("narrowed", [False, True], ids=["as an item", "as an exclusion"])
async def test_an_inline_item_keeps_lower_readers_out(
    api: Api, members: Json, claims: Json, narrowed: bool
) -> None:
    """Exclusions too: an item that the request's own scope refuses is still named there."""
    scope: Json = {}
    if narrowed:
        scope = {"projects": ["booking"], "classes": ["task"], "maxClassification": "internal"}
    asked = question(None, items=[item("t", "x") | members], scope=scope)
    snapshot = await api.assemble(asked)
    assert source_ids(snapshot, "exclusions" if narrowed else "items") == ["t"]
    path = f"/snapshots/{snapshot['hash']}"
    assert (await api.get(path)).status_code == 200
    assert_problem(await api.get(path, **claims), 404, "not-found")
    assert (await api.read("/snapshots", **claims))["snapshots"] == []


async def test_a_listing_is_filtered_and_newest_first(api: Api) -> None:
    run, step, attempt = (str(uuid.uuid4()) for _ in range(3))
    asked = [
        question(None, runId=run),
        question(None, runId=run, stepId=step),
        question(None, attemptId=attempt),
        question("x"),
    ]
    hashes = [(await api.assemble(one))["hash"] for one in asked]

    async def listed(**params: str) -> list[str]:
        return [one["hash"] for one in (await api.read("/snapshots", params))["snapshots"]]

    assert await listed() == hashes[::-1]
    assert await listed(runId=run) == hashes[1::-1]
    assert await listed(runId=run.upper(), stepId=step.upper()) == [hashes[1]]
    assert await listed(attemptId=attempt) == [hashes[2]]
    assert await listed(runId=str(uuid.uuid4())) == []
    [line] = (await api.read("/snapshots", {"attemptId": attempt}))["snapshots"]
    snapshot = await api.read(f"/snapshots/{line['hash']}")
    created = line.pop("createdAt")
    assert created.endswith("Z")
    assert line == {
        "hash": snapshot["hash"],
        "snapshotId": snapshot["snapshotId"],
        "runId": snapshot["runId"],
        "stepId": None,
        "attemptId": attempt,
        "usedTokens": 0,
        "degraded": [],
    }


async def test_a_walk_through_the_listing_is_stable_while_snapshots_are_added(api: Api) -> None:
    hashes = [(await api.assemble(question(None)))["hash"] for _ in range(7)][::-1]
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await api.read("/snapshots", {"limit": 2} | ({"cursor": cursor} if cursor else {}))
        seen += [one["hash"] for one in page["snapshots"]]
        cursor = page["nextCursor"]
        await api.assemble(question(None))
    assert seen == hashes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "201"),
        ("limit", "9" * 30),
        ("limit", ""),
        ("runId", "x"),
        ("runId", "{6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11}"),
        ("attemptId", ""),
        ("stepId", "6f1c0c5e0a574a3e9d7e2f6f5f0b8a11"),
        ("runId", "\0"),
    ],
)
async def test_a_bad_filter_is_refused_by_name(api: Api, name: str, value: str) -> None:
    problem = assert_problem(await api.get("/snapshots", {name: value}), 422, "invalid-request")
    assert [error["parameter"] for error in problem["errors"]] == [name]


async def test_contents_are_the_exact_texts_in_the_order_of_their_ranks(api: Api) -> None:
    texts = ["  cancel\n", "cancel <b> & co", "cancel \u0301\u202e日本"]
    await api.index(source("a", chunks=chunks(*texts)))
    snapshot = await api.assemble(
        question(None, items=[item("t", "")], pins=[{"project": "booking", "sourceId": "a"}])
    )
    contents = (await api.read(f"/snapshots/{snapshot['hash']}/contents"))["contents"]
    assert [one["text"] for one in contents] == ["", *texts]
    for one, entry in zip(contents, snapshot["items"], strict=True):
        assert set(one) == {"rank", "contentHash", "text", "erased"}
        assert (one["rank"], one["contentHash"], one["erased"]) == (
            entry["rank"],
            entry["contentHash"],
            False,
        )
        digest = hashlib.sha256(one["text"].encode()).hexdigest()
        assert one["contentHash"] == f"sha256:{digest}"


async def test_the_report_is_bound_to_the_snapshot_and_timings_are_not(api: Api) -> None:
    await api.index(SHOWN)
    snapshot = await api.assemble(question("cancel", scope={"maxClassification": "internal"}))
    answer = await api.read(f"/snapshots/{snapshot['hash']}/report")
    assert set(answer) == {"report", "timings"}
    report = answer["report"]
    digest = "sha256:" + hashlib.sha256(rfc8785.dumps(report)).hexdigest()
    assert digest == snapshot["budget"]["assembly"]["reportHash"]
    predicate = hashlib.sha256(rfc8785.dumps(report["scope"]["predicate"])).hexdigest()
    assert snapshot["scope"]["policy"]["predicateHash"] == f"sha256:{predicate}"
    [leg, absent] = report["retrievers"]
    assert absent == {"name": "vector", "status": "not-configured"}
    assert (leg["name"], leg["status"], leg["candidates"]) == ("lexical", "ok", 1)
    assert leg["predicateHash"] == snapshot["scope"]["policy"]["predicateHash"]
    packing = report["packing"]
    assert packing["gap"] == packing["upperBound"] - packing["value"]
    assert {"scope", "strategy", "fusion", "dedupe", "freshness", "stages"} <= set(report)
    assert all(isinstance(spent, int) and spent >= 0 for spent in answer["timings"].values())


async def test_an_untouched_snapshot_verifies(api: Api) -> None:
    await api.index(SHOWN)
    snapshot = await api.assemble(
        question(
            "cancel", items=[item("t", "x")], pins=[{"project": "booking", "sourceId": "a.md"}]
        )
    )
    answer = await api.read(f"/snapshots/{snapshot['snapshotId']}/verify")
    assert answer["ok"] is True
    assert {"schema", "hash", "id", "contents", "budget", "scope", "report"} <= {
        check["name"] for check in answer["checks"]
    }
    assert all(check["ok"] and check["detail"] for check in answer["checks"])
