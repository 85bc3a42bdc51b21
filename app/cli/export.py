"""`ctxsnap export`: the index's vectors copied into an engine, and kept up.

Guarantees: a round copies the difference, and takes out what has ended or was erased, so that
the command can be stopped and run again.
"""

import asyncio
import json
import time
from typing import Annotated

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, Tenant
from app.cli.terminal import write_json
from app.config import Settings, read_settings


def export(
    to: Annotated[
        str, typer.Option(help="Name of a retriever in CTXSNAP_RETRIEVERS that is an engine.")
    ],
    tenant: Tenant = DEFAULT_TENANT,
    every: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds between two rounds. Absent: one round alone."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a tenant's vectors into the engine that a retriever searches.

    It reads the database itself, under the serving role: CTXSNAP_DATABASE_URL, or the embedded
    one while no service runs on it. Texts and names stay in the database.
    """
    settings = read_settings()
    _round(settings, to, tenant, as_json=as_json)
    while every is not None:
        time.sleep(every)
        _round(settings, to, tenant, as_json=as_json)


def _round(settings: Settings, to: str, tenant: str, *, as_json: bool) -> None:
    # A second of imports that the other commands can do without.
    from app.bootstrap import export_vectors  # noqa: PLC0415

    done = asyncio.run(export_vectors(settings, to, tenant))
    told = {"added": done.added, "removed": done.removed, "vectors": done.vectors}
    if as_json:
        write_json(json.dumps(told).encode() + b"\n")
    else:
        typer.echo(f"{done.added} added, {done.removed} removed; {done.vectors} vectors")
