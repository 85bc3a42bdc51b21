"""`ctxsnap`: the commands, how they end, and nothing else."""

import sys
from collections.abc import Callable
from typing import NoReturn

import typer

from app.cli.assemble import assemble
from app.cli.audit import audit
from app.cli.demo import demo
from app.cli.diff import diff
from app.cli.erase import erase
from app.cli.explain import explain
from app.cli.export import export
from app.cli.failures import EXIT_CODES, report
from app.cli.ingest import ingest
from app.cli.openapi import openapi
from app.cli.reindex import reindex
from app.cli.replay import replay
from app.cli.serve import migrate, serve
from app.cli.show import show
from app.cli.token import print_token
from app.cli.verify import verify
from app.errors import ServiceError

application = typer.Typer(
    name="ctxsnap",
    help="Immutable, hashed snapshots of exactly the knowledge that one agent attempt may use.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "serve": serve,
    "migrate": migrate,
    "token": print_token,
    "ingest": ingest,
    "erase": erase,
    "reindex": reindex,
    "export": export,
    "assemble": assemble,
    "show": show,
    "diff": diff,
    "explain": explain,
    "verify": verify,
    "replay": replay,
    "openapi": openapi,
}
for name, command in _COMMANDS.items():
    application.command(name)(command)
application.add_typer(audit, name="audit")


def main() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        # Output that the locale has no characters for is escaped rather than refused.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        application()
    except ServiceError as error:
        sys.exit(report(error))
    sys.exit(0)


if __name__ == "__main__":
    main()
