"""A snapshot as people read it at a terminal: tables, nothing that is not in the document."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.terminal import cell
from app.snapshot.verify import Check

_SHORT_REVISION_CHARS = 11
_SHOWN_EXCLUSIONS = 20


def snapshot_view(snapshot: Mapping[str, Any]) -> RenderableType:
    """Items by rank, exclusions, and what identifies the snapshot."""
    return Group(
        _items(snapshot["items"]),
        *_exclusions(snapshot.get("exclusions", [])),
        Text(),
        _summary(snapshot),
    )


def checks_view(title: str, checks: Sequence[Check]) -> Table:
    table = _table(title, "check", "result", "~detail")
    for check in checks:
        table.add_row(
            cell(check.name),
            cell("ok", "green") if check.ok else cell("FAILED", "bold red"),
            cell(check.detail),
        )
    return table


def explanation_view(document: Mapping[str, Any]) -> Table:
    table = _table("", "stage", "outcome", "~detail")
    for one in document["stages"]:
        table.add_row(*(cell(one[name]) for name in ("stage", "outcome", "detail")))
    return table


def replay_view(document: Mapping[str, Any]) -> RenderableType:
    if document["match"]:
        return cell("The same hash came out.", "green")
    first = document["firstDifference"]
    return cell(f"Differs from the stage {first['stage']} on: {first['reason']}", "bold red")


def _items(items: Sequence[Mapping[str, Any]]) -> Table:
    # A terminal is narrow: one project is told below, and a revision's beginning will do.
    projects = ["project"] * (len(_projects(items)) > 1)
    table = _table(
        "Items", ">rank", "class", *projects, "~source", "revision", "~chunk", ">tokens", "tier"
    )
    for item in items:
        table.add_row(
            cell(item["rank"]),
            cell(item["class"]),
            *(cell(item.get(name, "")) for name in projects),
            cell(item["sourceId"], "bold"),
            cell(item["sourceRevision"][:_SHORT_REVISION_CHARS]),
            cell(item["chunkId"]),
            cell(item["tokens"]),
            cell(item.get("trustTier", "")),
        )
    return table


def _projects(items: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({item.get("project", "") for item in items})


def _exclusions(exclusions: Sequence[Mapping[str, Any]]) -> Iterable[RenderableType]:
    if not exclusions:
        return
    table = _table("Exclusions", "reason", "project", "~source", "~chunk", "~detail")
    for one in exclusions[:_SHOWN_EXCLUSIONS]:
        table.add_row(
            *(cell(one.get(name, "")) for name in ("reason", "project", "sourceId", "chunkId")),
            cell(one.get("detail", "")),
        )
    yield Text()
    yield table
    if len(exclusions) > _SHOWN_EXCLUSIONS:
        yield cell(f"… and {len(exclusions) - _SHOWN_EXCLUSIONS} more; --json has them all")


def _summary(snapshot: Mapping[str, Any]) -> Table:
    budget = snapshot["budget"]
    degraded = budget.get("assembly", {}).get("degraded", [])
    reserved = budget.get("reservedForOutput", 0)
    spent = (
        f"{budget['usedTokens']} tokens used, {reserved} reserved for output, "
        f"of {budget['maxTokens']} ({budget.get('encoding', '')}, {budget.get('format', '')})"
    )
    rows = [
        ("projects", ", ".join(_projects(snapshot["items"]))),
        ("budget", spent),
        ("strategy", snapshot.get("strategy", "")),
        ("degraded", ", ".join(degraded) or "no"),
        ("snapshotId", snapshot["snapshotId"]),
        ("hash", snapshot["hash"]),
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(cell(name, "dim"), cell(value))
    return table


def _table(title: str, *columns: str) -> Table:
    """A table; columns marked by `>` stand to the right, those by `~` are folded to fit."""
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True
    )
    for name in columns:
        table.add_column(
            name.lstrip(">~"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
            no_wrap=not name.startswith("~"),
        )
    return table
