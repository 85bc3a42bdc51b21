"""Generated clients against the running service; `make clients` generates and compiles them."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.adapters.development_key import load_or_create_development_key
from tests.shared.service_process import ServiceProcess, free_port
from tests.tokens import TokenFactory

_HERE = Path(__file__).parent
_GENERATED = _HERE.parents[1] / ".clients"
_GUIDE = _HERE.parents[1] / "docs" / "clients.md"
_PYTHON = str(_GENERATED / "venv" / "bin" / "python")
COMMANDS = {
    "openapi-python-client": [_PYTHON, str(_HERE / "openapi_python_client.py")],
    "openapi-generator python": [_PYTHON, str(_HERE / "openapi_generator.py")],
    "openapi-generator typescript-fetch": ["node", "typescript/out/typescript_fetch.js"],
    "openapi-typescript": ["node", "typescript/out/openapi_fetch.js"],
}

pytestmark = pytest.mark.skipif(
    not (_GENERATED / "typescript" / "out").is_dir(), reason="needs what `make clients` generates"
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("clients"), free_port()) as running:
        yield running


@pytest.mark.parametrize("client", COMMANDS)
def test_a_generated_client_indexes_assembles_reads_compares_and_is_told_of_problems(
    service: ServiceProcess, client: str
) -> None:
    token = TokenFactory(load_or_create_development_key(service.data_dir)).sign("acme")
    project = client.replace(" ", "-")
    done = subprocess.run(
        [*COMMANDS[client], service.url, token, project],
        cwd=_GENERATED,
        env={**os.environ, "PYTHONPATH": str(_GENERATED / "python")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["readBack"] == told["hash"]
    assert told["items"] == ["a.md"]
    assert told["causes"] == ["revision"]
    assert told["problem"] == "pin-unavailable"


@pytest.mark.parametrize("package", ["ctxsnap_client", "openapi_client"])
def test_the_guides_example_in_python_works_as_pasted(
    service: ServiceProcess, package: str
) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", _GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    [code] = [one for one in examples if f"from {package} import" in one]
    # `make clients` gives the second generator's package a name of its own.
    code = code.replace("openapi_client", "ctxsnap_generated")
    token = TokenFactory(load_or_create_development_key(service.data_dir)).sign("guide")
    source = {"project": "p", "sourceId": "a.md", "sourceRevision": "1", "class": "documents"}
    indexed = httpx.put(
        f"{service.url}/sources",
        json={"sources": [{**source, "text": "How to cancel."}]},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert indexed.status_code == 200, indexed.text
    done = subprocess.run(
        [_PYTHON, "-c", code.replace("http://127.0.0.1:8080", service.url)],
        env={**os.environ, "PYTHONPATH": str(_GENERATED / "python"), "TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # Both questions find the same chunk, so that nothing differs.
    assert done.stdout.splitlines() == ["['a.md']", "[]"]
