"""`ctxsnap verify FILE`: exit code 0 for the true bytes alone, without a service."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.canonical import canonical_bytes, digest_text
from app.cli.main import main
from app.snapshot.snapshot import hash_of, snapshot_id_of

ID = "6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11"


def snapshot(**changed: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "runId": ID,
        "attemptId": ID,
        "strategy": "default@1",
        "scope": {
            "tenantId": "acme", "subject": "ana", "projects": ["p"], "groups": [],
            "classes": ["documents"], "maxClassification": "internal",
            "policy": {"version": "1", "predicateHash": digest_text("predicate")},
        },
        "budget": {
            "maxTokens": 100, "usedTokens": 7, "reservedForOutput": 10,
            "encoding": "o200k_base", "format": "text",
        },
        "items": [
            {
                "class": "documents", "project": "p", "sourceId": "a.md", "sourceRevision": "1",
                "chunkId": "0", "tokens": 7, "rank": 1, "contentHash": digest_text("text"),
            }
        ],
        "exclusions": [],
        **changed,
    }  # fmt: skip
    digest = hash_of(document)
    return {**document, "hash": digest, "snapshotId": snapshot_id_of(digest)}


VALID = canonical_bytes(snapshot())


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["ctxsnap", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def verified(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> tuple[int, dict[str, bool]]:
    """The exit code, and which checks passed."""
    file = tmp_path / "snapshot.json"
    file.write_bytes(content)
    code = run("verify", str(file), "--json", monkeypatch=monkeypatch)
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (code == 0)
    return code, {check["name"]: check["ok"] for check in report["checks"]["here"]}


def test_a_true_file_passes_every_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    code, checks = verified(VALID, tmp_path, monkeypatch, capsys)
    assert code == 0
    assert {"schema", "hash", "id", "canonical", "budget"} <= set(checks)


@pytest.mark.parametrize(
    ("old", "new", "failed"),
    [
        (b'"a.md"', b'"b.md"', "hash"),
        (b'"maxTokens":100', b'"maxTokens":101', "hash"),
        (b'"hash":"sha256:', b'"hash":"sha256:0', "hash"),
        (b'"hash":', b'"hash": ', "canonical"),
        (b'"strategy":"default@1"', b'"strategy":"x","strategy":"default@1"', "canonical"),
        (b'"snapshotId":"', b'"snapshotId":"00', "schema"),
        (b'"rank":1', b'"rank":1.5', "canonical"),
        (b'"rank":1', b'"rank":9007199254740993', "canonical"),
        (b'"usedTokens"', b'"usedtokens"', "schema"),
    ],
)
def test_a_file_that_was_changed_fails_the_check_that_covers_it(
    old: bytes, new: bytes, failed: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    assert VALID.count(old) == 1
    code, checks = verified(VALID.replace(old, new), tmp_path, monkeypatch, capsys)
    assert code == 1
    assert checks[failed] is False


def test_a_sum_that_is_wrong_fails_under_a_right_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    wrong = snapshot(budget={**snapshot()["budget"], "usedTokens": 6})
    code, checks = verified(canonical_bytes(wrong), tmp_path, monkeypatch, capsys)
    assert code == 1
    assert checks["hash"]
    assert not checks["budget"]


@pytest.mark.parametrize(
    "content",
    [
        b"", VALID[:-1], VALID[: len(VALID) // 2], b"[]", b"null", b"\xff\xfe", b"[" * 100_000,
        b"{}", b'{"a":NaN}', VALID + VALID,
    ],
)  # fmt: skip
def test_what_is_no_snapshot_fails_and_never_crashes(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    code, checks = verified(content, tmp_path, monkeypatch, capsys)
    assert code == 1
    assert not all(checks.values())


@pytest.mark.parametrize(
    "open_member", [{"deep": 1.5}, {"deep": 2**60}, {"deep": "\ud83d"}, {"encoding": 5}]
)
def test_members_that_the_schema_leaves_open_never_crash_it(
    open_member: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    document = snapshot()
    document["budget"] = {**document["budget"], **open_member}
    code, _ = verified(json.dumps(document).encode(), tmp_path, monkeypatch, capsys)
    assert code == 1


def test_a_file_comes_from_standard_input_too(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(VALID)))
    assert run("verify", "-", monkeypatch=monkeypatch) == 0
    assert "canonical" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_a_fault_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert run("verify", str(tmp_path / "missing"), monkeypatch=monkeypatch) == 2
    assert "neither a reference nor a file" in capsys.readouterr().err
