"""docs/security.md names tests that exist, and claims nothing without one."""

import ast
import re
from pathlib import Path

import pytest

from app.api.operations import PUBLIC_PATHS

_ROOT = Path(__file__).parents[2]
_SECURITY = (_ROOT / "docs" / "security.md").read_text(encoding="utf-8")
_THREATS = _SECURITY.split("## Who attacks what\n")[1].split("\n## ")[0]
_ROWS = [line for line in _THREATS.splitlines() if line.startswith("| ")][2:]
_NAMED = sorted(set(re.findall(r"tests/[\w/]+\.py(?:::\w+)?", _SECURITY)))


def _functions(path: Path) -> set[str]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    found = {
        node.name
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return {name for name in found if name.startswith("test_")}


@pytest.mark.parametrize("named", _NAMED)
def test_a_test_that_is_named_exists(named: str) -> None:
    file, _, function = named.partition("::")
    functions = _functions(_ROOT / file)
    assert functions
    assert not function or function in functions


@pytest.mark.parametrize("row", _ROWS, ids=range(len(_ROWS)))
def test_every_threat_names_what_stops_it_and_a_test(row: str) -> None:
    attacker, attack, defence, tests = (cell.strip() for cell in row.strip("|").split(" | "))
    assert attacker
    assert attack
    assert defence
    assert re.search(r"`tests/[\w/]+\.py(::\w+)?`", tests)


def test_the_readme_leads_here() -> None:
    assert "(docs/security.md)" in (_ROOT / "README.md").read_text(encoding="utf-8")


def test_the_public_paths_are_those_of_the_service() -> None:
    [line] = [one for one in _SECURITY.split("\n* ") if one.startswith("**Four paths are public")]
    assert set(re.findall(r"`(/[\w.]+)`", line)) == PUBLIC_PATHS
