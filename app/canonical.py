"""Canonical bytes (RFC 8785) and digests: everything that is hashed passes through here.

Guarantees: equal values have equal bytes in every process and on every machine. Floats
are refused: no hashed document of this service holds one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NewType, TypeAlias, cast

import rfc8785

Digest = NewType("Digest", str)
"""`sha256:` and 64 lower-case hexadecimal digits."""

JsonValue: TypeAlias = "str | int | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]


def canonical_bytes(value: JsonValue) -> bytes:
    """The RFC 8785 serialisation.

    Raises TypeError for a float, rfc8785.CanonicalizationError for what JSON or I-JSON
    cannot hold (integers beyond 2^53 - 1, lone surrogates).
    """
    _refuse_floats(value)
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


def _refuse_floats(value: object) -> None:
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, float):
            raise TypeError("a canonical document holds no floating-point numbers")
        if isinstance(current, Mapping):
            pending.extend(current.values())
        elif isinstance(current, list | tuple):
            pending.extend(current)
