"""Which files a command takes: those below the given paths that `.gitignore` does not name.

Guarantees: the order is that of the names' code points, whatever the file system. The
`.gitignore` files of a repository hold, nested ones and those above the given folder too.
What is named itself is taken also where a `.gitignore` names it. `.git`, the folder with
the service's own keys and database, and symbolic links are never followed.

Not handled: git's other lists (`.git/info/exclude`, `core.excludesFile`).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from app.api.shared_schemas import MAX_SOURCE_ID_BYTES, MAX_SOURCE_ID_CHARS
from app.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, the folder that it was found from, and the id of the source it becomes."""

    path: Path
    base: Path
    source_id: str

    @property
    def name(self) -> str:
        """The path from `base`, with slashes."""
        return self.path.relative_to(self.base).as_posix()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was left out, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    files: tuple[SourceFile, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The `.gitignore` files that hold at one place, the outermost first."""

    levels: tuple[tuple[Path, GitIgnoreSpec], ...] = ()

    def within(self, folder: Path) -> "IgnoreRules":
        """The rules for what lies in `folder`."""
        file = folder / ".gitignore"
        try:
            lines = file.read_bytes().decode("utf-8", errors="surrogateescape").splitlines()
        except OSError:
            # Absent, or not for this user to read: git goes on without it too.
            return self
        spec = GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line))
        return IgnoreRules((*self.levels, (folder, spec)))

    def ignores(self, path: Path, *, is_folder: bool) -> bool:
        """The last pattern that matches decides, and a deeper file before an outer one."""
        for folder, spec in reversed(self.levels):
            name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
            included = spec.check_file(name).include
            if included is not None:
                return included
        return False


def select_files(paths: Sequence[Path], *, prefix: str, private_folder: Path) -> Selection:
    """The files below `paths`; `private_folder` is never entered.

    A source's id is `prefix` and the path from the given folder, for a given file its
    name. Raises ConfigurationError for a path that does not exist and for two files of
    one id.
    """
    files: dict[str, SourceFile] = {}
    skipped: list[Skipped] = []
    private = private_folder.resolve()
    for given in paths:
        for path, base, obstacle in _below(given, private):
            source_id = prefix + path.relative_to(base).as_posix()
            reason = obstacle or _fault_of_id(source_id)
            if reason:
                skipped.append(Skipped(os.fspath(path), reason))
                continue
            other = files.setdefault(source_id, SourceFile(path, base, source_id))
            if other.path != path:
                raise ConfigurationError(
                    f"{path} and {other.path} would both be the source {source_id}: ingest "
                    "them apart, with --prefix, or from a folder above both."
                )
    return Selection(tuple(files.values()), tuple(skipped))


def _below(given: Path, private: Path) -> Iterator[tuple[Path, Path, str]]:
    """Each file with the folder to name it from, and why it is left out, if it is."""
    root = given.resolve()
    if not root.exists():
        raise ConfigurationError(f"{given} does not exist.")
    if root.is_relative_to(private):
        yield root, root.parent, "belongs to the service's own keys and database"
    elif root.is_dir():
        for path, reason in _walk(root, _rules_above(root), private):
            yield path, root, reason
    else:
        yield root, root.parent, "" if root.is_file() else "not a regular file"


def _rules_above(root: Path) -> IgnoreRules:
    """The rules of the repository around `root`; none if they ignore `root` itself."""
    above = [root, *root.parents]
    top = next((at for at, folder in enumerate(above) if (folder / ".git").exists()), 0)
    rules = IgnoreRules()
    for folder in reversed(above[1 : top + 1]):
        rules = rules.within(folder)
        child = above[above.index(folder) - 1]
        if rules.ignores(child, is_folder=True):
            return IgnoreRules()
    return rules


def _walk(folder: Path, rules: IgnoreRules, private: Path) -> Iterator[tuple[Path, str]]:
    if folder == private:
        return
    rules = rules.within(folder)
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        yield folder, f"cannot be read ({error.strerror})"
        return
    for entry in entries:
        path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
        if entry.name == ".git" or rules.ignores(path, is_folder=is_folder):
            continue
        if is_folder:
            yield from _walk(path, rules, private)
        elif entry.is_symlink():
            yield path, "a symbolic link"
        else:
            yield path, "" if entry.is_file(follow_symlinks=False) else "not a regular file"


def _is_pattern(line: str) -> bool:
    """Whether git could read a line; it passes over others."""
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def _fault_of_id(source_id: str) -> str:
    try:
        encoded = source_id.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if len(source_id) > MAX_SOURCE_ID_CHARS:
        return f"its path is longer than {MAX_SOURCE_ID_CHARS} characters"
    if len(encoded) > MAX_SOURCE_ID_BYTES:
        return f"its path is longer than {MAX_SOURCE_ID_BYTES} bytes in UTF-8"
    return ""
