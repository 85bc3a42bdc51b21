"""`ctxsnap openapi`: the export is the application's, and drift is found."""

import json
import sys
from pathlib import Path

import pytest

from app.cli.main import main


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["ctxsnap", "openapi", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "new" / "openapi.json"
    assert run("--output", str(file), monkeypatch=monkeypatch) == 0
    return file


def test_the_export_is_sorted_indented_and_ended_by_a_line_feed(exported: Path) -> None:
    text = exported.read_text(encoding="utf-8")
    document = json.loads(text)
    assert text == json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert {"/snapshots", "/sources", "/snapshots/{ref}/verify"} <= set(document["paths"])


def test_what_was_exported_is_up_to_date(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--check", "--output", str(exported), monkeypatch=monkeypatch) == 0


def test_nothing_is_started_for_it(
    tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    monkeypatch.setenv("CTXSNAP_DATA_DIR", str(folder))
    assert run("--check", "--output", str(exported), monkeypatch=monkeypatch) == 0
    assert not folder.exists()


def test_drift_is_told_with_the_lines_that_differ_and_nothing_is_written(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drifted = exported.read_text(encoding="utf-8").replace('"createSnapshot"', '"makeSnapshot"')
    exported.write_text(drifted, encoding="utf-8")
    assert run("--check", "--output", str(exported), monkeypatch=monkeypatch) == 1
    said = capsys.readouterr().err
    assert '-        "operationId": "makeSnapshot"' in said
    assert '+        "operationId": "createSnapshot"' in said
    assert len(said.splitlines()) <= 22
    assert exported.read_text(encoding="utf-8") == drifted


def test_a_missing_export_is_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "openapi.json"
    assert run("--check", "--output", str(file), monkeypatch=monkeypatch) == 1
    assert not file.exists()
