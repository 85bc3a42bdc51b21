"""`ctxsnap diff`: what differs between two stored snapshots, and why."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.connection import DEFAULT_TENANT, AsJson, Ref, Tenant, Token, Url, connect
from app.cli.terminal import cell, write_answer

_COLUMNS = ("", "project", "source", "chunk", "cause", "detail")


def diff(
    ref: Ref,
    other: Annotated[str, typer.Argument(help="Of the snapshot to compare it with.")],
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Show what was added, removed, moved and changed from one snapshot to another."""
    with connect(url, token, tenant) as client:
        body = client.diff(ref, other)
    write_answer(body, _table, as_json=as_json)


def _table(document: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    causes = {_name(one["item"]): one for one in document["causes"]}
    for kind, items in document["items"].items():
        for item in items:
            table.add_row(*map(cell, (kind, *_name(item), *_told(kind, item, causes))))
    return table


def _name(item: Mapping[str, Any]) -> tuple[str, str, str]:
    return item["project"], item["sourceId"], item["chunkId"]


def _told(
    kind: str, item: Mapping[str, Any], causes: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> tuple[str, str]:
    if kind == "moved":
        return "", f"rank {item['before']['rank']}, then {item['after']['rank']}"
    one = causes[_name(item)]
    return one["cause"], one["detail"]
