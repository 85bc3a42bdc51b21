"""`ctxsnap explain`: why a source is in a snapshot, or why it is not, stage by stage."""

from typing import Annotated

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, Project, Ref, Tenant, Token, Url, connect
from app.cli.snapshot_view import explanation_view
from app.cli.terminal import write_answer


def explain(
    ref: Ref,
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
    write_answer(body, explanation_view, as_json=as_json)
