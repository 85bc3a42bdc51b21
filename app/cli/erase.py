"""`ctxsnap erase`: the texts of sources removed for good, after asking.

Guarantees: nothing is erased before the question is answered with yes, or `--yes` is given;
each source is one call, and what was erased before an error stays erased.
"""

import json
import sys
from typing import Annotated, Any

import typer

from app.cli.client import RequestRefusedError, ServiceClient
from app.cli.connection import DEFAULT_TENANT, AsJson, Project, Tenant, Token, Url, connect
from app.cli.failures import FAILED
from app.cli.terminal import say, write_json
from app.errors import ServiceError

_NAMED_IN_QUESTION = 10


def erase(
    source_ids: Annotated[list[str], typer.Argument(help="Ids of sources.", metavar="SOURCE_ID…")],
    project: Project,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Remove sources and their texts for good, in all revisions, deleted ones too.

    Snapshots stay, still verify, and say what is gone. There is no way back.
    """
    names = list(dict.fromkeys(source_ids))
    if not yes:
        _ask(names, project)
    outcomes: list[dict[str, Any]] = []
    with connect(url, token, tenant) as client:
        try:
            for name in names:
                outcomes.append(_erase(client, project, name))
        except ServiceError:
            if outcomes:
                _tell(outcomes, as_json=as_json)
            raise
    _tell(outcomes, as_json=as_json)
    if any(one["outcome"] != "erased" for one in outcomes):
        raise typer.Exit(FAILED)


def _ask(names: list[str], project: str) -> None:
    for name in names[:_NAMED_IN_QUESTION]:
        say(f"  {name}")
    if len(names) > _NAMED_IN_QUESTION:
        say(f"  … and {len(names) - _NAMED_IN_QUESTION} more")
    say(f"Erase the texts of {len(names)} sources in {project} for good? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def _erase(client: ServiceClient, project: str, source_id: str) -> dict[str, Any]:
    try:
        change = client.erase_source(project, source_id)
    except RequestRefusedError as error:
        if error.code != "not-found":
            raise
        return {"sourceId": source_id, "outcome": "not-found"}
    return {"sourceId": source_id, "outcome": "erased", "indexVersion": change["indexVersion"]}


def _tell(outcomes: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        write_json(json.dumps({"sources": outcomes}, indent=2).encode() + b"\n")
        return
    missing = [one["sourceId"] for one in outcomes if one["outcome"] != "erased"]
    for name in missing:
        say(f"not found: {name}")
    typer.echo(f"{len(outcomes) - len(missing)} erased, {len(missing)} not found")
