"""`ctxsnap audit`: the tenant's audit log, and its chain of seals checked from outside.

Guarantees of `verify`: the service is believed nothing but its export; each seal's hash is
recomputed here from the events. What was listed before the seals were asked for has to be
sealed, so that an event which was slipped in beside the service is found as well.

Not handled: events and seals that were cut off at the end, unless --head names a seal's
hash that was printed by an earlier run and kept elsewhere.
"""

import json
from itertools import islice
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from app.audit.chain import ChainCheck
from app.cli.connection import DEFAULT_TENANT, AsJson, Tenant, Token, Url, connect
from app.cli.failures import FAILED
from app.cli.terminal import cell, console, write_json

audit = typer.Typer(
    help="Read the tenant's audit log, and check that nobody has changed it.",
    no_args_is_help=True,
)
_SHOWN_FAULTS = 20


@audit.command("list")
def list_events(
    since: Annotated[
        str | None, typer.Option(help="Leave out what was before, as in 2025-01-31T09:30:00Z.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most events to show.")] = 50,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """List who did what, newest first."""
    with connect(url, token, tenant) as client:
        events = list(islice(client.audit_events(since), limit))
    if as_json:
        write_json(json.dumps(events, indent=2).encode() + b"\n")
    else:
        console().print(_table(events))


@audit.command()
def verify(
    head: Annotated[
        str | None, typer.Option(help="A seal's hash that an earlier run has printed.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Recompute the chain of seals; exit code 1 if it does not hold."""
    check: ChainCheck | None = None
    with connect(url, token, tenant) as client:
        # Listed first: whatever is committed by now, the first page of seals seals.
        listed = [event["id"] for event in client.audit_events()]
        for owner, seal in client.audit_seals():
            check = check or ChainCheck(owner)
            check.take(seal)
    check = check or ChainCheck(tenant)
    unsealed = [event_id for event_id in listed if not check.covers(event_id)]
    faults = [*check.faults, *(f"event {event_id} is in no seal" for event_id in unsealed)]
    if head is not None and not check.holds(head):
        faults.append(f"no seal has the hash {head}")
    outcome = {
        "ok": not faults,
        "sealed": check.sealed,
        "unsealed": len(unsealed),
        "seals": check.sequence,
        "head": check.head,
        "faults": faults,
    }
    if as_json:
        write_json(json.dumps(outcome, indent=2).encode() + b"\n")
    else:
        _print(outcome)
    if faults:
        raise typer.Exit(FAILED)


def _print(outcome: dict[str, Any]) -> None:
    target, faults = console(), outcome["faults"]
    counts = (
        f"{outcome['sealed']} events in {outcome['seals']} seals, {outcome['unsealed']} unsealed"
    )
    target.print(Text(counts))
    for fault in faults[:_SHOWN_FAULTS]:
        target.print(cell(fault, "bold red"))
    if len(faults) > _SHOWN_FAULTS:
        target.print(Text(f"… and {len(faults) - _SHOWN_FAULTS} more"))
    if not faults:
        target.print(Text(f"The chain holds; its head is {outcome['head']}"))


def _table(events: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("at", "subject", "agent", "action", "outcome", "code", "targets"):
        table.add_column(name, overflow="fold")
    for event in events:
        table.add_row(
            *(
                cell(event.get(name, ""))
                for name in ("at", "subject", "agent", "action", "outcome", "code")
            ),
            cell(json.dumps(event["targets"], ensure_ascii=False)),
        )
    return table
