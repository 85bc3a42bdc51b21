"""Commands work as pasted: the README's against a real service, and the SQL of retention."""

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from app.adapters.postgres.database import Database
from tests.tokens import TokenFactory

_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_OPERATIONS = (_ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
_BIN = Path(sys.executable).parent


def _block(text: str, language: str, containing: str) -> str:
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if containing in block]
    return found


@dataclass(frozen=True)
class _Running:
    url: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Running]:
    environment = {
        **os.environ,
        "CTXSNAP_DATA_DIR": str(tmp_path_factory.mktemp("readme")),
        "CTXSNAP_LOG_LEVEL": "warning",
    }
    command = [str(_BIN / "ctxsnap"), "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        try:
            found = re.search(r"http://[0-9.:]+", service.stdout.readline())
            assert found is not None
            yield _Running(found.group().rstrip(".,"), environment)
        finally:
            service.terminate()
            service.wait(timeout=30)
            service.stdout.close()


def _pasted(running: _Running, containing: str) -> str:
    """What the README's block prints, run in the checkout against the running service."""
    script = _block(_README, "sh", containing)
    script = script.replace("http://127.0.0.1:8080", running.url).replace(".venv/bin", str(_BIN))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**running.environment, "CTXSNAP_URL": running.url},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs the command curl")
def test_the_curl_lines_work_as_pasted(running: _Running) -> None:
    shown = _pasted(running, "curl -sS -X PUT")
    decoder, answers, rest = json.JSONDecoder(), [], shown.strip()
    while rest:
        answer, end = decoder.raw_decode(rest)
        answers.append(answer)
        rest = rest[end:].strip()
    change, snapshot = answers
    assert change["sources"][0]["chunks"] == 1
    assert [item["sourceId"] for item in snapshot["items"]] == ["docs/cancelling.md"]


def test_a_folder_is_indexed_and_found_as_pasted(running: _Running) -> None:
    shown = _pasted(running, "ctxsnap ingest")
    assert re.search(r"^[1-9]\d* added, 0 replaced", shown)
    assert "strategies.md" in shown


async def test_retention_removes_what_has_expired_and_nothing_else(
    client: httpx.AsyncClient, token: TokenFactory, owner: Database, make_tenant: object
) -> None:
    assert callable(make_tenant)
    expiring, other = make_tenant(), make_tenant()
    for tenant in (expiring, other):
        body = {
            "runId": str(uuid.uuid4()),
            "attemptId": str(uuid.uuid4()),
            "items": [
                {
                    "class": "task",
                    "sourceId": "task",
                    "sourceRevision": "1",
                    "chunkId": "0",
                    "text": "Do it.",
                    "project": "alpha",
                }
            ],
        }
        headers = {**token.headers(tenant), "Idempotency-Key": "k"}
        answer = await client.post("/snapshots", json=body, headers=headers)
        assert answer.status_code == 201
    script = _block(_OPERATIONS, "sql", "CREATE TEMPORARY TABLE expired")
    script = script.replace("'acme'", f"'{expiring}'").replace("- interval '2 years'", "")
    statements = [part.strip() for part in script.split(";") if part.strip()]
    async with owner.engine.connect() as connection:
        for statement in statements:
            if statement not in ("BEGIN", "COMMIT"):
                await connection.execute(sa.text(statement))
        await connection.commit()
    left = [
        (await client.get("/snapshots", headers=token.headers(tenant))).json()["snapshots"]
        for tenant in (expiring, other)
    ]
    assert [len(snapshots) for snapshots in left] == [0, 1]
    keys = "SELECT count(*) FROM idempotency_keys"
    kept = []
    for tenant in (expiring, other):
        async with owner.transaction(tenant) as (connection, _):
            kept.append((await connection.exec_driver_sql(keys)).scalar_one())
    assert kept == [0, 1]
    async with owner.engine.connect() as connection:
        await connection.execute(sa.text("SELECT enter_tenant(:name, false)"), {"name": other})
        with pytest.raises(sa.exc.DBAPIError, match="is immutable"):
            await connection.execute(sa.text("DELETE FROM snapshots"))
