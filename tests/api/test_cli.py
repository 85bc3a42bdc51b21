"""The commands as people run them: processes, against a service that `ctxsnap serve` runs."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.adapters.development_key import load_or_create_development_key
from tests.cli_in_process import run_in_process
from tests.tokens import TokenFactory

CTXSNAP = str(Path(sys.executable).with_name("ctxsnap"))
TIMEOUT_S = 60


@dataclass(frozen=True)
class Commands:
    """Runs `ctxsnap` beside one service and its data folder."""

    url: str
    data_dir: Path

    def environment(self, **changed: str) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("CTXSNAP_")
        }
        return {
            **inherited,
            "CTXSNAP_DATA_DIR": str(self.data_dir),
            "CTXSNAP_PORT": self.url.rpartition(":")[2],
            **changed,
        }

    def run(self, *arguments: str | Path, **changed: str) -> subprocess.CompletedProcess[bytes]:
        cleared = dict.fromkeys(name for name in os.environ if name.startswith("CTXSNAP_"))
        return run_in_process(*arguments, environment={**cleared, **self.environment(**changed)})

    def run_process(
        self, *arguments: str | Path, **changed: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [CTXSNAP, *arguments],
            env=self.environment(**changed),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )

    def succeed(self, *arguments: str | Path, **changed: str) -> bytes:
        done = self.run(*arguments, **changed)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def json(self, *arguments: str | Path, **changed: str) -> Any:
        return json.loads(self.succeed(*arguments, "--json", **changed))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    data_dir = tmp_path_factory.mktemp("data")
    before = Commands("http://127.0.0.1:8080", data_dir)
    errors = data_dir.with_suffix(".err")
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            [CTXSNAP, "serve", "--port", "0"],
            env=before.environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as service,
    ):
        assert service.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", service.stdout.readline())
        assert found, errors.read_text()
        assert "ctxsnap token --tenant" in service.stdout.readline()
        try:
            yield Commands(found.group(), data_dir)
        finally:
            service.send_signal(signal.SIGTERM)
            assert service.wait(timeout=TIMEOUT_S) == 0
    assert "Traceback" not in errors.read_text()


@pytest.fixture(scope="module")
def token(commands: Commands) -> str:
    return commands.succeed("token", "--tenant", "acme", "--groups", "eng").decode().strip()


def outcomes(report: Any) -> dict[str, str]:
    return {source["sourceId"]: source["outcome"] for source in report["sources"]}


def test_the_way_of_a_folder_from_ingest_to_verify(
    commands: Commands, token: str, tmp_path: Path
) -> None:
    folder = tmp_path / "handbook"
    (folder / "sub").mkdir(parents=True)
    (folder / "cancel.md").write_text("# Cancelling\n\nA reservation is cancelled by its guest.\n")
    (folder / "sub" / "pay.py").write_text("def pay() -> None:\n    '''Pay a reservation.'''\n")
    (folder / "photo.jpg").write_bytes(b"\xff\xd8\0")
    (folder / "old.txt").write_bytes("schön".encode("latin-1"))
    (folder / "big.txt").write_text("x" * 3_000)
    (folder / "ignored.md").write_text("never")
    (folder / ".gitignore").write_text("ignored.md\n")
    ingest = ("ingest", folder, "--project", "handbook", "--max-file-bytes", "2000")
    secret = {"CTXSNAP_TOKEN": token}

    planned = commands.json(*ingest, "--dry-run", **secret)
    assert (planned["dryRun"], planned["indexVersion"], planned["added"]) == (True, None, 3)

    first = commands.json(*ingest, **secret)
    assert outcomes(first) == dict.fromkeys([".gitignore", "cancel.md", "sub/pay.py"], "added")
    assert {(Path(one["path"]).name, one["reason"]) for one in first["skipped"]} == {
        ("photo.jpg", "binary"),
        ("old.txt", "not UTF-8"),
        ("big.txt", "larger than 2000 bytes"),
    }

    again = commands.json(*ingest, **secret)
    assert set(outcomes(again).values()) == {"unchanged"}
    assert again["indexVersion"] is None
    resent = commands.json(*ingest, "--resend", **secret)
    assert set(outcomes(resent).values()) == {"unchanged"}
    assert resent["indexVersion"] == first["indexVersion"]

    (folder / "cancel.md").write_text("# Cancelling\n\nA guest cancels up to a day before.\n")
    changed = commands.json(*ingest, **secret)
    assert outcomes(changed)["cancel.md"] == "replaced"
    assert (changed["replaced"], changed["unchanged"]) == (1, 2)

    # The same texts under another label are not the same.
    relabelled = commands.json(*ingest, "--classification", "public", **secret)
    assert relabelled["replaced"] == 3

    question = ("assemble", "--project", "handbook", "--query", "How do guests cancel?")
    exact = commands.succeed(*question, "--max-tokens", "800", "--json", **secret)
    snapshot = json.loads(exact)
    assert snapshot["items"][0]["sourceId"] == "cancel.md"
    assert snapshot["items"][0]["classification"] == "public"
    reference, snapshot_id = snapshot["hash"], snapshot["snapshotId"]

    assert commands.succeed("show", reference, "--json", **secret) == exact
    table = commands.succeed("show", reference, **secret).decode()
    assert "cancel.md" in table
    assert reference in table
    prompt = commands.succeed("show", reference, "--prompt", **secret).decode()
    assert "A guest cancels up to a day before." in prompt

    # Another attempt with less room.
    tight = commands.json(*question, "--max-tokens", "20", **secret)
    told = commands.json("diff", reference, tight["snapshotId"], **secret)
    assert told["items"]["added"] == []
    gone = {one["item"]["sourceId"]: one["cause"] for one in told["causes"]}
    compared = commands.succeed("diff", reference, tight["hash"], **secret).decode()
    assert set(gone.values()) == {"budget"}
    assert all(name in compared for name in ("removed", "budget", *gone))

    checks = commands.json("verify", snapshot_id, **secret)
    assert checks["ok"]
    assert {check["name"] for check in checks["checks"]["here"]} >= {"reference", "hash"}
    assert {check["name"] for check in checks["checks"]["service"]} >= {"contents", "scope"}

    file = tmp_path / "snapshot.json"
    file.write_bytes(exact)
    assert commands.run("verify", file).returncode == 0
    file.write_bytes(exact.replace(b"cancel.md", b"refund.md"))
    assert commands.run("verify", file).returncode == 1


def test_an_access_list_holds_for_what_was_ingested_with_it(
    commands: Commands, token: str, tmp_path: Path
) -> None:
    (tmp_path / "plan.md").write_text("The plan of the engineers.")
    arguments = ("ingest", tmp_path / "plan.md", "--project", "plans", "--prefix", "eng/")
    acl = ("--acl-allow", "group:eng", "--class", "memory", "--trust-tier", "tool-result")
    commands.succeed(*arguments, *acl, CTXSNAP_TOKEN=token)

    def items(token: str) -> list[tuple[str, str, str]]:
        arguments = ("assemble", "--project", "plans", "--query", "plan of the engineers")
        snapshot = commands.json(*arguments, CTXSNAP_TOKEN=token)
        return [(one["sourceId"], one["class"], one["trustTier"]) for one in snapshot["items"]]

    key = load_or_create_development_key(commands.data_dir)
    stranger = TokenFactory(key).sign("acme", groups=["sales"])
    assert items(token) == [("eng/plan.md", "memory", "tool-result")]
    assert items(stranger) == []


def test_without_a_token_one_is_signed_for_a_service_of_this_machine(
    commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("text")
    done = commands.run("ingest", tmp_path / "a.md", "--project", "own", "--tenant", "mine")
    assert done.returncode == 0
    assert done.stdout == b"1 added, 0 replaced, 0 unchanged, 0 skipped\n"
    assert "tenant mine" in done.stderr.decode()
    elsewhere = commands.run("show", "x", "--url", "https://ctxsnap.example.com")
    assert elsewhere.returncode == 2
    assert b"CTXSNAP_TOKEN" in elsewhere.stderr
    keyless = commands.run("show", "x", CTXSNAP_DATA_DIR=str(tmp_path / "none"))
    assert keyless.returncode == 2
    assert b"ctxsnap serve" in keyless.stderr


def test_a_refusal_is_told_with_its_code_its_place_and_the_requests_id(
    commands: Commands, token: str, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("text")
    arguments = ("ingest", tmp_path, "--project", "p", "--classification", "restricted", "--json")
    refused = commands.run_process(*arguments, CTXSNAP_TOKEN=token)
    assert refused.returncode == 1
    assert refused.stdout == b""
    said = refused.stderr.decode()
    assert "a.md classification" in said
    assert re.search(r"scope-exceeds-grant \(HTTP 403\), request [0-9a-f-]{36}", said)
    unknown = commands.run_process("show", "sha256:" + "0" * 64, CTXSNAP_TOKEN=token)
    assert unknown.returncode == 1
    assert b"not-found (HTTP 404)" in unknown.stderr


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_service_that_is_not_there_is_told_by_its_url_and_exit_code_3(
    command: str, tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        done = Commands(url, tmp_path).run(command, "sha256:" + "0" * 64, "--token", "x")
    assert done.returncode == 3
    assert url in done.stderr.decode()
    assert b"ctxsnap serve" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_proxy_of_the_environment_is_not_put_before_a_service_of_this_machine(
    commands: Commands, token: str
) -> None:
    arguments = ("assemble", "--query", "x", "--project", "p")
    proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}
    commands.succeed(*arguments, CTXSNAP_TOKEN=token, **proxies)


def test_a_port_that_is_taken_is_a_fault_of_the_command(commands: Commands, tmp_path: Path) -> None:
    done = commands.run("serve", CTXSNAP_DATA_DIR=str(tmp_path))
    assert done.returncode == 2
    assert b"Address already in use" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_cannot_be_reached_is_one_sentence_and_exit_code_3(
    commands: Commands, tmp_path: Path
) -> None:
    nowhere = "postgresql://user:secret@127.0.0.1:1/none"
    done = commands.run("serve", "--port", "0", CTXSNAP_DATABASE_URL=nowhere)
    assert done.returncode == 3
    assert done.stdout == b""
    assert len(done.stderr.splitlines()) == 1
    assert b"secret" not in done.stderr
    migrated = commands.run("migrate", CTXSNAP_DATABASE_URL=nowhere)
    assert migrated.returncode == 2
    assert b"CTXSNAP_MIGRATION_DATABASE_URL" in migrated.stderr


def test_migrate_prints_the_revision_of_the_database(commands: Commands) -> None:
    assert re.fullmatch(rb"\d{4}\n", commands.succeed("migrate"))


def test_the_service_tells_nothing_of_its_server_and_trusts_no_forwarded_address(
    commands: Commands,
) -> None:
    answer = httpx.get(f"{commands.url}/healthz", trust_env=False)
    assert answer.status_code == 200
    assert "server" not in answer.headers


def test_the_demo_ends_well_and_its_curl_lines_work_as_pasted(commands: Commands) -> None:
    shown = commands.succeed("demo").decode()
    assert "demo-docs" in shown
    assert "starlette/" in shown
    assert "\x1b" not in shown
    assert "FAILED" not in shown
    items, _, _ = shown.partition("Exclusions")
    assert re.search(r"documents +demo-docs", items)
    assert re.search(r"code +demo-code", items)
    if shutil.which("curl") is None:
        return
    lines = shown.partition("# in another\n")[2]
    pasted = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd="/", env={"PATH": os.defpath, "NO_PROXY": "*"}, capture_output=True, text=True,
        check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert pasted.returncode == 0, pasted.stderr
    digest = re.search(r"sha256:[0-9a-f]{64}", lines)
    assert digest
    # The same request has the same snapshot; then come its prompt and its checks.
    assert f'"hash":"{digest.group()}"' in pasted.stdout
    assert "<context-" in pasted.stdout
    assert '"ok":true,"checks"' in pasted.stdout


def test_ctrl_c_stops_the_demo_and_leaves_no_service_behind(commands: Commands) -> None:
    # A suite that was started in the background would hand on that Ctrl-C is ignored.
    command = ["env", "--default-signal=INT", CTXSNAP, "demo"]
    with subprocess.Popen(
        command, env=commands.environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        assert demo.stderr is not None
        assert "Starting" in demo.stdout.readline()
        time.sleep(0.3)
        os.killpg(demo.pid, signal.SIGINT)
        _, said = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 130
    assert "Traceback" not in said
    # The database that both share goes on for the other service.
    assert httpx.get(f"{commands.url}/readyz", trust_env=False).status_code == 200
