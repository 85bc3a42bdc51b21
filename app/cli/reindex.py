"""`ctxsnap reindex`: after an upgrade, sources prepared anew by the new engine.

Guarantees: each batch is one call and one version of the index, so that the command can be
stopped and run again. It ends where nothing remains, or where a batch got no further.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.cli.client import ServiceClient
from app.cli.connection import DEFAULT_TENANT, AsJson, Tenant, Token, Url, connect
from app.cli.failures import FAILED
from app.cli.terminal import console, say, write_json

_MOST_SOURCES_PER_CALL = 1000


def reindex(
    batch: Annotated[
        int, typer.Option(min=1, max=_MOST_SOURCES_PER_CALL, help="Most sources of one call.")
    ] = 100,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Prepare sources anew that an earlier release prepared.

    All that the token may write: the tenant's whole index needs one for every project,
    without ceilings. Searching goes on meanwhile, by the old preparation or the new one.
    """
    target = console(stderr=True)
    columns = (
        TextColumn("Reindexing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with (
        connect(url, token, tenant) as client,
        Progress(*columns, console=target, disable=not target.is_terminal) as progress,
    ):
        task = progress.add_task("reindex", total=None)
        outcome = _run(
            client, batch, lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        write_json(json.dumps(outcome, indent=2).encode() + b"\n")
    else:
        typer.echo(f"{outcome['reindexed']} reindexed, {outcome['remaining']} remain")
    if outcome["remaining"]:
        say("What remains was changed by others meanwhile: run the command again.")
        raise typer.Exit(FAILED)


def _run(client: ServiceClient, batch: int, advance: Callable[[int, int], None]) -> dict[str, Any]:
    """Call until nothing remains; `advance` is told how many of how many are done."""
    done = 0
    while True:
        change = client.reindex(batch)
        done += change["reindexed"]
        advance(done, done + change["remaining"])
        if not (change["reindexed"] and change["remaining"]):
            return {**change, "reindexed": done}
