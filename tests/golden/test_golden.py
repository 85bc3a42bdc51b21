"""Fixed materials give the bytes that were recorded, in any process."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rfc8785

from app.canonical import digest_text
from app.snapshot.verify import Evidence, verify
from tests.golden.files import FOLDER, SUFFIXES, add, contents_of, read
from tests.golden.hashes import lines
from tests.golden.materials import COUNTER, MATERIALS, assembled

ROOT = Path(__file__).parents[2]
SURROUNDINGS = (
    {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC", "PYTHONUTF8": "0"},
    {"PYTHONHASHSEED": "4242", "LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Kiritimati"},
    {"PYTHONHASHSEED": "random", "LC_ALL": "C.UTF-8", "TZ": "America/St_Johns"},
)


@pytest.mark.parametrize("name", sorted(MATERIALS))
def test_a_fixed_material_gives_the_recorded_bytes(name: str) -> None:
    for suffix, content in contents_of(assembled(name)).items():
        assert content == read(name, suffix), f"{name}{suffix} differs"


def test_every_material_has_its_files_and_every_file_its_material() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {
        f"{name}{suffix}" for name in MATERIALS for suffix in SUFFIXES
    }


def test_golden_files_are_not_written_over() -> None:
    before = {path: path.read_bytes() for path in FOLDER.iterdir()}
    with pytest.raises(FileExistsError):
        add("plain")
    assert {path: path.read_bytes() for path in FOLDER.iterdir()} == before


@pytest.mark.parametrize("name", sorted(MATERIALS))
def test_a_recorded_hash_follows_from_the_recorded_bytes(name: str) -> None:
    """With nothing of the service's code."""
    recorded = read(name, ".snapshot.json")
    document = json.loads(recorded)
    assert rfc8785.dumps(document) == recorded
    digest = document.pop("hash")
    del document["snapshotId"]
    assert digest == "sha256:" + hashlib.sha256(rfc8785.dumps(document)).hexdigest()
    assert digest == read(name, ".hash").decode()
    bound = document["budget"]["assembly"]
    for member, suffix in (("requestHash", ".request.json"), ("reportHash", ".report.json")):
        assert bound[member] == "sha256:" + hashlib.sha256(read(name, suffix)).hexdigest()


@pytest.mark.parametrize("name", sorted(MATERIALS))
def test_a_recorded_snapshot_passes_every_check(name: str) -> None:
    texts: dict[str, str] = {
        digest_text(block.text): block.text for block in assembled(name).blocks
    }
    snapshot, request, report = (read(name, suffix) for suffix in SUFFIXES[:3])
    evidence = Evidence(snapshot, request, report, texts)
    checks = verify(evidence, COUNTER.count)
    assert len(checks) == 11
    assert [check for check in checks if not check.ok] == []


def test_the_materials_exercise_what_a_snapshot_can_hold() -> None:
    documents = [json.loads(read(name, ".snapshot.json")) for name in MATERIALS]
    exclusions = [one for document in documents for one in document["exclusions"]]
    assert {one["reason"] for one in exclusions} >= {"budget", "denied", "duplicate"}
    details = {one["detail"].partition(";")[0] for one in exclusions}
    assert details >= {"class-share", "not available"}
    items = [item for document in documents for item in document["items"]]
    assert {item.get("indexVersion", "inline").partition(":")[0] for item in items} == {
        *("inline", "pinned", "lexical", "graph")
    }
    assert {document["budget"]["format"] for document in documents} == {"text", "messages"}
    assert any(document["budget"]["assembly"]["degraded"] for document in documents)
    assert any(document["items"] == [] for document in documents)


def test_other_processes_give_the_same_hashes_whatever_surrounds_them() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.golden.hashes"],
            cwd=ROOT,
            env={**os.environ, **surroundings},
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for surroundings in SURROUNDINGS
    ]
    printed = [process.communicate(timeout=60)[0].splitlines() for process in running]
    assert printed == [lines()] * len(SURROUNDINGS)
