"""Where the embedded server listens: a Unix socket in a folder of mode 0700.

Guaranteed: the folder is the cluster's own or, where that path is too long for a socket, a
fresh one among the temporary files, recorded beside the cluster. A recorded folder is used
only while it belongs to the server's account and to nobody else, so that no password goes
to a stranger. Only the process that listens there is ever sent a signal.

Not handled: a signal to a server in another container that shares the data folder.
"""

import os
import signal
import socket
import stat
import struct
import sys
import tempfile
from pathlib import Path

from app.adapters.postgres.embedded_binaries import Account
from app.errors import ConfigurationError, UnavailableError

PORT = 5432

_NAME = f".s.PGSQL.{PORT}"
_PATH_BYTES = 103  # macOS's limit, the smaller one; Linux has 107
_IN_CLUSTER = "."


class ServerSocket:
    """The socket of the server on `cluster`; `account` owns it, None for the calling user."""

    def __init__(self, home: Path, cluster: Path, account: Account | None) -> None:
        self._cluster = cluster
        self._account = account
        self._record = home / "socket-folder"
        # Part of the name, so that a copy of the data folder has no claim on it.
        self._prefix = f"ctxsnap-{home.stat().st_ino:x}-"

    def make(self) -> str:
        """Make and record the folder; return the value of `unix_socket_directories`.

        The one of a server that died is taken again, so that clients find its successor.
        """
        recorded = self.folder()
        if _fits(self._cluster) or recorded in (None, self._cluster):
            self.clear()
            folder = _IN_CLUSTER if _fits(self._cluster) else str(self._make_runtime_folder())
            self._record.touch(mode=0o600)
            self._record.write_text(folder, encoding="utf-8", errors="surrogateescape")
            return folder
        self._unlink_sockets()
        return str(recorded)

    def folder(self) -> Path | None:
        """Return the recorded folder, None if it is gone or not the server's alone."""
        try:
            record = self._record.read_text(encoding="utf-8", errors="surrogateescape")
            folder = self._cluster if record == _IN_CLUSTER else Path(record)
            status = folder.lstat()
        except FileNotFoundError:
            return None
        ours = folder == self._cluster or folder.name.startswith(self._prefix)
        owner = self._account.uid if self._account else os.geteuid()
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        return folder if ours and private and status.st_uid == owner else None

    def require_folder(self) -> Path:
        folder = self.folder()
        if folder is None:
            raise UnavailableError(
                f"The socket folder of the embedded database that runs on {self._cluster} is "
                "gone or is no longer private: stop that server, then try again."
            )
        return folder

    def clear(self) -> None:
        """Remove what a server that is gone left behind, whether recorded or not."""
        self._unlink_sockets()
        recorded = self.folder()
        if recorded is not None and recorded != self._cluster:
            recorded.rmdir()
        self._record.unlink(missing_ok=True)

    def postmaster(self) -> int | None:
        """Return the id of the process that listens there, 0 for one that is out of sight."""
        folder = self.folder()
        if folder is None:
            return None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            try:
                connection.connect(str(folder / _NAME))
            except (ConnectionError, FileNotFoundError, TimeoutError, BlockingIOError):
                return None
            if sys.platform == "darwin":
                return connection.getsockopt(0, 2)  # SOL_LOCAL, LOCAL_PEERPID
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid: int = struct.unpack("3i", credentials)[0]
            return pid

    def signal_postmaster(self, number: signal.Signals) -> bool:
        """Return whether the signal reached a postmaster that listens there."""
        pid = self.postmaster()
        if not pid:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def _unlink_sockets(self) -> None:
        for folder in {self.folder() or self._cluster, self._cluster}:
            for name in (_NAME, f"{_NAME}.lock"):
                (folder / name).unlink(missing_ok=True)

    def _make_runtime_folder(self) -> Path:
        for parent in dict.fromkeys((Path(tempfile.gettempdir()).resolve(), Path("/tmp"))):  # noqa: S108
            if not _fits(parent / f"{self._prefix}12345678") or not self._reaches(parent):
                continue
            folder = Path(tempfile.mkdtemp(prefix=self._prefix, dir=parent))
            if self._account:
                os.chown(folder, self._account.uid, self._account.gid)
            return folder
        raise ConfigurationError(
            f"{self._cluster} is no path for a Unix socket (at most {_PATH_BYTES} bytes, no comma, "
            "colon or quote), and there is no temporary folder for one: set CTXSNAP_DATA_DIR to "
            "a shorter path."
        )

    def _reaches(self, folder: Path) -> bool:
        return self._account is None or all(
            step.stat().st_mode & stat.S_IXOTH for step in (folder, *folder.parents)
        )


def _fits(folder: Path) -> bool:
    path = str(folder / _NAME)
    # SQLAlchemy splits the host of a URL at commas and colons, PostgreSQL its list of folders.
    return len(os.fsencode(path)) <= _PATH_BYTES and not set(path) & set(',:"')
