"""Field types that requests share, and how a project that was left out is found."""

from typing import Annotated

from pydantic import AfterValidator, StringConstraints
from pydantic_core import PydanticCustomError

from app.errors import InvalidRequestError
from app.scope.vocabulary import ALL_PROJECTS

MAX_SOURCE_ID_CHARS = 1024
MAX_SOURCE_ID_BYTES = 2048
"""In UTF-8: with a project and a digest it has to fit into an index row of 2,704 bytes."""
SNAPSHOT_REF = r"sha256:[0-9a-f]{64}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
"""A snapshot's hash or id, as a regular expression."""


def _one_project(value: str) -> str:
    if value == ALL_PROJECTS:
        raise PydanticCustomError("project_name", 'A project cannot be called "*".')
    return value


def _indexable(value: str) -> str:
    if len(value.encode()) > MAX_SOURCE_ID_BYTES:
        raise PydanticCustomError(
            "string_too_many_bytes",
            "Must have at most {max_bytes} bytes in UTF-8: shorten it.",
            {"max_bytes": MAX_SOURCE_ID_BYTES},
        )
    return value


Project = Annotated[
    str, StringConstraints(min_length=1, max_length=128), AfterValidator(_one_project)
]
SourceId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_SOURCE_ID_CHARS),
    AfterValidator(_indexable),
]
Revision = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ChunkId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Language = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$", max_length=35)
]
ProvenanceText = Annotated[str, StringConstraints(min_length=1, max_length=2048)]


def project_or_only(project: str | None, only: str | None, pointer: str) -> str:
    """The named project, or the only one there is.

    Raises InvalidRequestError at `pointer` when there is not exactly one.
    """
    found = project or only
    if found is None:
        raise InvalidRequestError(
            f"{pointer}: name the project; it may be left out only where the scope has "
            f"exactly one.",
            pointers=(pointer,),
        )
    return found
