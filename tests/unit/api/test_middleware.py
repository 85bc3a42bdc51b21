"""Request ids and body limits, on bare ASGI applications and behind a real server."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
import structlog
import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.middleware.body_limit import BodyLimitMiddleware
from app.api.middleware.request_id import RequestIdMiddleware
from app.api.problems import ProblemMiddleware, install_problem_handlers, request_id_of
from app.api.strict_model import StrictModel
from app.api.strict_route import StrictJsonRoute

MAX_BODY_BYTES = 1_000
MAX_LOAD_BYTES = 5_000
_JSON = {"content-type": "application/json"}
_NDJSON = {"content-type": "application/x-ndjson; charset=utf-8"}


def http_client(app: ASGIApp) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def answer_id(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0)
    structlog.get_logger().info("answered", answered=request_id_of(scope))
    await PlainTextResponse(request_id_of(scope) or "none")(scope, receive, send)


@pytest.mark.parametrize("given", ["a", "A-1_b.c", "x" * 128])
async def test_a_well_formed_id_of_the_caller_is_kept(given: str) -> None:
    async with http_client(RequestIdMiddleware(answer_id)) as client:
        response = await client.get("/", headers={"x-request-id": given})
    assert response.text == given
    assert response.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize(
    "given", [b"", b"x" * 129, b"a b", b"a\nb", b"\xc3\xa9", b"a;b", b"${jndi:x}", b"a\n"]
)
async def test_any_other_id_is_replaced(given: bytes) -> None:
    app = RequestIdMiddleware(answer_id, new_id=lambda: "made-here")
    async with http_client(app) as client:
        response = await client.get("/", headers=[(b"x-request-id", given)])
    assert response.text == response.headers["x-request-id"] == "made-here"


async def test_two_ids_are_replaced_by_one_and_made_ids_differ() -> None:
    async with http_client(RequestIdMiddleware(answer_id)) as client:
        twice = [("x-request-id", "a"), ("x-request-id", "b")]
        made = {(await client.get("/", headers=twice)).text, (await client.get("/")).text}
    assert len(made) == 2
    assert all(re.fullmatch(r"[0-9a-f-]{36}", request_id) for request_id in made)


async def test_the_id_replaces_one_that_the_application_set() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("", headers={"x-request-id": "other"})(scope, receive, send)

    async with http_client(RequestIdMiddleware(answer)) as client:
        response = await client.get("/", headers={"x-request-id": "mine"})
    assert response.headers.get_list("x-request-id") == ["mine"]


async def test_log_lines_of_concurrent_requests_carry_their_own_ids() -> None:
    logs = structlog.testing.LogCapture()
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, logs],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    )
    try:
        async with http_client(RequestIdMiddleware(answer_id)) as client:
            calls = (client.get("/", headers={"x-request-id": f"r{n}"}) for n in range(20))
            await asyncio.gather(*calls)
    finally:
        structlog.configure(**before)
    assert {entry["request_id"] for entry in logs.entries} == {f"r{n}" for n in range(20)}
    assert all(entry["request_id"] == entry["answered"] for entry in logs.entries)
    assert "request_id" not in structlog.contextvars.get_contextvars()


async def test_what_is_not_http_passes_both_middlewares_untouched() -> None:
    seen: list[Scope] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(dict(scope))

    scope = {"type": "lifespan"}
    limited = BodyLimitMiddleware(note, MAX_BODY_BYTES, MAX_LOAD_BYTES)
    await RequestIdMiddleware(ProblemMiddleware(limited))(scope, _no_receive, _no_send)
    assert seen == [{"type": "lifespan"}]


async def _no_receive() -> Message:
    raise AssertionError("nothing is to be read")


async def _no_send(message: Message) -> None:
    raise AssertionError("nothing is to be sent")


class Server:
    """One request to an ASGI application, chunk by chunk, with what it did."""

    def __init__(self, chunks: list[bytes], headers: dict[str, str]) -> None:
        self.chunks = chunks
        self.read = 0
        self.sent: list[Message] = []
        self.scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/orders",
            "state": {"request_id": "r-1"},
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

    async def receive(self) -> Message:
        if self.read == len(self.chunks):
            return {"type": "http.disconnect"}
        self.read += 1
        more = self.read < len(self.chunks)
        return {"type": "http.request", "body": self.chunks[self.read - 1], "more_body": more}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self, app: ASGIApp) -> None:
        limited = BodyLimitMiddleware(app, MAX_BODY_BYTES, MAX_LOAD_BYTES)
        await limited(self.scope, self.receive, self.send)

    @property
    def statuses(self) -> list[int]:
        return [message["status"] for message in self.sent if "status" in message]

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()


async def read_all(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


async def echo_length(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(str(len(await read_all(receive))))(scope, receive, send)


async def swallow_and_answer(scope: Scope, receive: Receive, send: Send) -> None:
    with suppress(Exception):
        await read_all(receive)
    with suppress(Exception):
        await receive()
    await PlainTextResponse("fine")(scope, receive, send)


async def wrap_and_fail(scope: Scope, receive: Receive, send: Send) -> None:
    try:
        await read_all(receive)
    except Exception as error:
        raise RuntimeError("of another kind") from error


async def fail_in_a_group(scope: Scope, receive: Receive, send: Send) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(read_all(receive))


@pytest.mark.parametrize("length", ["1001", "9" * 30, "9" * 5_000, "0001001"])
async def test_a_declared_length_beyond_the_limit_is_refused_before_anything_is_read(
    length: str,
) -> None:
    server = Server([b"x"], {"content-length": length})
    await server.run(echo_length)
    assert server.statuses == [413]
    assert server.read == 0
    assert "1000 bytes" in server.text
    assert "CTXSNAP_MAX_BODY_BYTES" in server.text
    assert '"requestId": "r-1"' in server.text
    assert '"limitBytes": 1000' in server.text


@pytest.mark.parametrize("length", ["1000", "0", "", "-5", "x", "²"])
async def test_other_declared_lengths_are_left_to_the_count(length: str) -> None:
    server = Server([b"x" * 1_000], {"content-length": length})
    await server.run(echo_length)
    assert (server.statuses, server.text) == ([200], "1000")
    server = Server([b"x" * 1_001], {"content-length": length})
    await server.run(echo_length)
    assert server.statuses == [413]


@pytest.mark.parametrize("app", [echo_length, swallow_and_answer, wrap_and_fail, fail_in_a_group])
async def test_a_streamed_body_is_refused_when_it_passes_the_limit_whatever_the_app_does(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
) -> None:
    server = Server([b"x" * 400] * 100, {})
    await server.run(app)
    assert server.read == 3
    assert server.statuses == [413]
    assert "CTXSNAP_MAX_BODY_BYTES" in server.text


async def test_ndjson_has_a_limit_of_its_own() -> None:
    server = Server([b"x" * 5_000], _NDJSON)
    await server.run(echo_length)
    assert server.text == "5000"
    server = Server([b"x" * 5_001], _NDJSON)
    await server.run(echo_length)
    assert server.statuses == [413]
    assert "5000 bytes" in server.text
    assert "CTXSNAP_MAX_LOAD_BYTES" in server.text


async def test_an_error_of_another_cause_is_not_mistaken_for_the_limit() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        await read_all(receive)
        raise RuntimeError("of another kind")

    with pytest.raises(RuntimeError):
        await Server([b"x"], {}).run(fail)


async def test_a_body_that_grows_too_long_after_the_response_began_fails_in_the_reading() -> None:
    async def answer_first(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await read_all(receive)

    server = Server([b"x" * 400] * 100, {})
    with structlog.testing.capture_logs() as logs:
        await ProblemMiddleware(BodyLimitMiddleware(answer_first, 1_000, 1_000))(
            server.scope, server.receive, server.send
        )
    assert server.read == 3
    assert [message["type"] for message in server.sent] == ["http.response.start"]
    assert logs[0]["error_type"] == "app.errors.TooLargeError"


class Order(StrictModel):
    text: str


def application() -> FastAPI:
    router = APIRouter(route_class=StrictJsonRoute)

    @router.post("/orders")
    async def post_order(order: Order) -> int:
        return len(order.text)

    @router.get("/cut")
    async def cut() -> Any:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            headers = [(b"content-length", b"10")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            raise ValueError("secret")

        return type("Cut", (PlainTextResponse,), {"__call__": staticmethod(answer)})("")

    app = FastAPI()
    app.include_router(router)
    install_problem_handlers(app)
    app.add_middleware(BodyLimitMiddleware, max_body_bytes=100_000, max_load_bytes=MAX_LOAD_BYTES)
    app.add_middleware(ProblemMiddleware)
    app.add_middleware(RequestIdMiddleware)
    return app


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application(), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 -- the server has no event to wait for
        await asyncio.sleep(0.01)
    yield int(listener.getsockname()[1])
    server.should_exit = True
    await serving


async def chunks(count: int, size: int = 10_000) -> AsyncIterator[bytes]:
    yield b'{"text":"'
    for _ in range(count):
        yield b"x" * size
    yield b'"}'


async def test_chunked_bodies_are_counted_behind_a_real_server(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        response = await client.post("/orders", content=chunks(9), headers=_JSON)
        assert (response.status_code, response.json()) == (200, 90_000)
        response = await client.post("/orders", content=chunks(500), headers=_JSON)
        assert response.status_code == 413
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["requestId"] == response.headers["x-request-id"]
        response = await client.post("/orders", content=chunks(1), headers=_JSON)
        assert response.status_code == 200


async def test_a_client_that_sends_its_long_body_regardless_still_reads_the_413(
    port: int,
) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(3):
            response = await client.post("/orders", content=b"x" * 20_000_000, headers=_JSON)
            assert response.status_code == 413


async def test_a_declared_length_is_refused_behind_a_real_server_before_the_body_is_sent(
    port: int,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 999999999\r\nExpect: 100-continue\r\n\r\n"
    )
    status_line = await asyncio.wait_for(reader.readline(), 5)
    assert status_line.startswith(b"HTTP/1.1 413 ")
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(port: int) -> None:
    with structlog.testing.capture_logs() as logs:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        await writer.wait_closed()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            response = await client.post("/orders", json={"text": "x"})
    assert response.status_code == 200
    assert logs == []


async def test_a_response_that_fails_halfway_is_cut_and_its_text_stays_out_of_the_logs(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get("/cut")
    assert [entry["event"] for entry in logs] == ["request_failed"]
    assert "secret" not in caplog.text + repr(logs)
