"""`ctxsnap audit`, against a service whose database somebody tampers with."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedDatabase
from tests.cli_in_process import run_in_process
from tests.tokens import TokenFactory

CTXSNAP = str(Path(sys.executable).with_name("ctxsnap"))


@dataclass(frozen=True)
class Auditor:
    """Calls the service, and runs the commands, for one tenant."""

    url: str
    token: str

    def index(self, calls: int = 3) -> None:
        for _ in range(calls):
            answer = httpx.get(
                f"{self.url}/index",
                headers={"Authorization": f"Bearer {self.token}"},
                trust_env=False,
            )
            assert answer.status_code == 200

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        environment = {"CTXSNAP_TOKEN": self.token}
        return run_in_process("audit", *arguments, "--url", self.url, environment=environment)

    def verify(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = self.run("verify", "--json", *arguments)
        outcome: dict[str, Any] = json.loads(done.stdout)
        assert outcome["ok"] is (done.returncode == 0)
        assert outcome["ok"] is (outcome["faults"] == [])
        return done.returncode, outcome


@pytest.fixture(scope="module")
def url(migrated: EmbeddedDatabase, data_dir: Path) -> Iterator[str]:
    environment = {
        **os.environ,
        "CTXSNAP_DATABASE_URL": migrated.serving_url,
        "CTXSNAP_DATA_DIR": str(data_dir),
        "CTXSNAP_LOG_LEVEL": "warning",
        # A round between two calls would split the seals that these tests count.
        "CTXSNAP_AUDIT_SEAL_INTERVAL_S": "86400",
    }
    command = [CTXSNAP, "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", service.stdout.readline())
        try:
            assert found
            yield found.group()
        finally:
            service.terminate()
            assert service.wait(timeout=60) == 0
            service.stdout.close()


@pytest.fixture
def auditor(url: str, token: TokenFactory, tenant: str) -> Auditor:
    made = Auditor(url, token.sign(tenant))
    made.index()
    return made


async def tamper(superuser: Database, table: str, tenant: str, statement: str) -> None:
    """As a superuser who lifts every trigger and constraint's trigger first."""
    async with superuser.engine.begin() as connection:
        await connection.execute(sa.text(f"ALTER TABLE {table} DISABLE TRIGGER ALL"))
        found = await connection.execute(
            sa.text("SELECT tenant_key FROM tenants WHERE name = :name"), {"name": tenant}
        )
        done = await connection.execute(sa.text(statement), {"tenant": found.scalar_one()})
        await connection.execute(sa.text(f"ALTER TABLE {table} ENABLE TRIGGER ALL"))
        for name in ("immutable_rows", "immutable_table"):
            await connection.execute(sa.text(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}"))
    assert done.rowcount == 1


def test_an_untouched_log_verifies_and_tells_its_head(auditor: Auditor) -> None:
    code, outcome = auditor.verify()
    # Three calls, and the listing that the command itself began with.
    assert (code, outcome["sealed"], outcome["unsealed"], outcome["seals"]) == (0, 4, 0, 1)
    again, later = auditor.verify("--head", outcome["head"])
    # And the first run's look at the seals, and the second run's listing.
    assert (again, later["sealed"], later["seals"]) == (0, 6, 2)
    shown = auditor.run("verify")
    assert shown.returncode == 0
    assert b"8 events in 3 seals, 0 unsealed" in shown.stdout
    assert auditor.verify("--head", "sha256:" + "0" * 64)[0] == 1


def test_listing_shows_the_newest_first(auditor: Auditor) -> None:
    listed = json.loads(auditor.run("list", "--json", "--limit", "2").stdout)
    assert [event["action"] for event in listed] == ["getIndex"] * 2
    assert listed[0]["at"] > listed[1]["at"]
    shown = auditor.run("list")
    assert shown.returncode == 0
    assert shown.stdout.count(b"getIndex") == 3
    assert shown.stdout.count(b"listAuditEvents") == 1
    assert auditor.run("list", "--since", "yesterday").returncode == 1


CHANGES = {
    "a changed subject": (
        "audit_events",
        "UPDATE audit_events SET subject = 'bob' WHERE (at, id) = (SELECT at, id FROM audit_events "
        "WHERE tenant_key = :tenant ORDER BY at LIMIT 1) AND tenant_key = :tenant",
        "seal 1: its hash is not that of its events",
    ),
    "a deleted event": (
        "audit_events",
        "DELETE FROM audit_events WHERE tenant_key = :tenant AND at = "
        "(SELECT min(at) FROM audit_events WHERE tenant_key = :tenant)",
        "seal 1: 3 events are there of 4",
    ),
    "an inserted event": (
        "audit_events",
        "INSERT INTO audit_events (tenant_key, at, id, subject, action, outcome, targets) "
        "VALUES (:tenant, now(), gen_random_uuid(), 'bob', 'getIndex', 'allowed', '{}')",
        "is in no seal",
    ),
    "a deleted seal": (
        "audit_seals",
        "DELETE FROM audit_seals WHERE tenant_key = :tenant AND sequence = 1",
        "seal 2: stands where seal 1 should",
    ),
    "a changed seal": (
        "audit_seals",
        "UPDATE audit_seals SET event_ats = event_ats[2:], event_ids = event_ids[2:] "
        "WHERE tenant_key = :tenant AND sequence = 1",
        "seal 1: its hash is not that of its events",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_what_was_done_behind_the_services_back_is_found(
    auditor: Auditor, embedded_superuser: Database, tenant: str, name: str
) -> None:
    table, statement, fault = CHANGES[name]
    for _ in range(2):
        assert auditor.verify()[0] == 0
    await tamper(embedded_superuser, table, tenant, statement)
    code, outcome = auditor.verify()
    assert code == 1
    assert fault in " / ".join(outcome["faults"])
    shown = auditor.run("verify")
    assert shown.returncode == 1
    assert fault.encode() in shown.stdout


def test_a_token_without_the_permission_is_refused(
    auditor: Auditor, token: TokenFactory, tenant: str
) -> None:
    other = Auditor(auditor.url, token.sign(tenant, scope="index:read"))
    done = other.run("verify")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"audit:read" in done.stderr
