"""What all commands have in common: JSON, exit codes, completion, and what needs no service."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from app.adapters.postgres.embedded import EmbeddedDatabase
from app.cli.failures import EXIT_CODES, UNREACHABLE, report
from app.cli.main import application
from app.errors import ConfigurationError, UnavailableError

CTXSNAP = Path(sys.executable).with_name("ctxsnap")
README = Path(__file__).parents[2] / "README.md"
SNAPSHOTS = sorted((Path(__file__).parents[1] / "golden" / "snapshots").glob("*.snapshot.json"))
# They show nothing that a program could want in another form: a token and a document are it.
FOR_PEOPLE = {"demo", "serve", "token", "openapi"}
REF = "sha256:" + "0" * 64


def commands() -> dict[str, Any]:
    """All commands by name, those of groups after their group's."""
    root: Any = get_command(application)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {one}": of for one, of in inner.items()} if inner else {name: command}
    return found


def run(
    *arguments: str | Path,
    given: bytes | None = None,
    environment: dict[str, str] | None = None,
) -> Result:
    return CliRunner().invoke(application, [*map(str, arguments)], input=given, env=environment)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


def test_the_commands_of_the_contract_are_there() -> None:
    wanted = {"serve", "demo", "migrate", "ingest", "assemble", "show", "verify", "token"}
    assert wanted <= set(commands())
    assert "openapi" in commands()


@pytest.mark.parametrize("name", sorted(set(commands()) - FOR_PEOPLE))
def test_what_a_command_shows_can_be_had_as_json(name: str) -> None:
    options = {option for one in commands()[name].params for option in one.opts}
    assert "--json" in options


def test_every_command_and_option_says_what_it_is_for() -> None:
    for name, command in commands().items():
        assert command.help, name
        assert [one.name for one in command.params if not getattr(one, "help", "")] == [], name


def test_exit_codes_are_told_in_the_help_and_in_the_readme() -> None:
    assert EXIT_CODES in " ".join(run("--help").stdout.split())
    assert EXIT_CODES in " ".join(README.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("arguments", [("no-such-command",), ("show",), ("show", REF, "--no-such")])
def test_a_command_that_is_not_right_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("assemble", "--query", "x"), ("show", REF), ("diff", REF, REF), ("verify", REF),
        ("explain", REF, "a", "--project", "p"), ("replay", REF),
        ("ingest", README, "--project", "p"), ("erase", "a", "--project", "p", "--yes"),
        ("reindex",), ("audit", "list"), ("audit", "verify"),
    ],
)  # fmt: skip
def test_without_a_service_every_command_says_how_to_start_one(
    arguments: tuple[str | Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        done = run(*arguments, "--url", url, "--token", "x")
    assert isinstance(done.exception, UnavailableError)
    assert done.stdout == ""
    assert report(done.exception) == UNREACHABLE
    said = capsys.readouterr().err
    assert url in said
    assert "ctxsnap serve" in said


@pytest.mark.usefixtures("no_network")
def test_a_file_is_verified_without_a_service_or_a_token(tmp_path: Path) -> None:
    file = SNAPSHOTS[0]
    unset = {"CTXSNAP_DATA_DIR": str(tmp_path / "none")}
    done = run("verify", file, "--json", environment=unset)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert {"schema", "hash", "id"} <= {check["name"] for check in told["checks"]["here"]}
    assert run("verify", "-", given=file.read_bytes(), environment=unset).exit_code == 0
    changed = tmp_path / "changed.json"
    changed.write_bytes(file.read_bytes().replace(b'"maxTokens":', b'"maxTokens":1', 1))
    failed = run("verify", changed, "--json", environment=unset)
    assert failed.exit_code == 1
    assert [one["name"] for one in json.loads(failed.stdout)["checks"]["here"] if not one["ok"]]
    missing = run("verify", tmp_path / "missing.json", environment=unset)
    assert isinstance(missing.exception, ConfigurationError)


def test_migrate_tells_the_revision_as_json(migrated: EmbeddedDatabase) -> None:
    url = {"CTXSNAP_MIGRATION_DATABASE_URL": migrated.owner_url}
    plain = run("migrate", environment=url)
    assert json.loads(run("migrate", "--json", environment=url).stdout) == {
        "revision": plain.stdout.strip()
    }


@pytest.mark.long
def test_the_shell_completes_commands_after_the_completion_is_installed(tmp_path: Path) -> None:
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{CTXSNAP.parent}{os.pathsep}{os.environ['PATH']}",
        # Else typer asks which shell it was called from.
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }

    def succeed(*command: str | Path) -> str:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    succeed(CTXSNAP, "--install-completion", "bash")
    script = tmp_path / ".bash_completions" / "ctxsnap.sh"
    # As bash does: the command is the first argument.
    words = (
        "COMP_WORDS=(ctxsnap rei); COMP_CWORD=1; _ctxsnap_completion ctxsnap; echo ${COMPREPLY[@]}"
    )
    assert succeed("bash", "-c", f"source {script}; {words}").split() == ["reindex"]
