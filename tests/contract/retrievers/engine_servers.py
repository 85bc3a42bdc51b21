"""Real engines as processes of their own."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.shared.service_process import free_port

_START_TIMEOUT_S = 60.0


@contextmanager
def running_chroma(folder: Path) -> Iterator[str]:
    """The URL of `chroma run`, from the dependency group `engines` or elsewhere on the path."""
    command = _command("chroma", "chromadb")
    url = f"http://127.0.0.1:{(port := free_port())}"
    arguments = [command, "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "ANONYMIZED_TELEMETRY": "False"}
    with subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as server:
        try:
            _wait_until(server, lambda: _answers(f"{url}/api/v2/heartbeat"))
            yield url
        finally:
            server.kill()


@contextmanager
def running_milvus(folder: Path) -> Iterator[str]:
    """The URL of `milvus-lite server`, which has Milvus' interface and an engine of its own."""
    command = _command("milvus-lite", "milvus-lite")
    if find_spec("pymilvus") is None:
        pytest.skip("needs the PyPI package pymilvus")
    port = free_port()
    arguments = [command, "server", "--data-dir", str(folder), "--host", "127.0.0.1"]
    with subprocess.Popen(
        [*arguments, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            _wait_until(server, lambda: _listens(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


RUNNING = {"chroma": running_chroma, "milvus": running_milvus}
"""By the type of the retriever."""


def _command(name: str, package: str) -> str:
    beside = Path(sys.executable).parent
    command = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if command is None:
        pytest.skip(f"needs the command `{name}` of the PyPI package {package}")
    return command


def _wait_until(server: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not ready():
        assert server.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
