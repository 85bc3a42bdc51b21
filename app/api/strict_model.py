"""The base of every request body, and the field types that bodies share.

Guaranteed: no conversion between JSON types (`"5"`, `1.0` and `true` are no integers, 5 is no
string), no unknown fields, camelCase names only, values that cannot be changed afterwards.
Arrays become tuples and texts become members of enums although validation is strict, for
JSON has neither. A body of any size yields a bounded number of errors: an array reports its
first bad entry only (stock pydantic takes 1 kB of memory for each), and an object of hundreds
of members is refused as a whole.

Not handled: reading JSON; see `app.api.strict_json`. Models are built from the names on the
wire, in Python too: with names of both kinds a client could send a field in either spelling.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError

MAX_TOKENS = 2**31 - 1
MAX_IDENTIFIER_CHARS = 512
# No model has this many fields: an object beyond it is not looked at member by member.
MAX_MEMBERS = 256

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,12})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)


def _admit_arrays_and_names(schema: CoreSchema, handler: GetCoreSchemaHandler) -> None:
    """Let tuples take lists and enums their values; stop at the first bad entry of an array.

    The entries themselves stay strict. Nested models see to themselves.
    """
    seen: set[str] = set()
    pending: list[object] = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, list | tuple):
            pending.extend(node)
        if not isinstance(node, dict):
            continue
        kind = node.get("type")
        if kind in ("tuple", "enum"):
            node["strict"] = False
        if kind in ("tuple", "list", "set", "frozenset"):
            node["fail_fast"] = True
        if kind == "definition-ref" and node["schema_ref"] not in seen:
            seen.add(node["schema_ref"])
            pending.append(_definition(cast("CoreSchema", node), handler))
        pending.extend(part for name, part in node.items() if name not in ("metadata", "config"))


def _definition(reference: CoreSchema, handler: GetCoreSchemaHandler) -> CoreSchema | None:
    try:
        return handler.resolve_ref_schema(reference)
    except LookupError:
        return None  # a model that refers to itself is not defined before it is complete


class StrictModel(BaseModel):
    """A JSON object that has these fields and no others, each of its own JSON type.

    Fields are declared with `tuple[X, ...]` for arrays and with the enum itself for names
    from a list. A field of type `dict` would report each of its bad entries, however many.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Relax tuples and enums alone: strict validation wants Python's own types for them."""
        schema = handler(source)
        _admit_arrays_and_names(schema, handler)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _refuse_crowds(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > MAX_MEMBERS:
            raise PydanticCustomError(
                "too_many_members",
                "Has more than {limit} members, far beyond what is known here: remove them.",
                {"limit": MAX_MEMBERS},
            )
        return value


def _canonical_uuid(value: str) -> str:
    if _UUID.fullmatch(value) is None:
        raise PydanticCustomError(
            "uuid_format",
            "Must be a UUID in its 36-character form, such as "
            "6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11.",
        )
    return value.lower()


def _read_instant(value: object) -> datetime:
    if isinstance(value, datetime):
        instant = value
    elif isinstance(value, str) and _RFC_3339.fullmatch(value):
        try:
            instant = datetime.fromisoformat(value.upper())
        except ValueError as error:
            raise _no_instant() from error
    else:
        raise _no_instant()
    if instant.utcoffset() is None:
        raise PydanticCustomError(
            "time_without_zone", "A time needs its zone: end it in Z or in an offset like +02:00."
        )
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise _no_instant() from error


def _no_instant() -> PydanticCustomError:
    return PydanticCustomError(
        "time_format",
        "Must be a time as in RFC 3339 from year 1 to 9999, such as 2025-01-31T09:30:00Z.",
    )


# A UUID in any case, read into the lower-case form.
Uuid = Annotated[
    str,
    AfterValidator(_canonical_uuid),
    WithJsonSchema({"type": "string", "format": "uuid"}),
]
# A time with its zone, read into UTC and cut to microseconds; leap seconds are refused.
Instant = Annotated[
    datetime,
    BeforeValidator(_read_instant),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
PositiveTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=MAX_IDENTIFIER_CHARS)]
