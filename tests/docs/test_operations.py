"""docs/operations.md: its commands run, and its tables are the program's."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager
from prometheus_client.metrics import MetricWrapperBase

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedDatabase
from app.adapters.postgres.embedded_binaries import find_binaries
from app.adapters.postgres.schema import known_revisions
from app.config import Settings
from app.main import create_app
from app.metrics import Metrics
from tests.api.service import Api, question, source
from tests.recipes import calling
from tests.scratch_database import scratch_database

_ROOT = Path(__file__).parents[2]
_TEXT = (_ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
_CTXSNAP_FOLDER = Path(sys.executable).parent
_POSTGRES_FOLDER = find_binaries().bin_folder


def _block(language: str, containing: str) -> str:
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", _TEXT, re.DOTALL | re.MULTILINE)
    [found] = [block for block in blocks if containing in block]
    return found


def _rows(heading: str) -> list[list[str]]:
    section = _TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def _run(script: str, **environment: str) -> str:
    """As an operator would paste it, with the programs of the embedded database's release."""
    path = f"{_CTXSNAP_FOLDER}:{_POSTGRES_FOLDER}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _collectors() -> list[MetricWrapperBase]:
    registry = Metrics().registry
    return [one for one in registry._collector_to_names if isinstance(one, MetricWrapperBase)]


def test_the_metrics_are_those_of_the_program() -> None:
    expected = []
    for collector in _collectors():
        [family] = collector.describe()
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in collector._labelnames) or "-"
        expected.append([f"`{name}`", family.type, labels, family.documentation])
    assert _rows("Metrics") == expected


def test_alarms_are_set_on_metrics_that_exist() -> None:
    known = {row[0].strip("`") for row in _rows("Metrics")}
    rows = _rows("Alarms")
    assert rows
    for _, expression in rows:
        [named] = re.findall(r"ctxsnap_\w+", expression)
        assert named.removesuffix("_bucket") in known, expression


def test_the_readme_leads_here() -> None:
    assert "(docs/operations.md)" in (_ROOT / "README.md").read_text(encoding="utf-8")


@asynccontextmanager
async def _served(settings: Settings, database: EmbeddedDatabase, api: Api) -> AsyncIterator[Api]:
    app = create_app(settings.model_copy(update={"database_url": _secret(database.serving_url)}))
    async with LifespanManager(app, startup_timeout=60), calling(app) as client:
        yield Api(client, api.token, api.make_tenant, api.tenant)


def _secret(url: str) -> object:
    return Settings(database_url=url).database_url


def _plain(url: str) -> str:
    """Without the name of Python's driver."""
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.mark.long
async def test_a_restored_backup_serves_and_verifies_what_was_stored(
    embedded: EmbeddedDatabase, migrated: EmbeddedDatabase, service_settings: Settings,
    api: Api, tmp_path: Path,
) -> None:  # fmt: skip
    async with scratch_database(embedded) as original, scratch_database(embedded) as restored:
        revision = _run(
            _block("sh", "ctxsnap migrate"),
            CTXSNAP_MIGRATION_DATABASE_URL=_plain(original.owner_url),
        )
        assert revision.strip() == known_revisions()[0]
        async with _served(service_settings, original, api) as before:
            await before.index(source("a.md", "cancel a booking"))
            path = f"/snapshots/{(await before.assemble(question('cancel')))['hash']}"
            stored = await before.get(path)
        environment = {
            "SUPERUSER_URL": _plain(original.superuser_url),
            "RESTORED_SUPERUSER_URL": _plain(restored.superuser_url),
            "BACKUP": str(tmp_path / "backup"),
        }
        _run(_block("sh", "pg_dump"), **environment)
        _run(_block("sh", "pg_restore"), **environment)
        async with _served(service_settings, restored, api) as after:
            assert (await after.client.get("/readyz")).json()["ready"] is True
            assert (await after.get(path)).content == stored.content
            assert (await after.read(f"{path}/verify"))["ok"] is True
            assert (await after.assemble(question("cancel")))["items"]


async def test_forgotten_repeats_are_assembled_anew_and_their_snapshots_stay(
    api: Api, owner: Database
) -> None:
    other = api.elsewhere()
    keyed = {**api.headers(), "Idempotency-Key": "k"}
    asked = question("cancel")
    first = await api.client.post("/snapshots", json=asked, headers=keyed)
    kept = await other.assemble(asked)
    script = _block("sql", "DELETE FROM repeats WHERE created_at").replace(
        "'acme'", f"'{api.tenant}'"
    )
    assert "interval '30 days'" in script
    statements = [part.strip() for part in script.replace("30 days", "0").split(";")]
    async with owner.engine.connect() as connection:
        for statement in statements:
            if statement not in ("", "BEGIN", "COMMIT"):
                await connection.execute(sa.text(statement))
        await connection.commit()
    # The same bytes are stored once, but by an assembly and not by way of the repeat.
    await api.index(source("a.md", "cancel"))
    again = await api.client.post("/snapshots", json=asked, headers=keyed)
    assert again.status_code == 201
    assert again.json()["hash"] != first.json()["hash"]
    assert (await api.get(first.headers["location"])).content == first.content
    await other.index(source("a.md", "cancel"))
    repeated = await other.post(asked)
    assert (repeated.status_code, repeated.json()) == (200, kept)


def test_the_traced_application_writes_its_spans(tmp_path: Path) -> None:
    (tmp_path / "traced.py").write_text(_block("python", "create_traced_app"), encoding="utf-8")
    (tmp_path / "call.py").write_text(
        "import asyncio, httpx, traced\n"
        "from opentelemetry import trace\n"
        "async def call():\n"
        "    transport = httpx.ASGITransport(traced.create_traced_app())\n"
        "    async with httpx.AsyncClient(transport=transport, base_url='http://x') as client:\n"
        "        assert (await client.get('/healthz')).status_code == 200\n"
        "asyncio.run(call())\n"
        "trace.get_tracer_provider().force_flush()\n",
        encoding="utf-8",
    )
    written = _run(f"python {tmp_path / 'call.py'}", PYTHONPATH=str(_ROOT))
    assert '"name": "request"' in written
    assert '"http.route": "/healthz"' in written


@pytest.mark.parametrize("path", sorted(set(re.findall(r"deploy/[\w.]+", _TEXT))))
def test_a_file_that_is_named_exists(path: str) -> None:
    assert (_ROOT / path).is_file()
