"""Nothing that data holds can steer a terminal, and nothing of it is lost."""

import io
import json
import re
import sys
import unicodedata
from typing import Any

import pytest
from rich.console import Console

from app.cli.snapshot_view import snapshot_view
from app.cli.terminal import printable, printable_json, say, write_json, write_text

HOSTILE = (
    "a\x1b[31mb\x07c\r\n\u202edetrever\u202c \u2066x\u2069 \x9b2J\x7f \u200b [bold]x[/bold] :smile:"
)
# The planes between are empty, and the last two private.
EVERY_CHARACTER = "".join(map(chr, (*range(0x20000), *range(0xE0000, 0xE0200))))


class Terminal(io.TextIOWrapper):
    """Standard output that says it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        held = self.buffer
        assert isinstance(held, io.BytesIO)
        return held.getvalue().decode()


def dangerous(text: str) -> set[str]:
    """Controls, format characters (bidirectional ones are among them), surrogates."""
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def test_no_character_that_steers_a_terminal_is_left() -> None:
    assert dangerous(printable(EVERY_CHARACTER)) == set()
    assert dangerous(printable(EVERY_CHARACTER, lines=True)) == {"\n", "\t"}


def test_letters_signs_and_spaces_of_every_script_are_left_as_they_are() -> None:
    text = "café 日本語\u3000テスト ไทย हिन्दी שלום 🙂 a\u00a0b"
    assert printable(text) == text


def test_what_cannot_be_seen_is_written_as_an_escape() -> None:
    assert printable("a\x1b\u202e\ud83d\n") == r"a\x1b\u202e\ud83d\n"


def test_a_json_document_means_the_same_after_it_was_made_printable() -> None:
    value = {"text": HOSTILE, "rare": "\U000e0041"}
    shown = printable_json(json.dumps(value, ensure_ascii=False))
    assert dangerous(shown) == set()
    assert json.loads(shown) == value


def test_a_pipe_gets_the_exact_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    body = json.dumps({"text": HOSTILE}, ensure_ascii=False).encode()
    write_json(body)
    write_text(HOSTILE)
    assert capfdbinary.readouterr().out == body + HOSTILE.encode()


def test_a_terminal_gets_the_same_json_without_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    write_json(json.dumps({"text": HOSTILE}, ensure_ascii=False).encode())
    assert dangerous(terminal.text()) == {"\n"}
    assert json.loads(terminal.text()) == {"text": HOSTILE}


def test_a_terminal_gets_a_text_with_its_lines_and_without_controls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    write_text("first\n\tsecond " + HOSTILE)
    assert terminal.text().startswith("first\n\tsecond a\\x1b[31mb")
    assert dangerous(terminal.text()) == {"\n", "\t"}


def test_a_message_is_one_line_however_long_and_interprets_no_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("[bold]x[/bold] :smile: " + "long " * 100)
    said = capsys.readouterr().err
    assert said.startswith("[bold]x[/bold] :smile: long")
    assert said.count("\n") == 1


def snapshot_of(source_id: str) -> dict[str, Any]:
    item = {
        "class": "documents", "project": "p", "sourceId": source_id, "sourceRevision": source_id,
        "chunkId": source_id, "tokens": 3, "rank": 1, "trustTier": "user",
    }  # fmt: skip
    exclusion = {"project": source_id, "sourceId": source_id, "reason": "stale", "detail": "old"}
    return {
        "items": [item],
        "exclusions": [exclusion] * 25,
        "budget": {"maxTokens": 10, "usedTokens": 3},
        "strategy": source_id,
        "snapshotId": "id",
        "hash": "sha256:00",
    }


def shown(snapshot: dict[str, Any], width: int) -> str:
    target = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    target.print(snapshot_view(snapshot))
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_table_of_a_snapshot_holds_no_control_and_interprets_no_markup(width: int) -> None:
    text = shown(snapshot_of(HOSTILE), width)
    assert dangerous(text) == {"\n"}
    assert "[bold]x[/bold] :smile:" in shown(snapshot_of("[bold]x[/bold] :smile:"), 160)


def test_a_long_source_id_is_folded_and_never_cut() -> None:
    source_id = "".join(f"{number:04}" for number in range(50))
    snapshot = snapshot_of("1")
    snapshot["items"][0]["sourceId"] = source_id
    lines = shown(snapshot, 80).split("Exclusions")[0]
    digits = "".join(re.findall(r"\b[0-9]{5,}", lines))
    assert digits == source_id


def test_exclusions_beyond_the_first_are_told_by_their_number() -> None:
    assert "… and 5 more" in shown(snapshot_of("a"), 80)
