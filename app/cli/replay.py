"""`ctxsnap replay`: a stored snapshot assembled again, and whether the same comes out."""

import json

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, Ref, Tenant, Token, Url, connect
from app.cli.failures import FAILED
from app.cli.snapshot_view import replay_view
from app.cli.terminal import write_answer


def replay(
    ref: Ref,
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
    write_answer(body, replay_view, as_json=as_json)
    if not json.loads(body)["match"]:
        raise typer.Exit(FAILED)
