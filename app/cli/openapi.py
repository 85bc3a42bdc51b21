"""`ctxsnap openapi`: the API's description, exported without starting anything."""

import difflib
import json
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from app.cli.terminal import say
from app.config import read_settings
from app.errors import ConfigurationError

DEFAULT_OUTPUT = Path("openapi/openapi.json")
_SHOWN_LINES = 20


def openapi(
    output: Annotated[Path, typer.Option(help="The file.")] = DEFAULT_OUTPUT,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if the file differs.")
    ] = False,
) -> None:
    """Export the OpenAPI document, or check the exported one."""
    wanted = openapi_text()
    if not check:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(wanted, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{output} cannot be written: {error.strerror}.") from error
        say(f"Wrote {output}.")
        return
    found = output.read_text(encoding="utf-8") if output.is_file() else ""
    if found == wanted:
        return
    say(f"{output} is not what the application describes: run `ctxsnap openapi`.")
    difference = difflib.unified_diff(
        found.splitlines(), wanted.splitlines(), str(output), "application", n=1, lineterm=""
    )
    for line in islice(difference, _SHOWN_LINES):
        say(f"  {line}")
    raise typer.Exit(1)


def openapi_text() -> str:
    """The document as it is exported: sorted, indented by two, ended by a line feed."""
    # A second of imports that the other commands can do without.
    from app.main import create_app  # noqa: PLC0415

    document = create_app(read_settings()).openapi()
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
