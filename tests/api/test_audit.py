"""Each call leaves one event, and only in its own tenant's log."""

import json
import uuid
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.adapters.postgres.audit_log import PostgresAuditLog
from app.adapters.postgres.database import Database
from app.audit.chain import ChainCheck
from app.errors import UnavailableError
from tests.api.service import Api, Json, assert_problem, item, question, source

UNKNOWN = "sha256:" + "0" * 64


async def events(api: Api, **narrowed: str | int) -> list[Json]:
    """All events from the oldest to the newest, but those of looking."""
    found: list[Json] = []
    parameters: dict[str, str | int] = {"limit": 1000, **narrowed}
    while True:
        page = await api.read("/audit", parameters, sub="auditor")
        found.extend(page["events"])
        if page["nextCursor"] is None:
            break
        parameters["cursor"] = page["nextCursor"]
    return [one for one in reversed(found) if one["subject"] != "auditor"]


async def only_event(api: Api) -> Json:
    (found,) = await events(api)
    return found


def told(event: Json) -> tuple[str, str, str | None]:
    return event["action"], event["outcome"], event.get("code")


async def test_an_event_says_who_did_what_and_when(api: Api) -> None:
    asked = question(None, items=[item("t", "Add an endpoint.")])
    headers = {**api.headers(act={"sub": "agent:planner"}), "X-Request-Id": "r-17"}
    answer = await api.client.post("/snapshots", json=asked, headers=headers)
    event = await only_event(api)
    assert uuid.UUID(event.pop("id")).version == 4
    assert event.pop("at").endswith("Z")
    assert event == {
        "subject": "ana",
        "agent": "agent:planner",
        "action": "createSnapshot",
        "outcome": "allowed",
        "code": "assembled",
        "requestId": "r-17",
        "targets": {
            "runId": asked["runId"],
            "attemptId": asked["attemptId"],
            "snapshot": answer.json()["hash"],
        },
    }


async def test_assembling_tells_new_ones_from_repeats(api: Api) -> None:
    asked = question(None)
    first = await api.assemble(asked)
    for refresh in ("false", "true"):
        assert (await api.post(asked, {"refresh": refresh})).status_code == 200
    found = await events(api)
    assert [told(event)[2] for event in found] == ["assembled", "repeat", "repeat"]
    assert {event["targets"]["snapshot"] for event in found} == {first["hash"]}


async def test_every_way_of_reading_a_snapshot_names_it_by_its_hash(api: Api) -> None:
    made = await api.assemble(question(None))
    parts = {
        "": "getSnapshot",
        "/contents": "getSnapshotContents",
        "/prompt": "getSnapshotPrompt",
        "/report": "getSnapshotReport",
        "/verify": "verifySnapshot",
    }
    for ref in (made["hash"], made["snapshotId"]):
        for part in parts:
            assert (await api.get(f"/snapshots/{ref}{part}")).status_code == 200
    found = (await events(api))[1:]
    assert [told(event) for event in found] == [
        (name, "allowed", None) for name in parts.values()
    ] * 2
    assert {event["targets"]["snapshot"] for event in found} == {made["hash"]}


async def test_a_snapshot_that_was_not_modified_was_read_all_the_same(api: Api) -> None:
    made = await api.assemble(question(None))
    headers = {**api.headers(), "If-None-Match": f'"{made["hash"]}"'}
    answer = await api.client.get(f"/snapshots/{made['hash']}", headers=headers)
    assert answer.status_code == 304
    assert told((await events(api))[1]) == ("getSnapshot", "allowed", None)


async def test_listings_tell_what_they_were_narrowed_to(api: Api) -> None:
    run = str(uuid.uuid4())
    await api.read("/snapshots", {"runId": run, "limit": 5})
    await api.read("/sources", {"project": "booking", "prefix": "docs/"})
    await api.read("/index")
    await api.read("/strategies")
    await api.read("/strategies/default")
    assert [(event["action"], event["targets"]) for event in await events(api)] == [
        ("listSnapshots", {"runId": run}),
        ("listSources", {"project": "booking", "prefix": "docs/"}),
        ("getIndex", {}),
        ("listStrategies", {}),
        ("getStrategy", {"id": "default"}),
    ]


async def test_changes_of_the_index_name_their_sources(api: Api) -> None:
    one, two = source("a.md", "alpha"), source("b.md", "beta")
    await api.index(one, two)
    await api.index(one, two)
    assert (await api.delete("booking", "a.md")).status_code == 200
    assert_problem(await api.delete("booking", "a.md"), 404, "not-found")
    names = [{"project": "booking", "sourceId": name} for name in ("a.md", "b.md")]
    assert [(*told(event), event["targets"]) for event in await events(api)] == [
        ("putSources", "allowed", None, {"count": 2, "sources": names}),
        ("putSources", "allowed", None, {"count": 2, "sources": names}),
        ("deleteSource", "allowed", None, names[0]),
        ("deleteSource", "refused", "not-found", names[0]),
    ]


async def test_a_long_list_of_sources_is_counted_and_its_beginning_named(api: Api) -> None:
    await api.index(*(source(f"{number}.md", "x") for number in range(30)))
    targets = (await only_event(api))["targets"]
    assert targets["count"] == 30
    assert [one["sourceId"] for one in targets["sources"]] == [f"{n}.md" for n in range(20)]


async def call(api: Api, method: str, path: str, body: Any = None, **claims: Any) -> httpx.Response:
    return await api.client.request(method, path, json=body, headers=api.headers(**claims))


SNAPSHOT = {"runId": str(uuid.UUID(int=1)), "attemptId": str(uuid.UUID(int=2))}
IDS = {"runId": SNAPSHOT["runId"], "attemptId": SNAPSHOT["attemptId"]}
REFUSALS: dict[str, tuple[str, str, Any, Json, int, str, str, Json]] = {
    "no permission to assemble": (
        "POST", "/snapshots", SNAPSHOT, {"scope": "snapshots:read"},
        403, "createSnapshot", "permission-missing", {},
    ),
    "no permission to read": (
        "GET", f"/snapshots/{UNKNOWN}", None, {"scope": "index:read"},
        403, "getSnapshot", "permission-missing", {"ref": UNKNOWN},
    ),
    "no permission to delete": (
        "DELETE", "/sources?project=booking&sourceId=a.md", None, {"scope": ""},
        403, "deleteSource", "permission-missing", {"project": "booking", "sourceId": "a.md"},
    ),
    "a scope beyond the grant": (
        "POST", "/snapshots", {**SNAPSHOT, "scope": {"projects": ["secret"]}},
        {"projects": ["booking"]}, 403, "createSnapshot", "scope-exceeds-grant", IDS,
    ),
    "a source beyond the grant": (
        "PUT", "/sources", {"sources": [source("a.md", "x")]}, {"projects": ["other"]},
        403, "putSources", "scope-exceeds-grant",
        {"count": 1, "sources": [{"project": "booking", "sourceId": "a.md"}]},
    ),
    "an unknown snapshot": (
        "GET", f"/snapshots/{UNKNOWN}/prompt", None, {},
        404, "getSnapshotPrompt", "not-found", {"ref": UNKNOWN},
    ),
    "no reference at all": (
        "GET", "/snapshots/never%00heard", None, {},
        422, "getSnapshot", "invalid-request", {"ref": "never\\x00heard"},
    ),
    "a budget that is too small": (
        "POST", "/snapshots",
        {**SNAPSHOT, "budget": {"maxTokens": 40}, "items": [item("t", "many words " * 90)]},
        {}, 422, "createSnapshot", "budget-too-small", IDS,
    ),
    "an unknown field": (
        "POST", "/snapshots", {**SNAPSHOT, "colour": "red"}, {},
        422, "createSnapshot", "invalid-request", {},
    ),
    "an unknown parameter": (
        "GET", "/index?query=a+secret", None, {}, 422, "getIndex", "invalid-request", {},
    ),
    "a path that does not exist": (
        "GET", "/nowhere?query=a+secret", None, {},
        404, "unrouted", "not-found", {"method": "GET", "path": "/nowhere"},
    ),
    "a method that a path does not take": (
        "DELETE", "/snapshots", None, {},
        405, "unrouted", "method-not-allowed", {"method": "DELETE", "path": "/snapshots"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_leaves_one_event_with_its_code(api: Api, name: str) -> None:
    method, path, body, claims, status, action, code, targets = REFUSALS[name]
    answer = await call(api, method, path, body, **claims)
    assert answer.status_code == status, answer.text
    event = await only_event(api)
    assert (*told(event), event["targets"]) == (action, "refused", code, targets)
    assert event["requestId"] == answer.headers["x-request-id"]


async def test_a_body_that_is_too_large_or_no_json_is_told_of(api: Api) -> None:
    headers = {**api.headers(), "Content-Type": "application/json"}
    for body, status in ((b"{", 400), (b" " * (8 * 1024 * 1024 + 1), 413)):
        answer = await api.client.post("/snapshots", content=body, headers=headers)
        assert answer.status_code == status
    assert [told(event)[1:] for event in await events(api)] == [
        ("refused", "malformed-request"),
        ("refused", "too-large"),
    ]


async def test_a_failure_of_ours_is_told_of_as_such(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a text that nobody should see")

    monkeypatch.setattr("app.adapters.postgres.source_index.PostgresSourceIndex.describe", fail)
    assert_problem(await api.get("/index"), 500, "internal")
    assert told(await only_event(api)) == ("getIndex", "failed", "internal")


async def test_looking_at_the_log_is_in_the_log(api: Api) -> None:
    for _ in range(2):
        page = await api.read("/audit")
    assert [event["action"] for event in page["events"]] == ["listAuditEvents"]


async def test_calls_without_a_valid_token_and_of_operators_are_in_no_log(api: Api) -> None:
    await api.read("/index")
    for path in ("/index", "/healthz", "/readyz", "/metrics"):
        await api.client.get(path)
    await api.client.get("/index", headers=api.headers(exp=1))
    assert len(await events(api)) == 1


async def test_a_tenant_sees_its_own_events_only(api: Api) -> None:
    other = api.elsewhere()
    await api.read("/index")
    await other.read("/strategies")
    assert [event["action"] for event in await events(api)] == ["getIndex"]
    assert [event["action"] for event in await events(other)] == ["listStrategies"]
    sealed = await other.read("/audit/seals")
    assert sealed["tenant"] == other.tenant
    assert {event["action"] for event in sealed["seals"][0]["events"]} == {
        "listStrategies",
        "listAuditEvents",
    }


async def test_texts_and_queries_are_never_in_the_log(api: Api) -> None:
    secret = "kumquat"
    await api.index(source("a.md", f"about {secret}"))
    made = await api.assemble(question(secret, items=[item("t", f"{secret}?", provenance=secret)]))
    await api.read(f"/snapshots/{made['hash']}/contents")
    await api.post({**question(secret), "unknown": secret})
    await api.put(source("a.md", secret, unknown=secret))
    await api.get("/index", {"query": secret})
    found = await events(api)
    assert len(found) == 6
    assert secret not in json.dumps(found)


@pytest.mark.parametrize("path", ["/audit", "/audit/seals"])
async def test_the_log_needs_its_own_permission(api: Api, path: str) -> None:
    others = "snapshots:assemble snapshots:read index:write index:read"
    assert_problem(await api.get(path, scope=others), 403, "permission-missing")


async def test_pages_hold_each_event_once_while_others_are_added(api: Api) -> None:
    for _ in range(7):
        await api.read("/index")
    pages: list[list[Json]] = []
    asked: dict[str, str | int] = {"limit": 3}
    while True:
        page = await api.read("/audit", asked, sub="auditor")
        pages.append(page["events"])
        if page["nextCursor"] is None:
            break
        asked["cursor"] = page["nextCursor"]
    found = [event for page in pages for event in page]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [event["action"] for event in found] == ["getIndex"] * 7
    assert len({event["id"] for event in found}) == 7
    assert [event["at"] for event in found] == sorted((one["at"] for one in found), reverse=True)


async def test_since_leaves_out_what_was_before(api: Api) -> None:
    await api.read("/index")
    await api.read("/strategies")
    first, second = await events(api)
    assert [one["id"] for one in await events(api, since=second["at"])] == [second["id"]]
    assert await events(api, since="9999-12-31T23:59:59Z") == []
    assert len(await events(api, since="0001-01-01T00:00:00Z")) == 2
    assert first["at"] < second["at"]
    assert_problem(
        await api.get("/audit", {"since": "2025-01-01T00:00:00"}), 422, "invalid-request"
    )


@pytest.mark.parametrize("path", ["/audit", "/audit/seals"])
@pytest.mark.parametrize("cursor", ["x", "W10", "WyIxIl0x", "WyIyMDI1IiwgIngiXQ", "WyItMSJd"])
async def test_a_cursor_of_ones_own_making_is_refused(api: Api, path: str, cursor: str) -> None:
    assert_problem(await api.get(path, {"cursor": cursor}), 422, "invalid-cursor")


async def test_the_export_is_complete_and_its_chain_holds(api: Api) -> None:
    seals: list[Json] = []
    for number in range(3):
        await api.read("/index")
        await api.read("/audit/seals", sub=f"auditor {number}")
    check, asked = ChainCheck(api.tenant), dict[str, str | int](limit=1)
    while True:
        page = await api.read("/audit/seals", asked)
        seals.extend(page["seals"])
        if page["nextCursor"] is None:
            break
        asked["cursor"] = page["nextCursor"]
    for seal in seals:
        check.take(seal)
    assert check.faults == []
    assert [seal["sequence"] for seal in seals] == [1, 2, 3, 4]
    actions = [[event["action"] for event in seal["events"]] for seal in seals]
    assert actions == [
        ["getIndex"],
        ["listAuditSeals", "getIndex"],
        ["listAuditSeals", "getIndex"],
        ["listAuditSeals"],
    ]
    listed = {event["id"]: event for event in (await api.read("/audit"))["events"]}
    assert all(listed[one["id"]] == one for seal in seals for one in seal["events"])


async def test_a_call_whose_event_cannot_be_stored_is_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await api.assemble(question(None))

    async def fail(*_: object) -> None:
        raise UnavailableError("The database is away.")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresAuditLog, "append", fail)
        answer = await api.get(f"/snapshots/{made['hash']}")
        assert_problem(answer, 503, "audit-unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert "items" not in answer.json()
        refused = await api.get(f"/snapshots/{UNKNOWN}")
        assert_problem(refused, 503, "audit-unavailable")
        # Stored in one transaction with its event: there is nothing left to add.
        assert (await api.post(question(None))).status_code == 201
    metrics = (await api.client.get("/metrics")).text
    assert "ctxsnap_audit_failures_total 2.0" in metrics
    assert [told(event)[2] for event in await events(api)] == ["assembled", "assembled"]


async def test_a_snapshot_whose_event_cannot_be_stored_is_not_stored_either(
    api: Api, embedded_superuser: Database
) -> None:
    await api.read("/index")
    asked = question(None)
    async with embedded_superuser.engine.begin() as connection:
        key = await connection.execute(
            sa.text("SELECT tenant_key FROM tenants WHERE name = :name"), {"name": api.tenant}
        )
        rule = f"CHECK (tenant_key <> {key.scalar_one()} OR code <> 'assembled')"
        await connection.execute(
            sa.text(f"ALTER TABLE audit_events ADD CONSTRAINT refused {rule} NOT VALID")
        )
    try:
        assert (await api.post(asked)).status_code == 500
        assert (await api.read("/snapshots"))["snapshots"] == []
    finally:
        async with embedded_superuser.engine.begin() as connection:
            await connection.execute(sa.text("ALTER TABLE audit_events DROP CONSTRAINT refused"))
    assert (await api.post(asked)).status_code == 201
