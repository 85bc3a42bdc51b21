"""Canonical bytes (RFC 8785) and digests: everything that is hashed passes through here.

Guarantees: equal values have equal bytes in every process and on every machine. Floats
are refused: no hashed document of this service holds one.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NewType, TypeAlias, cast

import orjson
import rfc8785

Digest = NewType("Digest", str)
"""`sha256:` and 64 lower-case hexadecimal digits."""

JsonValue: TypeAlias = "str | int | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]


def canonical_bytes(value: JsonValue) -> bytes:
    """The RFC 8785 serialisation.

    Raises TypeError for a float, ValueError for what I-JSON cannot hold (integers beyond
    2^53 - 1, lone surrogates).
    """
    if _has_plain_names(value):
        # With ASCII names and whole numbers alone, sorted JSON is the canonical form:
        # RFC 8785 differs in how it orders other names and writes floats.
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER)
        except orjson.JSONEncodeError as error:
            raise ValueError(str(error)) from error
    return rfc8785.dumps(cast("rfc8785._impl._Value", value))


def digest_bytes(data: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def digest_text(text: str) -> Digest:
    """The digest of a text's UTF-8 bytes; the text is not normalised."""
    return digest_bytes(text.encode())


def digest_value(value: JsonValue) -> Digest:
    return digest_bytes(canonical_bytes(value))


def digest_to_bytes(digest: Digest) -> bytes:
    """The 32 bytes of a digest."""
    return bytes.fromhex(digest.removeprefix("sha256:"))


def digest_from_bytes(raw: bytes) -> Digest:
    return Digest("sha256:" + raw.hex())


_LEAVES = frozenset((str, int, bool, type(None)))


def _has_plain_names(value: object) -> bool:
    """Whether all member names are ASCII; raises TypeError when there is a float."""
    plain = True
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            plain = plain and all(map(str.isascii, current))
            members: Collection[object] = current.values()
        elif isinstance(current, list | tuple):
            members = current
        elif isinstance(current, float):
            raise TypeError("a canonical document holds no floating-point numbers")
        else:
            continue
        # Most containers hold leaves alone: their types are looked at without a loop here.
        if not _LEAVES.issuperset(map(type, members)):
            pending.extend(one for one in members if type(one) not in _LEAVES)
    return plain
