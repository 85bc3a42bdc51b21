"""`ctxsnap explain`: why a source is in a snapshot, or why it is not, stage by stage."""

import json
from typing import Annotated

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, Project, Tenant, Token, Url, connect
from app.cli.snapshot_view import stages_view
from app.cli.terminal import console, write_json


def explain(
    ref: Annotated[str, typer.Argument(help="The hash (sha256:…) or the snapshotId.")],
    source_id: Annotated[str, typer.Argument(help="The source to ask about.")],
    project: Project,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Tell why a source is in a snapshot or not; needs the permission audit:read."""
    with connect(url, token, tenant) as client:
        body = client.explain(ref, project, source_id)
    if as_json:
        write_json(body)
    else:
        console().print(stages_view(json.loads(body)["stages"]))
