"""GET /snapshots/{ref}/diff/{other}: what differs, why, and for whom it exists."""

import pytest

from tests.api.service import Api, Json, assert_problem, question, source, without_request

UNKNOWN = f"sha256:{'0' * 64}"
SHOWN = source("a.md", "cancel a booking")


async def _diff(api: Api, before: Json, after: Json) -> Json:
    return await api.read(f"/snapshots/{before['hash']}/diff/{after['hash']}")


def _name(source_id: str) -> Json:
    return {"project": "booking", "sourceId": source_id, "chunkId": "0"}


async def _side(snapshot: Json, source_id: str) -> Json:
    [item] = [one for one in snapshot["items"] if one["sourceId"] == source_id]
    return {name: item[name] for name in ("rank", "sourceRevision", "contentHash")}


async def test_the_index_and_revisions_that_moved_on_are_told(api: Api) -> None:
    await api.index(SHOWN, source("b.md", "cancel an order"))
    before = await api.assemble(question("cancel"))
    await api.delete("booking", "b.md")
    await api.index({**SHOWN, "sourceRevision": "2"}, source("c.md", "cancel"))
    after = await api.assemble(question("cancel"))
    answer = await _diff(api, before, after)
    assert set(answer) == {"items", "causes"}
    assert set(answer["items"]) == {"added", "removed", "moved", "changed"}
    assert answer["items"]["added"] == [{**_name("c.md"), "after": await _side(after, "c.md")}]
    assert answer["items"]["removed"] == [{**_name("b.md"), "before": await _side(before, "b.md")}]
    assert answer["items"]["moved"] == []
    [changed] = answer["items"]["changed"]
    sides = {"before": await _side(before, "a.md"), "after": await _side(after, "a.md")}
    assert changed == {**_name("a.md"), **sides}
    causes = {one["item"]["sourceId"]: one["cause"] for one in answer["causes"]}
    assert causes == {"a.md": "revision", "b.md": "index", "c.md": "index"}
    assert all(
        one["detail"] and set(one) == {"item", "cause", "detail"} for one in answer["causes"]
    )


@pytest.mark.parametrize(
    ("members", "cause"),
    [
        ({"query": "order"}, "query"),
        ({"strategy": "lexical-only", "query": "cancel", "scope": {"groups": []}}, "strategy"),
        ({"scope": {"sources": {"deny": ["a*"]}}}, "scope"),
        ({"budget": {"maxTokens": 200, "reservedForOutput": 190}}, "budget"),
    ],
    ids=["query", "strategy", "scope", "budget"],
)
async def test_what_the_second_request_did_differently_is_the_cause(
    api: Api, members: Json, cause: str
) -> None:
    await api.index({**SHOWN, "acl": {"allow": ["group:eng"]}})
    before = await api.assemble(question("cancel"), groups=["eng"])
    after = await api.assemble(question("cancel") | members, groups=["eng"])
    path = f"/snapshots/{before['hash']}/diff/{after['hash']}"
    answer = await api.read(path, groups=["eng"])
    [told] = answer["causes"]
    assert (told["item"]["sourceId"], told["cause"]) == ("a.md", cause)
    assert len(answer["items"]["removed"]) == 1


async def test_ids_do_as_well_as_hashes_and_equal_snapshots_do_not_differ(api: Api) -> None:
    await api.index(SHOWN)
    one, other = [await api.assemble(question("cancel")) for _ in range(2)]
    by_hash = await api.get(f"/snapshots/{one['hash']}/diff/{other['hash']}")
    by_id = await api.get(f"/snapshots/{one['snapshotId']}/diff/{other['snapshotId'].upper()}")
    assert by_id.content == by_hash.content
    nothing: Json = {"added": [], "removed": [], "moved": [], "changed": []}
    assert by_hash.json() == {"items": nothing, "causes": []}


async def test_either_snapshot_that_is_not_for_the_caller_is_like_an_unknown_one(api: Api) -> None:
    await api.index(SHOWN, source("secret.md", "ledger", classification="restricted"))
    own = await api.assemble(question("cancel"))
    secret = await api.assemble(question("ledger"))
    foreign = await api.elsewhere().assemble(question(None))
    low: Json = {"max_classification": "internal"}
    unknown = await api.get(f"/snapshots/{UNKNOWN}", **low)
    expected = without_request(assert_problem(unknown, 404, "not-found"))
    refs = (secret["hash"], secret["snapshotId"], foreign["hash"], UNKNOWN, "x", "'--")
    for ref in refs:
        for path in (f"{own['hash']}/diff/{ref}", f"{ref}/diff/{own['hash']}"):
            answer = await api.get(f"/snapshots/{path}", **low)
            assert without_request(assert_problem(answer, 404, "not-found")) == expected, path
    assert (await _diff(api, own, secret))["items"]["added"] != []
    refused = await api.get(f"/snapshots/{own['hash']}/diff/{own['hash']}", scope="index:read")
    assert_problem(refused, 403, "permission-missing")


async def test_both_snapshots_are_in_the_audit_log(api: Api) -> None:
    one, other = [await api.assemble(question(None)) for _ in range(2)]
    await api.read(f"/snapshots/{one['snapshotId']}/diff/{other['snapshotId']}")
    event = (await api.read("/audit"))["events"][0]
    assert (event["action"], event["outcome"]) == ("diffSnapshots", "allowed")
    assert event["targets"] == {
        "ref": one["snapshotId"],
        "other": other["snapshotId"],
        "snapshot": one["hash"],
        "otherSnapshot": other["hash"],
    }
