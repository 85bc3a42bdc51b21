"""Commands of `ctxsnap` without a process of their own: starting one takes a second."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from typer.testing import CliRunner

from app.cli.failures import exit_code_of
from app.cli.main import application
from app.errors import ServiceError


def run_in_process(
    *arguments: str | Path, environment: Mapping[str, str | None]
) -> subprocess.CompletedProcess[bytes]:
    """What the process would have ended with; a failure's whole sentence is on standard error."""
    given = [*map(str, arguments)]
    result = CliRunner().invoke(application, given, env=environment)
    code, errors = result.exit_code, result.stderr
    if isinstance(result.exception, ServiceError):
        code, errors = exit_code_of(result.exception), f"{errors}Error: {result.exception.detail}\n"
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(given, code, result.stdout_bytes, errors.encode())
