"""What can go wrong between the service and Milvus; each is the retriever's failure."""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from app.config import EmbeddingSettings, Settings
from app.errors import ConfigurationError, RetrieverUnavailableError
from app.external_retrievers import open_engine
from app.main import create_app
from app.retrieval.vector_engine import VectorEngine
from tests.contract.retrievers.backends import engine_settings
from tests.word_vectors import DIMENSIONS, WordVectors

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("pymilvus") is None, reason="needs the extra `milvus`"),
]

VECTOR = WordVectors().vector("cancel")
TIMEOUT = {"timeout_s": "1"}


@pytest.fixture(scope="module")
def answers() -> Any:
    from tests.contract.retrievers import milvus_answers  # noqa: PLC0415

    return milvus_answers


GRPC = """
    CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS
    PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED
    INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED
"""
WRONG = (
    *(f"gRPC {name}" for name in GRPC.split()),
    *(f"Milvus {code}" for code in (1, 8, 9, 100, 101, 1100, 65535)),
    "no message",
    "no query",
    "keys that are texts",
    "a key that no chunk has",
    "without an end",
)


@pytest.mark.parametrize("name", WRONG)
async def test_whatever_is_answered_is_the_retrievers_failure(
    answers: Any, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with answers.answering(answers.searched(answers.wrong(name))) as url:
        settings = engine_settings("milvus", url, options=TIMEOUT, max_bytes=1 << 16)
        async with open_engine(settings) as engine:
            with pytest.raises(RetrieverUnavailableError) as caught:
                await engine.nearest("c", VECTOR, [1], 1)
    assert "approximate-kb" in caught.value.detail
    assert "secret-detail" not in caught.value.detail
    assert capfd.readouterr() == ("", "")


async def test_a_key_is_found_in_an_answer_as_it_should_be(answers: Any) -> None:
    """So that those above fail for what is wrong with them."""
    with answers.answering(answers.searched(answers.good())) as url:
        settings = engine_settings("milvus", url, options=TIMEOUT, max_bytes=1 << 16)
        async with open_engine(settings) as engine:
            assert await engine.nearest("c", VECTOR, [1], 1) == (7,)


CALLS: dict[str, Callable[[VectorEngine], Any]] = {
    "ping": lambda engine: engine.ping(),
    "version": lambda engine: engine.version("c"),
    "nearest": lambda engine: engine.nearest("c", VECTOR, [1], 1),
    "keys": lambda engine: engine.keys("c"),
    "create": lambda engine: engine.create("c", DIMENSIONS),
    "remove": lambda engine: engine.remove("c", [1]),
    "mark": lambda engine: engine.mark("c", 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_each_call_fails_so_where_nobody_listens(
    call: Callable[[VectorEngine], Any],
) -> None:
    async with open_engine(engine_settings("milvus", "http://127.0.0.1:9")) as engine:
        with pytest.raises(RetrieverUnavailableError):
            await call(engine)


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def test_a_silent_server_is_given_up_at_the_deadline(silent: str) -> None:
    async with open_engine(engine_settings("milvus", silent, options=TIMEOUT)) as engine:
        with pytest.raises(RetrieverUnavailableError):
            await engine.ping()


async def test_no_more_threads_wait_than_calls_are_allowed_at_once(answers: Any) -> None:
    """Also where their callers have left."""
    begun, let_go = threading.Semaphore(0), threading.Event()
    asked: list[str] = []

    def told(method: str, _: Any) -> bytes:
        if method == "ShowCollections":
            asked.append(method)
            begun.release()
            let_go.wait(10)
        return b""

    with answers.answering(told) as url:
        async with open_engine(engine_settings("milvus", url, concurrency=2)) as engine:
            calls = [asyncio.create_task(engine.ping()) for _ in range(2)]
            for _ in calls:
                assert await asyncio.to_thread(begun.acquire, timeout=10)
            calls += [asyncio.create_task(engine.ping()) for _ in range(5)]
            await asyncio.sleep(0)
            for one in calls:
                one.cancel()
            await asyncio.wait(calls)
            assert all(one.cancelled() for one in calls)
            let_go.set()
            await engine.ping()
    # Those that had not begun never do.
    assert len(asked) == 3


@pytest.mark.parametrize("trust_env", [False, True])
async def test_a_proxy_of_the_environment_is_used_where_the_settings_say_so(
    answers: Any, trust_env: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with answers.answering(lambda *_: b"") as url:
        settings = engine_settings("milvus", url, options=TIMEOUT, trust_env=trust_env)
        async with open_engine(settings) as engine:
            if not trust_env:
                await engine.ping()
                return
            with pytest.raises(RetrieverUnavailableError):
                await engine.ping()


async def test_the_client_logs_nothing_and_other_libraries_go_on() -> None:
    async with open_engine(engine_settings("milvus", "http://127.0.0.1:9")):
        assert not logging.getLogger("pymilvus.decorators").isEnabledFor(logging.ERROR)
        assert not logging.getLogger("pymilvus.milvus_client.x").isEnabledFor(logging.ERROR)
        assert logging.getLogger("other").isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"url": None}, "needs a `url`"),
        ({"url": "http://user:secret@127.0.0.1"}, "without credentials"),
        ({"url": "http://127.0.0.1/database"}, "without credentials and path"),
        ({"key": "a b"}, "is no token"),
        ({"options": {"database": "../x"}}, "no such name"),
        ({"options": {"timeout_s": "0"}}, "timeout_s"),
        ({"options": {"timeout_s": "1e3"}}, "timeout_s"),
    ],
)
async def test_settings_that_cannot_work_are_refused(
    service_settings: Settings, members: Any, told: str
) -> None:
    one = engine_settings("milvus", **{"url": "http://127.0.0.1:9", **members})
    profile = EmbeddingSettings(url="http://127.0.0.1:9/v1", model="words", dimensions=DIMENSIONS)
    update = {"retrievers": (one,), "embeddings": (profile,)}
    app = create_app(service_settings.model_copy(update=update))
    with pytest.raises(ConfigurationError, match=told):
        async with app.router.lifespan_context(app):
            pass
