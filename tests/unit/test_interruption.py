"""Work that is ended early: at its deadline, for an absent caller, never while it is stored."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.api.middleware.deadline import DeadlineMiddleware
from app.errors import DeadlineExceededError
from app.interruption import Interruption, begin_commit, interruptible
from app.metrics import Metrics

SOON_S = 0.01
LATER_S = 0.05
NEVER_S = 3600


async def test_work_ends_at_its_deadline_and_so_do_the_tasks_that_it_awaits() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        async with interruptible(SOON_S) as interruption, asyncio.TaskGroup() as group:
            group.create_task(wait())
    assert interruption.happened
    assert ended == [True]


@pytest.mark.parametrize("in_a_task", [False, True])
async def test_work_that_is_being_stored_goes_on_to_its_end(in_a_task: bool) -> None:
    async def store() -> None:
        begin_commit()
        interruption.end_for_absent_caller()
        await asyncio.sleep(LATER_S)

    async with interruptible(SOON_S) as interruption:
        await (asyncio.create_task(store()) if in_a_task else store())
    assert not interruption.happened
    assert not interruption.caller_left


async def test_an_absent_caller_ends_the_work_at_once() -> None:
    async def work() -> None:
        async with interruptible(NEVER_S) as interruption:
            interruptions.append(interruption)
            asyncio.get_running_loop().call_soon(interruption.end_for_absent_caller)
            await asyncio.sleep(NEVER_S)

    interruptions: list[Interruption] = []
    with pytest.raises(TimeoutError):
        await work()
    assert interruptions[0].caller_left


async def test_outside_of_a_request_there_is_nothing_to_end() -> None:
    async with interruptible(NEVER_S):
        pass
    begin_commit()


async def _call(app: DeadlineMiddleware, *headers: tuple[bytes, bytes]) -> list[Message]:
    sent: list[Message] = []
    first = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if first:
            return first.pop()
        await asyncio.sleep(NEVER_S)
        raise AssertionError("the caller stays")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/x", "headers": list(headers), "route": None}
    await app(scope, receive, send)
    return sent


async def _never(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(NEVER_S)


async def _answer_slowly(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.sleep(LATER_S)
    await send({"type": "http.response.body", "body": b"whole"})


def _middleware(app: object, timeout_s: float) -> DeadlineMiddleware:
    return DeadlineMiddleware(
        app,  # type: ignore[arg-type]
        timeout_s=timeout_s,
        metrics=Metrics(),
        public_paths=frozenset(),
    )


async def test_the_setting_is_the_deadline_of_who_names_none_and_the_longest() -> None:
    for headers in ((), ((b"request-timeout-ms", b"999999"),)):
        with pytest.raises(DeadlineExceededError, match="within 10 ms"):
            await _call(_middleware(_never, SOON_S), *headers)
    with pytest.raises(DeadlineExceededError, match="within 20 ms"):
        await _call(_middleware(_never, NEVER_S), (b"request-timeout-ms", b"20"))


async def test_an_answer_that_has_begun_is_not_cut_off() -> None:
    sent = await _call(_middleware(_answer_slowly, SOON_S))
    assert sent[-1]["body"] == b"whole"


async def test_a_timeout_of_the_application_s_own_is_not_taken_for_the_deadline() -> None:
    async def give_up(scope: Scope, receive: Receive, send: Send) -> None:
        raise TimeoutError("of something else")

    with pytest.raises(TimeoutError, match="of something else"):
        await _call(_middleware(give_up, NEVER_S))
