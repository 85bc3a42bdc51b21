"""`ctxsnap replay`: a stored snapshot assembled again, and whether the same comes out."""

import json
from typing import Annotated

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, Tenant, Token, Url, connect
from app.cli.failures import FAILED
from app.cli.snapshot_view import replay_view
from app.cli.terminal import console, write_json


def replay(
    ref: Annotated[str, typer.Argument(help="The hash (sha256:…) or the snapshotId.")],
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Assemble a snapshot again from what was stored with it; needs the permission audit:read.

    Exit code 1 where something else comes out: then the first stage that differs is named.
    """
    with connect(url, token, tenant) as client:
        body = client.replay(ref)
    document = json.loads(body)
    if as_json:
        write_json(body)
    else:
        console().print(replay_view(document))
    if not document["match"]:
        raise typer.Exit(FAILED)
