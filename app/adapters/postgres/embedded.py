"""The embedded PostgreSQL: started by its first user, joined by others, stopped by the last.

Guaranteed: any number of processes may use one data folder at once; whoever comes first
starts the server and whoever leaves last stops it. Use is counted by locks that the system
drops with their process, so one that was killed does not count, and a server that it left
behind is joined and then stopped. The serving role is what row-level security needs: it
owns nothing and bypasses nothing. Passwords are random, and stored with mode 0600 in a
folder of mode 0700; the modes of existing folders are never touched.

Not handled: upgrading a cluster to another major version, and a forked child that goes on
to use its parent's handle.
"""

import fcntl
import json
import os
import secrets
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from sqlalchemy import URL

from app.adapters.postgres.embedded_binaries import INSTEAD, PostgresBinaries, find_binaries
from app.adapters.postgres.embedded_server import (
    POLL_S,
    SUPERUSER,
    EmbeddedServer,
    try_lock,
)
from app.adapters.postgres.embedded_socket import PORT
from app.errors import ConfigurationError, UnavailableError

OWNER_ROLE = "ctxsnap_owner"
SERVING_ROLE = "ctxsnap_service"
DATABASE = "ctxsnap"

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_STOP_TIMEOUT_S = 60.0

# Run on every start, so that one which was cut short is completed, and a role that somebody
# altered is what it has to be. The passwords hold no quote and no backslash.
_PROVISION = rf"""
SET client_min_messages = warning;
SELECT 'CREATE ROLE ' || name FROM unnest(ARRAY['{OWNER_ROLE}', '{SERVING_ROLE}']) AS name
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE {OWNER_ROLE} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION
  PASSWORD :'owner_password';
ALTER ROLE {SERVING_ROLE} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION
  PASSWORD :'serving_password';
SELECT 'CREATE DATABASE {DATABASE} OWNER {OWNER_ROLE}'
 WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{DATABASE}') \gexec
REVOKE ALL ON DATABASE {DATABASE}, postgres, template1 FROM PUBLIC;
GRANT CONNECT ON DATABASE {DATABASE} TO {SERVING_ROLE};
\connect {DATABASE}
SET client_min_messages = warning;
SET search_path = pg_catalog;
SELECT format(command, 'vector')
  FROM pg_available_extensions,
       unnest(ARRAY['CREATE EXTENSION IF NOT EXISTS %I SCHEMA public',
                    'ALTER EXTENSION %I UPDATE']) AS command
 WHERE name = 'vector' AND installed_version IS DISTINCT FROM default_version \gexec
"""  # noqa: S608 - only constants go in


@dataclass(frozen=True, slots=True)
class EmbeddedDatabase:
    """SQLAlchemy URLs for asyncpg; each holds a password, so none is in the repr."""

    owner_url: str = field(repr=False)
    serving_url: str = field(repr=False)
    superuser_url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Passwords:
    superuser: str = field(repr=False)
    owner: str = field(repr=False)
    serving: str = field(repr=False)


class EmbeddedPostgres:
    """One use of the embedded database; made by `start_embedded`, ended by `stop`."""

    def __init__(self, home: Path, settings: Mapping[str, str], timeout_s: float) -> None:
        self._home = home
        self._calls = threading.Lock()
        self._binaries = find_binaries()
        deadline = time.monotonic() + timeout_s
        with _turn(home, deadline):
            self._server = EmbeddedServer(home, self._binaries, settings)
            use = os.open(home / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(use, fcntl.LOCK_SH)
            self._use: int | None = use
            try:
                self._passwords = _load_passwords(home)
                self._database = self._start(deadline)
            except BaseException:
                self._leave(use)
                raise

    @property
    def database(self) -> EmbeddedDatabase:
        return self._database

    def is_running(self) -> bool:
        """Whether any process of the server lives: cheap enough to ask every second."""
        with _obstacles_named(self._home):
            return self._server.lives()

    def ensure_running(self, timeout_s: float = 60) -> None:
        """Start the server again if it died; a server that runs is left alone.

        Blocks for up to `timeout_s`. The URLs change only if the socket's folder is gone.
        """
        with self._calls, _obstacles_named(self._home):
            if self._use is None:
                raise UnavailableError("The embedded database was stopped by this process.")
            deadline = time.monotonic() + timeout_s
            with _turn(self._home, deadline):
                self._database = self._start(deadline)

    def stop(self) -> None:
        """End this use, and stop the server if it was the last; a second call does nothing."""
        with self._calls, _obstacles_named(self._home):
            if self._use is not None:
                with _turn(self._home, time.monotonic() + _STOP_TIMEOUT_S):
                    self._leave(self._use)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self, deadline: float) -> EmbeddedDatabase:
        folder = self._server.ensure_running(self._passwords.superuser, deadline)
        _provision(self._binaries, folder, self._passwords, deadline)
        return EmbeddedDatabase(
            owner_url=_url(folder, OWNER_ROLE, self._passwords.owner),
            serving_url=_url(folder, SERVING_ROLE, self._passwords.serving),
            superuser_url=_url(folder, SUPERUSER, self._passwords.superuser),
        )

    def _leave(self, use: int) -> None:
        # Unlocked before it is closed: a child that is being forked may hold a copy.
        fcntl.flock(use, fcntl.LOCK_UN)
        os.close(use)
        self._use = None
        alone = try_lock(self._home / "users.lock")
        if alone is not None:
            try:
                self._server.stop()
            finally:
                os.close(alone)


def start_embedded(
    data_dir: Path,
    *,
    start_timeout_s: float = 60,
    settings: Mapping[str, str] = _NO_SETTINGS,
) -> EmbeddedPostgres:
    """Start or join the server whose files are in `data_dir`; blocks, so call it in a thread.

    `settings` are PostgreSQL's own, and count for whoever starts the server. Raises
    ConfigurationError for what the operator can mend, UnavailableError when time runs out.
    """
    with _obstacles_named(data_dir):
        return EmbeddedPostgres(_private_folder(data_dir), settings, start_timeout_s)


@contextmanager
def _obstacles_named(folder: Path) -> Iterator[None]:
    """Turn what the system refuses into an error that says where and what else would do."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"The embedded database in {folder} met an obstacle: {error}. {INSTEAD}"
        ) from error


def _private_folder(data_dir: Path) -> Path:
    data_dir = data_dir.resolve()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    home = data_dir / "postgres"
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{home} is not a folder of the user who runs this (uid {os.geteuid()}): run as "
            f"its owner (uid {status.st_uid}), or set CTXSNAP_DATA_DIR to a folder of your own."
        )
    if status.st_mode & 0o077:
        raise ConfigurationError(
            f"{home} holds passwords and is open to other users: `chmod 700 {home}`."
        )
    return home


@contextmanager
def _turn(home: Path, deadline: float) -> Iterator[None]:
    """Hold the lock under which servers are created, started and stopped."""
    while (lock := try_lock(home / "lifecycle.lock")) is None:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"Another process is still starting or stopping the embedded database in {home}."
            )
        time.sleep(POLL_S)
    try:
        yield
    finally:
        os.close(lock)


def _load_passwords(home: Path) -> _Passwords:
    path = home / "passwords.json"
    if path.exists():
        return _Passwords(**json.loads(path.read_text(encoding="ascii")))
    if (home / "cluster").exists():
        raise ConfigurationError(
            f"{path} is missing, without which the embedded database cannot be opened: restore "
            f"it, or move {home} away to begin anew. {INSTEAD}"
        )
    fresh = {role: secrets.token_urlsafe(32) for role in ("superuser", "owner", "serving")}
    descriptor, temporary = tempfile.mkstemp(dir=home)  # mode 0600
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        json.dump(fresh, file)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).rename(path)
    return _Passwords(**fresh)


def _provision(
    binaries: PostgresBinaries, folder: Path, passwords: _Passwords, deadline: float
) -> None:
    variables = (
        f"\\set ON_ERROR_STOP on\n"
        f"\\set VERBOSITY terse\n"  # no statement in an error: some hold a password
        f"\\set owner_password '{passwords.owner}'\n"
        f"\\set serving_password '{passwords.serving}'\n"
    )
    command = ["--no-psqlrc", "--quiet", f"--host={folder}", f"--port={PORT}", "--file=-"]
    try:
        answer = subprocess.run(  # noqa: S603 - a program and arguments of ours, no shell
            [binaries.bin_folder / "psql", *command, f"--username={SUPERUSER}", "postgres"],
            input=variables + _PROVISION,
            env={"PATH": os.defpath, "LC_ALL": "C", "PGPASSWORD": passwords.superuser},
            capture_output=True,
            text=True,
            check=False,
            timeout=max(deadline - time.monotonic(), 1),
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            "The embedded database was not set up in time: allow more time."
        ) from error
    if answer.returncode != 0:
        raise ConfigurationError(
            f"The embedded database could not be set up: {answer.stderr.strip()} {INSTEAD}"
        )


def _url(folder: Path, role: str, password: str) -> str:
    url = URL.create(
        "postgresql+asyncpg",
        username=role,
        password=password,
        database=DATABASE,
        query={"host": str(folder), "port": str(PORT)},
    )
    return url.render_as_string(hide_password=False)
