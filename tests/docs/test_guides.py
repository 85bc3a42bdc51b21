"""The guides' code works as pasted: each block, in the order of the guide, in one folder."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.adapters.tokens import TiktokenCounter
from app.strategy.strategy import StrategyCatalog
from tests.shared.service_process import ServiceProcess, free_port

_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# save as (\S+)\n")


def _blocks(guide: str, *languages: str) -> list[tuple[str, str]]:
    found = _BLOCK.findall((_DOCS / guide).read_text(encoding="utf-8"))
    return [(language, code) for language, code in found if language in languages]


@dataclass(frozen=True)
class _Shell:
    """A folder like that of the checkout, and an environment that lives on from block to block."""

    folder: Path
    service: ServiceProcess
    environment: dict[str, str]

    def run(self, language: str, code: str) -> str:
        code = code.replace("http://127.0.0.1:8080", self.service.url)
        if language == "python":
            named = _FILE.match(code)
            assert named is not None, code
            (self.folder / named.group(1)).write_text(code, encoding="utf-8")
            command = [sys.executable, named.group(1)]
        else:
            # What a block exports is there for the next one.
            command = ["bash", "-euo", "pipefail", "-c", f"{code}\nenv -0 > environment"]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, (code, done.stdout, done.stderr)
        if language == "sh":
            lines = (self.folder / "environment").read_text(encoding="utf-8").split("\0")
            for name, _, value in (line.partition("=") for line in lines if line):
                self.environment[name] = value
        return done.stdout


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Shell]:
    if shutil.which("curl") is None:
        pytest.skip("needs the command curl")
    folder = tmp_path_factory.mktemp("guide")
    (folder / ".venv").symlink_to(sys.prefix)
    strategies = folder / "strategies"
    strategies.mkdir()
    for _, recipe in _recipes():
        (strategies / "support.yaml").write_text(recipe, encoding="utf-8")
    settings = {"CTXSNAP_STRATEGIES_DIR": str(strategies), "CTXSNAP_LOG_LEVEL": "warning"}
    with ServiceProcess(folder, free_port(), settings=settings) as service:
        environment = {**os.environ, "CTXSNAP_DATA_DIR": str(folder)}
        yield _Shell(folder, service, environment)


def _recipes() -> list[tuple[str, str]]:
    return _blocks("strategies.md", "yaml")


def test_the_tutorial_works_as_pasted(shell: _Shell) -> None:
    outputs = [shell.run(*block) for block in _blocks("tutorial.md", "sh", "python")]
    token, knowledge, loop, comparison, last = outputs
    assert token == ""
    assert "'unchanged': False" in knowledge
    assert loop.count("shown was sha256:") == 2
    assert loop.count("verified") == 2
    assert "revision docs/cancelling.md 1 before, 2 after" in comparison
    assert '"stages"' in last


def test_the_strategy_guides_recipe_loads_and_its_dry_run_works_as_pasted(shell: _Shell) -> None:
    (recipe,) = _recipes()
    assert "id: support" in recipe[1]
    StrategyCatalog.load(
        shell.folder / "strategies",
        retrievers=("lexical",),
        encodings=TiktokenCounter().encodings,
    )
    serve, dry_run = _blocks("strategies.md", "sh")
    # The service that runs was started with the folder of the first block.
    assert serve[1].startswith("CTXSNAP_STRATEGIES_DIR=strategies ")
    answer = shell.run(*dry_run)
    assert '"id":"support"' in answer.replace(" ", "")
