"""`ctxsnap serve` and `ctxsnap migrate`: the service and its database."""

import asyncio
import json
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, same_data
from app.cli.server import Server, listen, url_of
from app.cli.terminal import printable, say, write_json
from app.config import Settings, read_settings
from app.errors import ConfigurationError


def serve(
    host: Annotated[str | None, typer.Option(help="Overrides CTXSNAP_HOST.")] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Overrides CTXSNAP_PORT; 0 takes a free one.", min=0, max=65535),
    ] = None,
) -> None:
    """Run the service until it is told to stop (Ctrl-C, SIGTERM).

    Without CTXSNAP_DATABASE_URL the embedded database is started in CTXSNAP_DATA_DIR.
    """
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = read_settings(**given)
    bound = listen(settings.host, settings.port)
    # A second of imports that the other commands can do without.
    from app.main import create_app  # noqa: PLC0415

    server = Server(create_app(settings), bound, lambda: _announce(settings, url_of(bound)))
    # uvicorn stops gracefully and then repeats the signal, which by itself would kill.
    signal.signal(signal.SIGTERM, _leave)
    try:
        server.run_until_stopped()
    except KeyboardInterrupt:
        say("Stopped.")


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _announce(settings: Settings, url: str) -> None:
    database = "the embedded database" if settings.database_url is None else "CTXSNAP_DATABASE_URL"
    typer.echo(f"Listening on {url}, with {database}.")
    if settings.issuers:
        typer.echo("Tokens come from the configured issuers.")
    else:
        typer.echo(f"Get a token: {printable(same_data(settings))} token --tenant {DEFAULT_TENANT}")
    typer.echo("Stop with Ctrl-C.")
    sys.stdout.flush()


def migrate(
    vector_index: Annotated[
        bool,
        typer.Option(
            "--vector-index",
            help="Also build the index that the strategy `approximate` searches, for each "
            "profile in CTXSNAP_EMBEDDINGS.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the database up to date and print its revision.

    Runs under the owner's role, CTXSNAP_MIGRATION_DATABASE_URL; without any database URL
    it is the embedded database that is migrated.
    """
    settings = read_settings()
    if settings.database_url is not None and settings.migration_database_url is None:
        raise ConfigurationError(
            "CTXSNAP_DATABASE_URL names the serving role's database: set "
            "CTXSNAP_MIGRATION_DATABASE_URL to the owner's URL of the same."
        )
    from app.bootstrap import migrate_database  # noqa: PLC0415 - as in `serve`

    revision = asyncio.run(migrate_database(settings, vector_index=vector_index))
    if as_json:
        write_json(json.dumps({"revision": revision}).encode() + b"\n")
    else:
        typer.echo(revision)
