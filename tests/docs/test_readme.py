"""The README tells the truth: its settings, limits and retention are checked here."""

import re
from pathlib import Path

from app.adapters.tokens import TiktokenCounter
from app.api import head_schemas, shared_schemas, snapshot_schemas, source_schemas
from app.config import Settings

_README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def _rows(heading: str) -> list[list[str]]:
    section = _README.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_settings_are_those_of_the_program() -> None:
    expected = []
    for name, field in Settings.model_fields.items():
        value = field.get_default(call_default_factory=True)
        shown = "" if value in (None, (), {}) else f"`{value}`"
        expected.append([f"`CTXSNAP_{name.upper()}`", shown, field.description])
    assert [row for row in _rows("Settings") if row[0] != "---"] == expected


def test_the_limits_are_those_of_the_schemas() -> None:
    limits = {row[0]: row[1] for row in _rows("Limits") if row[0] != "---"}
    numbers = {
        name: [int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", text)]
        for name, text in limits.items()
    }
    assert numbers["a query"] == [snapshot_schemas.MAX_QUERY_CHARS]
    assert numbers["the texts of one source"] == [source_schemas.MAX_SOURCE_BYTES]
    assert numbers["a `sourceId`"] == [
        shared_schemas.MAX_SOURCE_ID_CHARS,
        shared_schemas.MAX_SOURCE_ID_BYTES,
    ]
    assert numbers["principals in an access list"] == [source_schemas.MAX_PRINCIPALS]
    assert numbers["sources in one call"] == [
        source_schemas.MAX_SOURCES,
        source_schemas.MAX_CHUNKS,
    ]
    assert numbers["heads in one call"] == [head_schemas.MAX_HEADS]
    assert {
        snapshot_schemas.MAX_ITEMS,
        snapshot_schemas.MAX_PATTERNS,
        snapshot_schemas.MAX_NAMES,
    } == set(numbers["inline items, pins, patterns, groups, projects in one request"])
    for encoding in TiktokenCounter().encodings:
        assert f"`{encoding}`" in limits["encodings"]
