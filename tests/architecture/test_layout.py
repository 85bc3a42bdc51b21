"""Where a thing lives shows in the tree: names that say it, and files of one subject."""

import re

import pytest

from tests.architecture.tree import ROOT, python_files

FOLDERS = ("app", "bench", "migrations", "tests")
MAX_LINES = {"app": 400, "bench": 400, "migrations": 400, "tests": 600}
"""Tests may be longer: their cases are read one at a time."""
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "managers", "manager", "common", "misc"}


def test_no_module_or_package_has_a_name_that_says_nothing() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in python_files(*FOLDERS)
        if SAYS_NOTHING & set(re.split(r"[/_.]", path.relative_to(ROOT).as_posix()))
    ]
    assert found == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_longer_than_a_reader_keeps_in_mind(folder: str) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(folder)
    }
    assert lengths
    assert {name: n for name, n in lengths.items() if n > MAX_LINES[folder]} == {}


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in python_files(*FOLDERS)}
    assert folders
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
