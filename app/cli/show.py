"""`ctxsnap show`: a stored snapshot and what stands beside it."""

from typing import Annotated

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, Ref, Tenant, Token, Url, connect
from app.cli.snapshot_view import snapshot_view
from app.cli.terminal import write_answer, write_json, write_text


def show(
    ref: Ref,
    as_json: AsJson = False,
    prompt: Annotated[bool, typer.Option("--prompt", help="What goes to the model.")] = False,
    report: Annotated[bool, typer.Option("--report", help="How it came about, as JSON.")] = False,
    contents: Annotated[
        bool, typer.Option("--contents", help="The texts of its items, as JSON.")
    ] = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Show a snapshot; --json prints its exact bytes."""
    parts = [
        name
        for name, wanted in (("prompt", prompt), ("report", report), ("contents", contents))
        if wanted
    ]
    if len(parts) + as_json > 1:
        raise typer.BadParameter("Give one of --json, --prompt, --report and --contents.")
    with connect(url, token, tenant) as client:
        body = client.snapshot(ref, parts[0] if parts else "")
    if as_json or report or contents or (prompt and body.startswith(b'{"messages":')):
        write_json(body)
    elif prompt:
        write_text(body.decode())
    else:
        write_answer(body, snapshot_view)
