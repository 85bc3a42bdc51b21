"""docs/adapters.md: its table is the conformance suite, and its example works as it stands."""

import ast
import re
import sys
from collections.abc import AsyncIterator, Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import external_retrievers
from app.config import RetrieverSettings, Settings
from tests.api.service import Api, question, source, source_ids
from tests.contract.retrievers.backends import ADAPTERS
from tests.recipes import calling, serving, write_recipes
from tests.tokens import TokenFactory

_ROOT = Path(__file__).parents[2]
_TEXT = (_ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
_SUITE = _ROOT / "tests" / "contract" / "retrievers" / "test_conformance.py"


def _rows() -> list[list[str]]:
    section = _TEXT.split("## What is tested\n")[1]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def _tests() -> set[str]:
    module = ast.parse(_SUITE.read_text(encoding="utf-8"))
    functions = (one for one in module.body if isinstance(one, ast.AsyncFunctionDef))
    return {one.name for one in functions if one.name.startswith("test_")}


def test_the_table_has_a_column_for_each_adapter_and_a_row_for_each_test() -> None:
    head, _, *rows = _rows()
    assert tuple(head[1:]) == ADAPTERS
    named = {cell.strip("`") for row in rows for cell in row[1:] if cell.startswith("`test_")}
    assert named == _tests()
    assert all(len(row) == len(head) and all(row) for row in rows)


@pytest.mark.parametrize("named", sorted(set(re.findall(r"tests/[\w/]+\.py", _TEXT))))
def test_a_file_that_is_named_exists(named: str) -> None:
    assert (_ROOT / named).is_file()


@pytest.fixture
async def notes(
    service_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """The service with the document's own example, found as an installed package's would be."""
    [example] = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)
    (tmp_path / "notes_retriever.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    [(name, value)] = re.findall(r'^(\w+) = "(\w+:\w+)"$', _TEXT, re.MULTILINE)

    def installed(*, group: str) -> tuple[EntryPoint, ...]:
        return (EntryPoint(name, value, group),)

    monkeypatch.setattr(external_retrievers, "entry_points", installed)
    one = RetrieverSettings(name="team-notes", type="notes", options={"project": "booking"})
    recipe = {"notes": "retrievers:\n  - name: team-notes\n  - name: lexical"}
    settings = service_settings.model_copy(update={"retrievers": (one,)})
    async with serving(settings, write_recipes(tmp_path, recipe)) as app, calling(app) as client:
        yield client
    sys.modules.pop("notes_retriever", None)


async def test_the_example_is_a_leg_of_the_service(
    notes: httpx.AsyncClient, token: TokenFactory, make_tenant: Callable[[], str]
) -> None:
    api = Api(notes, token, make_tenant, make_tenant())
    await api.index(source("a.md", "Cancel by post."))
    asked: Any = question("cancel", strategy="notes")
    snapshot = await api.assemble(asked)
    assert sorted(source_ids(snapshot)) == ["a.md", "notes/1"]
    tiers = {one["sourceId"]: one["trustTier"] for one in snapshot["items"]}
    assert tiers["notes/1"] == "untrusted-external"
    verified = await api.read(f"/snapshots/{snapshot['hash']}/verify")
    assert verified["ok"], verified
    narrow = {**question("cancel", strategy="notes"), "scope": {"classes": ["documents"]}}
    assert source_ids(await api.assemble(narrow)) == ["a.md"]
