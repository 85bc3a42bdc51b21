"""JSON that means the same to every reader: RFC 8259 syntax under the limits of I-JSON.

Refused as malformed (400), for it is not JSON:
  an encoding other than UTF-8 or a byte order mark (RFC 8259, section 8.1), wrong syntax,
  the words NaN, Infinity and -Infinity.
Refused as invalid (422), for it is JSON that readers take differently or that cannot be
stored (RFC 7493, section 2):
  a member name twice in one object, integers beyond 2^53-1 in size, numbers too large for a
  double, lone surrogates and U+0000 in strings and names, nesting beyond `max_depth`.
A text with faults of both kinds is malformed.

Guaranteed: time linear in the text's size; at most about 31 bytes of memory for each byte
(empty arrays and objects are the worst); no other exception. Floats stay floats, 1.0 too:
whether one is taken for an integer is up to the models. A fault's JSON pointer is given, but
for wrong syntax, where the line is known, and for nesting so deep that the parser gives up.

Not handled: noncharacters such as U+FFFF are passed on, although RFC 7493 forbids them;
numbers of more digits than a double holds are rounded, as everywhere.
"""

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NoReturn

from pydantic import JsonValue

from app.errors import InvalidRequestError, MalformedRequestError, RequestError

MAX_DEPTH = 64
MAX_SAFE_INT = 2**53 - 1
_MAX_SAFE_LITERAL_CHARS = len(str(-MAX_SAFE_INT))

_TWICE = "A member name stands twice in one object: keep one of the two."
_INEXACT = (
    f"An integer is beyond {MAX_SAFE_INT} (2^53-1) in size, which many readers cannot represent "
    "exactly: send it as a string."
)
_INFINITE = "A number is beyond 1.8e308, the largest double: send a smaller one."
_CONTAINERS = (dict, list)
# Only escapes can bring these in: the decoder of UTF-8 and the parser refuse them in the raw.
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_OTHER_ENCODINGS = (
    codecs.BOM_UTF32_LE,
    codecs.BOM_UTF32_BE,
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
)


def parse_json(body: bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """The one value that `body` holds; a scalar is a value too.

    A value has depth 1, what it holds depth 2; arrays and objects count up to `max_depth`.
    Raises MalformedRequestError or InvalidRequestError, as the module says.
    """
    return _Parser(max_depth).parse(body)


def parse_ndjson(body: bytes) -> list[JsonValue]:
    """The values of `body`, one a line, in order: value n stands on line n + 1.

    Empty lines are allowed at the end only. Errors name the line in their text and as the
    extra member `line`; their pointers begin with the value's index, as in `/2/text`.
    """
    parser = _Parser(MAX_DEPTH)
    values: list[JsonValue] = []
    for number, line in enumerate(_lines(body), start=1):
        try:
            values.append(parser.parse(line))
        except RequestError as error:
            raise type(error)(
                f"Line {number}: {error.detail}",
                pointers=tuple(f"/{number - 1}{pointer}" for pointer in error.pointers or ("",)),
                code=error.code,
                extra={**error.extra, "line": number},
            ) from error
    if not values:
        raise MalformedRequestError("The body is empty: send one JSON value a line.")
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Fault:
    """Stands in the tree in place of what must be refused, so that it can be located."""

    detail: str
    error: type[RequestError]
    member: str | None = None


class _Parser:
    """One parser for texts that share a fate: after the first error it is not used again."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        # Only the first fault of a kind is kept: a text may hold millions.
        self._faults: dict[type[RequestError], _Fault] = {}
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=self._integer,
            parse_float=self._float,
            parse_constant=self._constant,
        )

    def parse(self, body: bytes) -> JsonValue:
        text = _decode(body)
        try:
            value: JsonValue = self._decoder.decode(text)
        except json.JSONDecodeError as error:
            raise MalformedRequestError(
                f"This is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."
            ) from error
        except RecursionError as error:
            raise InvalidRequestError(self._too_deep, pointers=("",)) from error
        if self._faults:
            self._refuse(value)
        if len(text) > self._max_depth and text.count("[") + text.count("{") > self._max_depth:
            self._check_depth(value)
        if "\\u" in text and _SUSPECT_ESCAPE.search(text):
            _check_strings(value)
        return value

    @property
    def _too_deep(self) -> str:
        return (
            f"Arrays and objects are nested deeper than {self._max_depth} levels: "
            "send a flatter value."
        )

    def _refuse(self, value: JsonValue) -> NoReturn:
        fault = self._faults.get(MalformedRequestError) or self._faults[InvalidRequestError]
        pointer = _locate(value, lambda found, _: found is fault)
        if pointer is not None and fault.member is not None:
            pointer += _pointer_step(fault.member)
        raise fault.error(fault.detail, pointers=() if pointer is None else (pointer,))

    def _check_depth(self, value: JsonValue) -> None:
        level = [value] if isinstance(value, dict | list) else []
        for _ in range(self._max_depth):
            held = chain.from_iterable(
                found.values() if isinstance(found, dict) else found for found in level
            )
            level = [found for found in held if isinstance(found, _CONTAINERS)]
            if not level:
                return
        pointer = _locate(
            value,
            lambda found, depth: depth > self._max_depth and isinstance(found, _CONTAINERS),
        )
        raise InvalidRequestError(self._too_deep, pointers=(pointer or "",))

    def _mark(
        self, error: type[RequestError], detail: str, member: str | None = None
    ) -> _Fault | None:
        if error in self._faults:
            return None
        self._faults[error] = _Fault(detail, error, member)
        return self._faults[error]

    def _object(self, pairs: list[tuple[str, object]]) -> object:
        members = dict(pairs)
        if len(members) == len(pairs) or InvalidRequestError in self._faults:
            return members
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        return self._mark(InvalidRequestError, _TWICE, member=name)

    def _integer(self, literal: str) -> object:
        # Most are short; and int() of a literal of any length is not linear.
        if len(literal) < _MAX_SAFE_LITERAL_CHARS - 1:
            return int(literal)
        if len(literal) <= _MAX_SAFE_LITERAL_CHARS and abs(int(literal)) <= MAX_SAFE_INT:
            return int(literal)
        return self._mark(InvalidRequestError, _INEXACT)

    def _float(self, literal: str) -> object:
        number = float(literal)
        return number if math.isfinite(number) else self._mark(InvalidRequestError, _INFINITE)

    def _constant(self, literal: str) -> object:
        return self._mark(
            MalformedRequestError,
            f"This is not JSON: it has no {literal}; send null or leave the member out.",
        )


def _decode(body: bytes) -> str:
    if body.startswith(codecs.BOM_UTF8):
        raise MalformedRequestError("The text begins with a byte order mark: leave it out.")
    # JSON begins with an ASCII character, so a zero beside it betrays wider units.
    if body.startswith(_OTHER_ENCODINGS) or b"\0" in body[:2]:
        raise MalformedRequestError("The text is not UTF-8 but looks like UTF-16 or UTF-32.")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedRequestError(
            f"The text is not UTF-8: byte {error.start} cannot be decoded."
        ) from error


def _lines(body: bytes) -> Iterator[bytes]:
    """The lines without the empty ones at the end, one at a time to spare the memory."""
    end_of_text = len(body.rstrip(b" \t\r\n"))
    start = number = 0
    while start < end_of_text:
        end = body.find(b"\n", start)
        line = body[start:] if end < 0 else body[start:end]
        start += len(line) + 1
        number += 1
        if not line.strip(b" \t\r"):
            raise MalformedRequestError(
                f"Line {number} is empty: send one JSON value on each line.",
                extra={"line": number},
            )
        yield line


def _check_strings(value: JsonValue) -> None:
    def unfit(found: object, _: int) -> bool:
        return isinstance(found, str) and (
            "\0" in found or (not found.isascii() and _LONE_SURROGATE.search(found) is not None)
        )

    pointer = _locate(value, unfit)
    if pointer is not None:
        raise InvalidRequestError(
            "A string or a member name holds U+0000 or half of a surrogate pair: "
            "send complete characters without it.",
            pointers=(pointer,),
        )


def _locate(root: JsonValue, wanted: Callable[[object, int], bool]) -> str | None:
    """The pointer to the first value, in the text's order, that is `wanted` at its depth.

    A member whose name is wanted counts as well. Iterative, so any depth will do.
    """
    path: list[str | int] = [0]
    levels: list[Iterator[tuple[str | int, JsonValue]]] = [iter(enumerate([root]))]
    while levels:
        depth = len(levels)
        for step, value in levels[-1]:
            path[-1] = step
            if wanted(value, depth) or (isinstance(step, str) and wanted(step, depth)):
                return "".join(_pointer_step(part) for part in path[1:])
            if isinstance(value, _CONTAINERS) and value:
                held = value.items() if isinstance(value, dict) else enumerate(value)
                levels.append(iter(held))
                path.append(0)
                break
        else:
            levels.pop()
            path.pop()
    return None


def _pointer_step(step: str | int) -> str:
    return "/" + str(step).replace("~", "~0").replace("/", "~1")
