"""Sources put together to request bodies that stay below the service's limit.

Guarantees: order is kept, no batch is empty, and none is larger than `MAX_BODY_BYTES`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Half of what the service takes by default."""
MAX_SOURCES = 200

_OPENING, _CLOSING = b'{"sources":[', b"]}"
MAX_SOURCE_BYTES = MAX_BODY_BYTES - len(_OPENING) - len(_CLOSING)

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Batch(Generic[_Entry]):
    """What stands in one body of PUT /sources, in the order of its sources."""

    entries: tuple[_Entry, ...]
    body: bytes


def batched(sources: Iterable[tuple[_Entry, bytes]]) -> Iterator[Batch[_Entry]]:
    """Batches of (entry, encoded source); reads no further ahead than one source.

    Raises ValueError for a source above `MAX_SOURCE_BYTES`.
    """
    entries: list[_Entry] = []
    encoded: list[bytes] = []
    size_bytes = 0
    for entry, source in sources:
        if len(source) > MAX_SOURCE_BYTES:
            raise ValueError("a source is larger than a request body may be")
        # One more for the comma before it.
        if entries and (
            len(entries) == MAX_SOURCES or size_bytes + 1 + len(source) > MAX_SOURCE_BYTES
        ):
            yield _batch(entries, encoded)
            entries, encoded, size_bytes = [], [], 0
        size_bytes += len(source) + bool(entries)
        entries.append(entry)
        encoded.append(source)
    if entries:
        yield _batch(entries, encoded)


def _batch(entries: list[_Entry], encoded: list[bytes]) -> Batch[_Entry]:
    return Batch(tuple(entries), _OPENING + b",".join(encoded) + _CLOSING)
