"""Imports go one way: the contracts hold, and each of them refuses what it is there for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
BREACHES = (
    ("app.scope.breach", "app.adapters"),
    ("app.scope.breach", "app.retrieval"),
    ("app.storage.breach", "app.pipeline"),
    ("app.pipeline", "app.api"),
    ("app.pipeline", "app.adapters"),
    ("app.api.breach", "app.adapters.postgres"),
    ("app.api.breach", "app.bootstrap"),
    ("app.main", "app.adapters"),
    ("app.cli.breach", "app.adapters.postgres"),
    ("app.adapters.breach", "app.api"),
    ("app.adapters.breach", "app.pipeline"),
    ("app.adapters.breach", "app.adapters.postgres"),
    ("app.errors", "app.scope"),
    ("app.config", "app.strategy"),
    ("app.logs", "app.metrics"),
    ("app.scope.breach", "pydantic"),
    ("app.snapshot.breach", "pydantic"),
    ("app.packing.breach", "tiktoken"),
    ("app.retrieval.breach", "httpx"),
    ("app.indexing.breach", "sqlalchemy"),
    ("app.strategy.breach", "starlette"),
    ("app.pipeline", "fastapi"),
    ("app.adapters.breach", "starlette"),
    ("app.adapters.breach", "sqlalchemy"),
    ("app.adapters.breach", "tiktoken"),
    ("app.api.breach", "asyncpg"),
    ("app.api.breach", "httpx"),
    ("app.logs", "pydantic"),
)
"""Imports that nothing in the project may make."""


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", "--no-logo"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def copy_with_imports(imports: tuple[tuple[str, str], ...], to: Path) -> Path:
    """A copy of the code and its contracts, in which modules make some more imports."""
    shutil.copytree(ROOT / "app", to / "app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    for module, imported in imports:
        path = to.joinpath(*module.split(".")).with_suffix(".py")
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\nimport {imported}\n")
    return to


@pytest.fixture(scope="module")
def report_of_all_breaches(tmp_path_factory: pytest.TempPathFactory) -> str:
    linted = lint_imports(copy_with_imports(BREACHES, tmp_path_factory.mktemp("breaches")))
    assert linted.returncode != 0
    return linted.stdout


def test_every_import_goes_the_way_of_the_layers() -> None:
    linted = lint_imports(ROOT)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize(("module", "imported"), BREACHES)
def test_an_import_against_the_layers_is_refused(
    module: str, imported: str, report_of_all_breaches: str
) -> None:
    assert f"{module} -> {imported} (" in report_of_all_breaches


def test_a_module_that_has_no_layer_is_refused(tmp_path: Path) -> None:
    linted = lint_imports(copy_with_imports((("app.subject", "app.errors"),), tmp_path))
    assert linted.returncode != 0
    assert "app.subject" in linted.stdout
