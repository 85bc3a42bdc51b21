"""One PostgreSQL server process on one cluster folder: created, started, found, stopped.

Guaranteed: the server listens on a Unix socket in a folder of mode 0700 and on nothing
else, and asks everyone for a password. As root it runs under a user id of its own, which
reaches the cluster as its working directory (`/proc/self/cwd`), so that no parent folder
has to be opened. Whether it lives is known from a lock that its processes inherit: a
process id may be recycled, a lock cannot. Only the process that listens in our socket
folder is ever sent a signal.

The caller sees to it that one process at a time creates, starts or stops a server.

Not handled: network file systems (no reliable flock), Windows, root on other systems than
Linux, and cleaning up after a logout that removes a user's IPC objects.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from app.adapters.postgres.embedded_binaries import (
    INSTEAD,
    POSTGRES_MAJOR,
    Account,
    PostgresBinaries,
    choose_account,
    copy_for,
    named_uid,
)
from app.adapters.postgres.embedded_socket import PORT, ServerSocket
from app.errors import ConfigurationError, ServiceError, UnavailableError

SUPERUSER = "ctxsnap_superuser"
POLL_S = 0.02

_WORKING_DIRECTORY = "/proc/self/cwd"
_LOG_BYTES = 8 * 1024 * 1024
_STOP_STEPS = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
_SMALL_MACHINE: Mapping[str, str] = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Statements and their values may be what callers asked: they stay out of the log.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}
_ALWAYS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "password_encryption": "scram-sha-256",
    "logging_collector": "off",
    "log_destination": "stderr",
}


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the exclusive lock on `path`; None if it is taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class EmbeddedServer:
    """The server of the cluster in `home`, a folder of mode 0700 that the caller owns."""

    def __init__(self, home: Path, binaries: PostgresBinaries, settings: Mapping[str, str]) -> None:
        self._home = home
        self._cluster = home / "cluster"
        self._pid_file = self._cluster / "postmaster.pid"
        self._lock_path = home / "server.lock"
        self._settings = {**_SMALL_MACHINE, **settings, **_ALWAYS}
        self._account = self._server_account()
        self._socket = ServerSocket(home, self._cluster, self._account)
        self._binaries = copy_for(self._account, binaries) if self._account else binaries

    @property
    def log_path(self) -> Path:
        return self._home / "server.log"

    def lives(self) -> bool:
        """Return whether any process of the server lives; opens no connection."""
        server_lock = try_lock(self._lock_path)
        if server_lock is None:
            return True
        os.close(server_lock)
        return False

    def ensure_running(self, superuser_password: str, deadline: float) -> Path:
        """Return the socket folder of a server that takes connections.

        `deadline` is on the monotonic clock. An earlier server that is still going down
        or coming up is waited for.
        """
        while (server_lock := try_lock(self._lock_path)) is None:
            if self._takes_connections():
                return self._socket.require_folder()
            if time.monotonic() > deadline:
                raise UnavailableError(
                    "The embedded database is neither up nor gone: see the end of "
                    f"{self.log_path}, or allow more time."
                )
            time.sleep(POLL_S)
        try:
            self._create_cluster_once(superuser_password, server_lock, deadline)
            self._require_our_version()
            with self._recorded_pid_passed_over():
                self._launch(server_lock, deadline)
        finally:
            os.close(server_lock)
        return self._socket.require_folder()

    def stop(self) -> None:
        """Stop the server, sessions included, and return when all its processes are gone."""
        for step, patience_s in _STOP_STEPS:
            deadline = time.monotonic() + patience_s
            signalled = False
            while time.monotonic() < deadline:
                server_lock = try_lock(self._lock_path)
                if server_lock is not None:
                    self._socket.clear()
                    os.close(server_lock)
                    return
                signalled = signalled or self._socket.signal_postmaster(step)
                time.sleep(POLL_S)
        raise UnavailableError(f"The embedded database does not stop: see {self.log_path}.")

    def _server_account(self) -> Account | None:
        if os.geteuid() != 0:
            return None
        if not Path(_WORKING_DIRECTORY).exists():
            raise ConfigurationError(
                "As root, the embedded database runs only on Linux with /proc mounted: run as "
                f"an ordinary user. {INSTEAD}"
            )
        if not self._cluster.exists():
            return choose_account()
        owner = self._cluster.lstat()
        if owner.st_uid == 0:
            raise ConfigurationError(
                f"{self._cluster} belongs to root, as whom PostgreSQL does not run: remove it "
                f"to begin anew, or give it to an unprivileged user. {INSTEAD}"
            )
        return Account(owner.st_uid, owner.st_gid)

    def _create_cluster_once(self, password: str, server_lock: int, deadline: float) -> None:
        if self._cluster.exists():
            return
        staging = self._home / "cluster.new"
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir(mode=0o700)
        # Nobody else gets there: the home folder is closed, and the group keeps other
        # processes of the same named user from looking into this one.
        account = self._account and Account(named_uid(), self._account.gid)
        with tempfile.TemporaryFile(dir=self._home) as password_file:
            password_file.write(f"{password}\n".encode())
            password_file.seek(0)
            if account:
                os.fchown(password_file.fileno(), account.uid, account.gid)
                os.chown(staging, account.uid, account.gid)
            self._initdb(account, staging, password_file.fileno(), server_lock, deadline)
        if self._account:
            for folder, _, names in os.walk(staging):
                for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118
                    os.chown(path, self._account.uid, self._account.gid, follow_symlinks=False)
        staging.rename(self._cluster)

    def _initdb(
        self,
        account: Account | None,
        folder: Path,
        password_descriptor: int,
        server_lock: int,
        deadline: float,
    ) -> None:
        command = [
            str(self._binaries.bin_folder / "initdb"),
            f"--pgdata={_WORKING_DIRECTORY if account else folder}",
            f"--username={SUPERUSER}",
            f"--pwfile=/dev/fd/{password_descriptor}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
            # For whoever starts it by hand, without our settings.
            "--set=listen_addresses=",
            "--set=unix_socket_permissions=0700",
        ]
        if self._settings.get("fsync") == "off":
            command.append("--no-sync")
        with tempfile.TemporaryFile() as output:
            process = self._spawn(
                command, account, folder, output, (password_descriptor, server_lock)
            )
            try:
                returncode = process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired as error:
                process.kill()
                process.wait()
                raise UnavailableError(
                    "Creating the embedded database took longer than allowed: allow more time."
                ) from error
            output.seek(0)
            if returncode != 0:
                raise ConfigurationError(
                    f"initdb could not create the embedded database: {_complaint(output)} {INSTEAD}"
                )

    def _require_our_version(self) -> None:
        version = (self._cluster / "PG_VERSION").read_text(encoding="ascii").strip()
        if version != str(POSTGRES_MAJOR):
            raise ConfigurationError(
                f"The embedded database in {self._cluster} was made by PostgreSQL {version}, "
                f"and this is PostgreSQL {POSTGRES_MAJOR}: dump and reload it, or set "
                f"CTXSNAP_DATA_DIR to an empty folder. {INSTEAD}"
            )

    @contextmanager
    def _recorded_pid_passed_over(self) -> Iterator[None]:
        """Let a start succeed although the process id of a server that is gone was recycled.

        PostgreSQL takes a live process of the recorded id for a running server, but passes
        over the id of its own parent, which is this process, and goes on to check the shared
        memory that the file names. So a server that somebody started by hand is still
        noticed; it then gets its file back, without which it would shut down.
        """
        try:
            descriptor = os.open(self._pid_file, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            yield
            return
        with os.fdopen(descriptor, "r+", encoding="utf-8", errors="surrogateescape") as file:
            former = file.read()
            recorded, _, others = former.partition("\n")
            if recorded.isdecimal():
                _rewrite(file, f"{os.getpid()}\n{others}")
            else:
                self._pid_file.unlink()  # torn by a crash; PostgreSQL would refuse to start
            try:
                yield
            except ServiceError:
                # A server that got as far as to replace or remove the file is unaffected.
                _rewrite(file, former)
                raise

    def _launch(self, server_lock: int, deadline: float) -> None:
        settings = {**self._settings, "unix_socket_directories": self._socket.make()}
        command = [
            str(self._binaries.bin_folder / "postgres"),
            "-D",
            _WORKING_DIRECTORY if self._account else str(self._cluster),
        ]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self._open_log() as log:
            log_start = log.seek(0, os.SEEK_END)
            process = self._spawn(command, self._account, self._cluster, log, (server_lock,))
        # Whenever and by whomever it is stopped, it must not stay behind as a zombie.
        threading.Thread(target=process.wait, name="embedded-postgres", daemon=True).start()
        while not self._takes_connections():
            if process.poll() is not None:
                with self.log_path.open("rb") as log:
                    log.seek(log_start)
                    raise ConfigurationError(
                        f"The embedded database did not start: {_complaint(log)} "
                        f"(more in {self.log_path})."
                    )
            if time.monotonic() > deadline:
                process.send_signal(signal.SIGQUIT)
                process.wait()
                raise UnavailableError(
                    f"The embedded database was not ready in time: see {self.log_path}, or "
                    "allow more time."
                )
            time.sleep(POLL_S)

    def _open_log(self) -> IO[bytes]:
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "ab")

    def _spawn(
        self,
        command: Sequence[str],
        account: Account | None,
        folder: Path,
        output: IO[bytes],
        descriptors: Sequence[int],
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - programs and arguments of ours, no shell
            command,
            cwd=folder,
            # PGPORT and its like would be obeyed by the programs.
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C in a terminal is for the service
            umask=0o077,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )

    def _takes_connections(self) -> bool:
        try:
            descriptor = os.open(self._pid_file, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        with os.fdopen(descriptor, "rb") as file:
            lines = file.read().splitlines()
        # The eighth line is the state: starting, ready, stopping.
        ready = len(lines) > 7 and lines[7].strip() == b"ready"
        return ready and self._socket.postmaster() is not None


def _rewrite(file: IO[str], content: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(content)
    file.flush()


def _complaint(output: IO[bytes]) -> str:
    """Return the first line that names an error, else the last line."""
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines()]
    errors = (line for line in lines if "FATAL: " in line or "error: " in line)
    return next(errors, lines[-1] if lines else "it said nothing")
