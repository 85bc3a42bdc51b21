"""The options by which commands find the service and show who they are."""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from app.adapters.development_key import KEY_FILE_NAME
from app.cli.client import ServiceClient, is_local
from app.cli.terminal import say
from app.cli.token import DEFAULT_TENANT, Rights, operating_user, sign
from app.config import Settings, read_settings
from app.errors import ConfigurationError

SHORT_LIFETIME_S = 3600

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="CTXSNAP_URL",
        help="Where the service is.",
        show_default="http://127.0.0.1:8080, or as CTXSNAP_HOST and CTXSNAP_PORT say",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="CTXSNAP_TOKEN",
        help="The bearer token; other users can see what stands in a command, so prefer the "
        "variable. Absent, and the service is on this machine: one is signed with the "
        "development key.",
    ),
]
Tenant = Annotated[
    str, typer.Option("--tenant", help="The tenant of a token that is signed for this call.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Ref = Annotated[str, typer.Argument(help="The hash (sha256:…) or the snapshotId.")]
Project = Annotated[str, typer.Option("--project", "-p", help="The project.")]

__all__ = [
    "DEFAULT_TENANT",
    "AsJson",
    "Project",
    "Ref",
    "Tenant",
    "Token",
    "Url",
    "connect",
    "same_data",
]


def connect(url: str | None, token: str | None, tenant: str) -> ServiceClient:
    """A client for the service; raises ConfigurationError when there is no token for it."""
    settings = read_settings()
    address = url or local_url(settings)
    # Made first: it refuses what is no URL.
    client = ServiceClient(address, token or None)
    if token:
        return client
    client.close()
    return ServiceClient(address, _development_token(settings, address, tenant))


def local_url(settings: Settings) -> str:
    """Where a service with these settings is reached from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def same_data(settings: Settings) -> str:
    """`ctxsnap` as a shell takes it from any folder, with the data folder of these settings."""
    folder = shlex.quote(os.fspath(settings.data_dir.resolve()))
    # Beside the interpreter that runs this, whether or not its folder is on the new PATH.
    program = shlex.quote(os.fspath(Path(sys.executable).with_name("ctxsnap")))
    return f"CTXSNAP_DATA_DIR={folder} {program}"


def _development_token(settings: Settings, url: str, tenant: str) -> str:
    if settings.issuers or not is_local(url):
        raise ConfigurationError(f"{url} needs a token: give --token or CTXSNAP_TOKEN.")
    key = settings.data_dir / KEY_FILE_NAME
    if not key.exists():
        raise ConfigurationError(
            f"There is no token and no development key {key}: start the service here with "
            "`ctxsnap serve`, set CTXSNAP_DATA_DIR to its folder, or give --token or "
            "CTXSNAP_TOKEN."
        )
    subject = operating_user()
    say(f"No token given: signing one with {key} for tenant {tenant}, subject {subject}.")
    return sign(
        settings,
        Rights(tenant=tenant, subject=subject),
        now_s=int(time.time()),
        expires_in_s=SHORT_LIFETIME_S,
    )
