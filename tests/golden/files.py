"""The golden files. `python -m tests.golden.files NAME` adds those of a new material."""

import sys
from pathlib import Path

from app.snapshot.assembly import Assembly
from tests.golden.materials import assembled

FOLDER = Path(__file__).parent / "snapshots"
SUFFIXES = (".snapshot.json", ".request.json", ".report.json", ".hash")


def contents_of(assembly: Assembly) -> dict[str, bytes]:
    """What each file holds, without the line feed at its end."""
    parts = (
        assembly.snapshot.canonical,
        assembly.request,
        assembly.report,
        assembly.snapshot.hash.encode(),
    )
    return dict(zip(SUFFIXES, parts, strict=True))


def read(name: str, suffix: str) -> bytes:
    return (FOLDER / f"{name}{suffix}").read_bytes().removesuffix(b"\n")


def add(name: str) -> None:
    """Raises FileExistsError rather than change what is there."""
    for suffix, content in contents_of(assembled(name)).items():
        with (FOLDER / f"{name}{suffix}").open("xb") as file:
            file.write(content + b"\n")


if __name__ == "__main__":
    add(sys.argv[1])
