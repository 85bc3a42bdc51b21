"""A service to measure: a process of its own, on an embedded database that goes away again.

Guarantees: the service is started by the command that users run, under the serving role;
it and the database are stopped and their files removed however the block is left.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from app.adapters.postgres.embedded import SERVING_ROLE, EmbeddedDatabase, start_embedded
from app.adapters.postgres.schema import migrate
from app.cli.token import Rights, sign
from app.config import Settings, read_settings

TENANT = "bench"
SUBJECT = "ana"
_TOKEN_LIFETIME_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Scratch:
    """A running service: where it listens, and the database behind it."""

    url: str
    database: EmbeddedDatabase
    settings: Settings

    def headers(self, *groups: str) -> dict[str, str]:
        """Request headers with a token that may do everything in the one tenant."""
        rights = Rights(tenant=TENANT, subject=SUBJECT, groups=groups)
        token = sign(self.settings, rights, now_s=int(time.time()), expires_in_s=_TOKEN_LIFETIME_S)
        return {"Authorization": f"Bearer {token}"}


@contextmanager
def scratch_service(
    postgres: Mapping[str, str], environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Scratch]:
    """Start an empty database with these settings of PostgreSQL's, and a service on it.

    `environment` holds further settings of the service.
    """
    with tempfile.TemporaryDirectory(prefix="ctxsnap-bench-") as folder:
        data_dir = Path(folder)
        with start_embedded(data_dir, settings=postgres) as server:
            database = server.database
            asyncio.run(migrate(database.owner_url, serving_role=SERVING_ROLE))
            settings = read_settings(data_dir=data_dir, database_url=database.serving_url)
            with _service(data_dir, database.serving_url, environment) as url:
                yield Scratch(url, database, settings)


@contextmanager
def _service(data_dir: Path, database_url: str, further: Mapping[str, str]) -> Iterator[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CTXSNAP_")},
        "CTXSNAP_DATA_DIR": str(data_dir),
        "CTXSNAP_DATABASE_URL": database_url,
        "CTXSNAP_LOG_LEVEL": "warning",
        **further,
    }
    command = [sys.executable, "-m", "app.cli.main", "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            # The command's first line once it takes requests: "Listening on URL, with …".
            words = process.stdout.readline().split()
            if words[:2] != ["Listening", "on"]:
                raise SystemExit("The service did not start.")
            yield words[2].rstrip(",")
        finally:
            process.terminate()
