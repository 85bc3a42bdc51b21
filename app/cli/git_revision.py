"""Revisions of files: the git commit that last changed one, or the digest of its content.

Guarantees: a commit is given only where it holds exactly these bytes, which is checked by
the blob's id and not by time stamps, so a file that was edited, filtered on checkout or
hidden from git's own comparison gets its digest. Merges count as changes, because what
they make may stand in none of their parents. Two calls of git for any number of files;
neither runs a program that the repository's configuration names, nor asks the network.

Not handled: submodules and repositories inside the folder; their files get digests.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_SHA1_HEX_DIGITS = 40
_READ_BYTES = 1 << 16
# Set inside of hooks; they would point git at another repository than the file's.
_FOREIGN_VARIABLES = {
    "GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Committed:
    """A file as HEAD has it: the blob's id, and the last commit that changed it."""

    blob: str
    commit: str


def revision_of(content: bytes, committed: Committed | None) -> str:
    """`git:<commit>` where the commit holds this content, else `sha256:<digest>`."""
    if committed is not None and _blob_id(content, len(committed.blob)) == committed.blob:
        return f"git:{committed.commit}"
    return "sha256:" + hashlib.sha256(content).hexdigest()


def committed_files(folder: Path, names: Iterable[str]) -> Mapping[str, Committed]:
    """What HEAD has of the files `names` in and below `folder`; empty where there is no git."""
    wanted = {os.fsencode(name) for name in names}
    try:
        blobs = _blobs(folder, wanted)
        commits = _last_commits(folder, frozenset(blobs)) if blobs else {}
    except FileNotFoundError:
        # git is not installed.
        return {}
    return {
        os.fsdecode(name): Committed(blobs[name], commit)
        for name, commit in commits.items()
        if name in blobs
    }


def _blobs(folder: Path, wanted: set[bytes]) -> dict[bytes, str]:
    with _git(folder, "ls-tree", "-r", "-z", "HEAD") as git:
        entries = [entry.partition(b"\t") for entry in _fields(_stdout(git))]
    found: dict[bytes, str] = {}
    for attributes, _, name in entries:
        mode, _, blob = attributes.split(b" ")
        if name in wanted and mode.startswith(b"100"):
            found[name] = blob.decode("ascii")
    return found


def _last_commits(folder: Path, wanted: frozenset[bytes]) -> dict[bytes, str]:
    """Read the history from its end only as far as it takes to find every file.

    Along the first parents, a merge's changes being what it brought in: the newest commit
    that names a file then has the content that HEAD has.
    """
    missing = set(wanted)
    found: dict[bytes, str] = {}
    with _git(
        folder,
        *("log", "-z", "-m", "--first-parent", "--root", "--name-only", "--relative"),
        *("--no-renames", "--no-show-signature", "--no-ext-diff", "--no-textconv"),
        *("--format=%x00%H", "HEAD", "--", "."),
    ) as git:
        commit, at_commit = "", False
        for field in _fields(_stdout(git)):
            # An empty field, which no name can be, comes before each commit's id; a line
            # feed parts the id from the first name.
            if at_commit:
                commit, at_commit, is_first = field.decode("ascii"), False, True
                continue
            if not field:
                at_commit = True
                continue
            name = field.removeprefix(b"\n") if is_first else field
            is_first = False
            if name in missing:
                missing.remove(name)
                found[name] = commit
                if not missing:
                    break
        git.kill()
    return found


def _git(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    inherited = {
        name: value for name, value in os.environ.items() if name not in _FOREIGN_VARIABLES
    }
    return subprocess.Popen(  # noqa: S603 - fixed arguments, no shell
        ["git", "--no-pager", "-C", folder, *arguments],  # noqa: S607 - the user's own git
        env={**inherited, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _stdout(git: subprocess.Popen[bytes]) -> IO[bytes]:
    if git.stdout is None:
        raise RuntimeError("git was started without a pipe")
    return git.stdout


def _fields(stream: IO[bytes]) -> Iterator[bytes]:
    """The fields of a stream, each ended by NUL."""
    rest = b""
    while block := stream.read(_READ_BYTES):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole


def _blob_id(content: bytes, hex_digits: int) -> str:
    """The id that git gives a blob of this content, in the repository's hash function."""
    algorithm = "sha1" if hex_digits == _SHA1_HEX_DIGITS else "sha256"
    digest = hashlib.new(algorithm, usedforsecurity=False)
    digest.update(b"blob %d\0" % len(content))
    digest.update(content)
    return digest.hexdigest()
