"""Too much work, too little time, callers that leave, and a service that is told to stop."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager
from fastapi import FastAPI
from starlette.types import Message

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.config import Settings
from app.main import create_app
from tests.api.service import Api, assert_problem, item, question, source
from tests.faults.held_table import PATIENCE_S, held
from tests.faults.test_two_services import Caller, service
from tests.recipes import calling

CONCURRENT, QUEUED = 2, 3
READ_FIRST, USED_BY_STORING = "label_states", "snapshot_contents"


@pytest.fixture(scope="module")
async def narrow(service_settings: Settings) -> AsyncIterator[FastAPI]:
    limits = {"max_concurrent_requests": CONCURRENT, "max_queued_requests": QUEUED}
    app = create_app(service_settings.model_copy(update=limits))
    async with LifespanManager(app, startup_timeout=60, shutdown_timeout=60):
        yield app


@pytest.fixture(scope="module")
async def client(narrow: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(narrow) as opened:
        yield opened


async def _stored(api: Api) -> int:
    return len((await api.read("/snapshots"))["snapshots"])


async def _gauge(api: Api, name: str) -> float:
    text = (await api.client.get("/metrics")).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name)))


async def test_what_is_beyond_the_queue_is_refused_at_once_and_the_rest_is_served(
    api: Api, owner: Database
) -> None:
    await api.index(source("a.md", "cancel a booking"))
    async with asyncio.TaskGroup() as group, held(owner, READ_FIRST) as table:
        served = [
            group.create_task(api.post(question("cancel"))) for _ in range(CONCURRENT + QUEUED)
        ]
        await table.wait_for(CONCURRENT)
        # Nobody lets the table go before this answer is here: it did not wait.
        for answer in (await api.post(question("cancel")), await api.put(source("b.md", "x"))):
            assert_problem(answer, 503, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
        assert await _gauge(api, "ctxsnap_admitted_requests") == CONCURRENT
        assert await _gauge(api, "ctxsnap_queued_requests") == QUEUED
        assert (await api.client.get("/healthz")).status_code == 200
        assert (await api.client.get("/readyz")).status_code == 200
        assert (await api.get("/sources")).status_code == 200
        assert not any(task.done() for task in served)
    assert [task.result().status_code for task in served] == [201] * len(served)
    assert await _gauge(api, "ctxsnap_admitted_requests") == 0
    assert await _gauge(api, "ctxsnap_queued_requests") == 0
    events = (await api.read("/audit"))["events"]
    assert [event for event in events if event.get("code") == "overloaded"] == []
    assert (await api.post(question("cancel"))).status_code == 201


async def _until_queued(api: Api, requests: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await _gauge(api, "ctxsnap_queued_requests") != requests:  # noqa: ASYNC110 -- a gauge
            await asyncio.sleep(0)


async def test_a_caller_that_leaves_the_queue_makes_room(api: Api, owner: Database) -> None:
    async with asyncio.TaskGroup() as group, held(owner, READ_FIRST) as table:
        under_way = [group.create_task(api.post(question(None))) for _ in range(CONCURRENT)]
        await table.wait_for(CONCURRENT)
        waiting = [asyncio.create_task(api.post(question(None))) for _ in range(QUEUED)]
        await _until_queued(api, QUEUED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await _until_queued(api, 0)
    assert {task.result().status_code for task in under_way} == {201}


async def _post_within(api: Api, milliseconds: str, body: dict[str, Any]) -> httpx.Response:
    headers = {**api.headers(), "Request-Timeout-Ms": milliseconds}
    return await api.client.post("/snapshots", json=body, headers=headers)


async def test_past_its_deadline_a_request_is_504_and_nothing_is_stored(
    api: Api, owner: Database
) -> None:
    await api.index(source("a.md", "cancel a booking"))
    asked = question("cancel")
    async with held(owner, READ_FIRST) as table:
        answer = await _post_within(api, "300", asked)
        assert "300 ms" in assert_problem(answer, 504, "deadline-exceeded")["detail"]
        await table.wait_for(0)
    assert await _stored(api) == 0
    [event] = [one for one in (await api.read("/audit"))["events"] if one["outcome"] == "failed"]
    assert (event["action"], event["code"]) == ("createSnapshot", "deadline-exceeded")
    assert (await _post_within(api, "60000", asked)).status_code == 201


async def test_time_in_the_queue_counts(api: Api, owner: Database) -> None:
    async with asyncio.TaskGroup() as group, held(owner, READ_FIRST) as table:
        under_way = [group.create_task(api.post(question(None))) for _ in range(CONCURRENT)]
        await table.wait_for(CONCURRENT)
        answer = await _post_within(api, "50", question(None))
        assert_problem(answer, 504, "deadline-exceeded")
    assert {task.result().status_code for task in under_way} == {201}
    failed = [one for one in (await api.read("/audit"))["events"] if one["outcome"] == "failed"]
    assert [one["action"] for one in failed] == ["createSnapshot"]


async def test_a_load_past_its_deadline_changes_nothing(api: Api, owner: Database) -> None:
    await api.index(source("a.md", "cancel a booking"))
    headers = {**api.headers(), "Request-Timeout-Ms": "300"}
    async with held(owner, READ_FIRST) as table:
        body = {"sources": [source("b.md", "another")]}
        answer = await api.client.put("/sources", json=body, headers=headers)
        assert_problem(answer, 504, "deadline-exceeded")
        await table.wait_for(0)
    assert await api.index_version() == 1


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e3", "soon", "", "9" * 10])
async def test_a_deadline_that_is_no_number_of_milliseconds_is_refused(
    api: Api, value: str
) -> None:
    problem = assert_problem(await _post_within(api, value, question(None)), 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == "Request-Timeout-Ms"


class _Caller:
    """One call of the application as a server makes it; the caller may leave."""

    def __init__(self, api: Api, method: str, path: str, body: bytes = b"") -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: list[Message] = []
        headers = {**api.headers(), "content-type": "application/json"}
        if body:
            headers["content-length"] = str(len(body))
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }

    async def call(self, app: FastAPI) -> None:
        async def send(message: Message) -> None:
            self.sent.append(message)

        await app(self._scope, self._messages.get, send)

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})


async def _tasks_are(before: set[Any]) -> None:
    """The driver's own task that tells the server to give up is a moment longer."""
    async with asyncio.timeout(PATIENCE_S):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110 -- tasks have no event for it
            await asyncio.sleep(0.01)


async def test_when_the_caller_leaves_the_work_ends_and_nothing_is_left(
    api: Api, narrow: FastAPI, owner: Database
) -> None:
    await api.index(source("a.md", "cancel a booking"))
    body = httpx.Request("POST", "http://x", json=question("cancel")).content
    for caller in (
        _Caller(api, "POST", "/snapshots", body),
        _Caller(api, "GET", "/index"),
    ):
        before, left = asyncio.all_tasks(), await _gauge(api, "ctxsnap_callers_left_total")
        async with held(owner, READ_FIRST) as table:
            calls = asyncio.create_task(caller.call(narrow))
            await table.wait_for(1)
            caller.leave()
            await calls
            await table.wait_for(0)
            await _tasks_are(before)
        assert caller.sent == []
        assert await _gauge(api, "ctxsnap_callers_left_total") == left + 1
    assert await _stored(api) == 0
    assert await _gauge(api, "ctxsnap_admitted_requests") == 0


async def test_a_caller_that_leaves_while_its_snapshot_is_stored_finds_it_again(
    api: Api, narrow: FastAPI, owner: Database
) -> None:
    asked = question(None, items=[item("task", "Do it.")])
    caller = _Caller(
        api, "POST", "/snapshots", httpx.Request("POST", "http://x", json=asked).content
    )
    async with held(owner, USED_BY_STORING) as table:
        calls = asyncio.create_task(caller.call(narrow))
        await table.wait_for(1)
        caller.leave()
    await calls
    again = await api.post(asked)
    assert again.status_code == 200
    [event] = [
        one for one in (await api.read("/audit"))["events"] if one.get("code") == "assembled"
    ]
    assert event["targets"]["snapshot"] == again.json()["hash"]


async def test_a_real_server_ends_what_nobody_waits_for_and_finishes_what_it_accepted(
    migrated: EmbeddedDatabase, owner: Database, tenant: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = migrated.serving_url
        async with service(Path(folder), tenant, CTXSNAP_DATABASE_URL=url) as running:
            await _leave_and_see_the_work_end(running.caller, owner)
            async with held(owner, USED_BY_STORING) as table:
                accepted = asyncio.create_task(running.caller.assemble())
                await table.wait_for(1)
                os.kill(running.process.pid, signal.SIGTERM)
                async with asyncio.timeout(PATIENCE_S):
                    await _until_refused(running.caller.client)
                assert not accepted.done()
            assert (await accepted).status_code == 201
            async with asyncio.timeout(PATIENCE_S):
                _, errors = await running.process.communicate()
            assert (running.process.returncode, errors.decode()) == (0, "")
    async with owner.engine.connect() as connection:
        await connection.execute(sa.text("SELECT enter_tenant(:name, false)"), {"name": tenant})
        stored = await connection.execute(sa.text("SELECT count(*) FROM snapshots"))
        assert stored.scalar_one() == 1


async def _leave_and_see_the_work_end(caller: Caller, owner: Database) -> None:
    assert (await caller.put("a.md")).status_code == 200
    async with held(owner, READ_FIRST) as table:
        leaving = asyncio.create_task(caller.assemble())
        await table.wait_for(1)
        leaving.cancel()
        await table.wait_for(0)
    metrics = (await caller.client.get("/metrics")).text
    assert "ctxsnap_callers_left_total 1.0" in metrics


async def _until_refused(client: httpx.AsyncClient) -> None:
    """By connections of their own: one that is kept alive may be served to its end."""
    while True:
        try:
            await client.get("/healthz", headers={"Connection": "close"})
        except httpx.TransportError:
            return
        await asyncio.sleep(0.02)
