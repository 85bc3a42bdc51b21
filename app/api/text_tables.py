"""Answers as tables for people at a terminal: nothing that is not in the JSON.

Guarantees: the same document gives the same text; no control, format or bidirectional
character of data is in it; each row is one line.

Not handled: narrow terminals. Lines are as long as what they hold.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from app.visible import printable

Json = Mapping[str, Any]
View = Callable[[Json], Iterator[str]]

_SOURCE = (
    "project", "sourceId", "sourceRevision", "class", "classification", "trustTier", "chunks",
    "stale",
)  # fmt: skip

_ITEM = ("rank", "class", "project", "sourceId", "sourceRevision", "chunkId", "tokens", "trustTier")
_EXCLUSION = ("reason", "project", "sourceId", "chunkId", "detail")
_BUDGET = ("usedTokens", "reservedForOutput", "maxTokens", "encoding", "format")


def as_text(operation: str, document: Json) -> str:
    """The table of what an operation answers, which is one of VIEWS; ends with a line feed."""
    return "\n".join(VIEWS[operation](document)) + "\n"


def _listing(member: str, *columns: str) -> View:
    """The entries of a member, and the cursor of what follows them."""

    def view(document: Json) -> Iterator[str]:
        yield from _table(columns, document[member])
        if document.get("nextCursor"):
            yield ""
            yield f"nextCursor  {_cell(document['nextCursor'])}"

    return view


def _snapshot(document: Json) -> Iterator[str]:
    budget = document["budget"]
    yield from _lines(
        [
            ["hash", _cell(document["hash"])],
            ["snapshotId", _cell(document["snapshotId"])],
            ["budget", ", ".join(f"{name} {_cell(budget[name])}" for name in _BUDGET)],
            ["strategy", _cell(document["strategy"])],
        ]
    )
    yield ""
    yield from _table(_ITEM, document["items"])
    if document["exclusions"]:
        yield ""
        yield from _table(_EXCLUSION, document["exclusions"])


def _verification(document: Json) -> Iterator[str]:
    yield from _table(("name", "ok", "detail"), document["checks"])
    yield ""
    yield f"ok  {_cell(document['ok'])}"


def _difference(document: Json) -> Iterator[str]:
    causes = {tuple(one["item"].values()): one for one in document["causes"]}
    rows = []
    for kind, items in document["items"].items():
        for item in items:
            name = tuple(item[part] for part in ("project", "sourceId", "chunkId"))
            cause = causes.get(name, {})
            ranks = {side: item.get(side, {}).get("rank") for side in ("before", "after")}
            told = {part: cause.get(part) for part in ("cause", "detail")}
            rows.append({"item": kind, **item, **ranks, **told})
    yield from _table(
        ("item", "project", "sourceId", "chunkId", "before", "after", "cause", "detail"), rows
    )


def _outline(document: Json) -> Iterator[str]:
    """Each value beside the names that lead to it."""
    yield from _lines([[path, _cell(value)] for path, value in _leaves("", document)])


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    named: Iterator[tuple[object, Any]] = iter(())
    if isinstance(value, Mapping):
        named = iter(value.items())
    elif isinstance(value, list):
        named = iter(enumerate(value))
    if isinstance(value, Mapping | list) and value:
        for name, part in named:
            yield from _leaves(f"{path}.{_cell(name)}" if path else _cell(name), part)
    else:
        yield path, value


def _table(columns: Sequence[str], rows: Sequence[Json]) -> Iterator[str]:
    yield from _lines(
        [list(columns), *([_cell(row.get(name)) for name in columns] for row in rows)]
    )


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (
            text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{_cell(name)}={_cell(part)}" for name, part in value.items()) or "-"
        case list():
            return ", ".join(map(_cell, value)) or "-"
        case _:
            return printable(str(value))


VIEWS: Mapping[str, View] = {
    "getSnapshot": _snapshot,
    "getSnapshotReport": _outline,
    "verifySnapshot": _verification,
    "explainSnapshot": _listing("stages", "stage", "outcome", "detail"),
    "diffSnapshots": _difference,
    "listSnapshots": _listing(
        "snapshots", "createdAt", "runId", "attemptId", "usedTokens", "degraded", "hash"
    ),
    "listSources": _listing("sources", *_SOURCE),
    "getIndex": _outline,
    "listStrategies": _listing("strategies", "id", "version", "description"),
    "getStrategy": _outline,
    "listAuditEvents": _listing(
        "events", "at", "subject", "agent", "action", "outcome", "code", "targets"
    ),
    "listAuditSeals": _listing("seals", "sequence", "sealedAt", "hash"),
}
"""By operationId."""
