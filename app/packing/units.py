"""A text as units that are kept whole or left out: sentences, blocks, definitions. Pure.

Guarantees, for any text: units come in the order of the text and do not overlap; nothing but
white space lies between them; time grows linearly with the text; in doubt a unit is larger.

* Prose: the sentences of a paragraph (`sentences`). Headings, list items, tables, quotes,
  indented and fenced blocks are never cut.
* Code: a definition's signature with what leads to it and its docstring, and blocks between
  blank lines.
* A text whose fences or multi-line strings do not pair up is one unit: it may begin inside of one.

Not handled: a text that begins and ends inside of fences; syntax of programming languages beyond
indentation, brackets, strings and the keywords that begin definitions.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from app.indexing.outline import Format
from app.packing.sentences import sentence_gaps


class Kind(Enum):
    TEXT = auto()
    HEADING = auto()
    """Kept only for what stands below it."""
    SIGNATURE = auto()


@dataclass(frozen=True, slots=True)
class Unit:
    """Offsets in characters, `end` exclusive; `needs` is the place of the heading or definition
    that it stands under, without which it is not kept.
    """

    start: int
    end: int
    kind: Kind = Kind.TEXT
    needs: int | None = None


def split(text: str, format_: Format) -> tuple[Unit, ...]:
    """Units in the order of the text; none for a blank text."""
    lines = _lines(text)
    if not lines:
        return ()
    units = _Code(text, lines).units() if format_ is Format.CODE else _prose(text, lines)
    return units or (Unit(lines[0].start, lines[-1].end),)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that is not blank, without the white space at its end."""

    start: int
    end: int
    text: str
    after_blank: bool

    @property
    def columns(self) -> int:
        blank = self.text[: len(self.text) - len(self.text.lstrip())]
        return len(blank.expandtabs(_INDENTED))


_INDENTED = 4
_LINE = re.compile(r"[^\n]+")
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})")
_ATX_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_ADORNMENT = re.compile(r"([!-/:-@\[-_{-}])\1{2,}$")  # neither backticks nor tildes
_LIST_ITEM = re.compile(r"\s*(?:[-*+•]|\d{1,9}[.)])\s")
_TABLE_LINE = re.compile(r"\s*(?:\||\+[-=]|[=-]+(?:\s+[=-]+)+$|:?-+:?(?:\s*\|\s*:?-+:?)+\s*\|?$)")
_BLOCK_MARK = re.compile(r" {0,3}(?:>|<[A-Za-z!/?]|\.\. )")


def _lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    previous_end = -2
    for found in _LINE.finditer(text):
        line = found.group().rstrip()
        if line:
            start = found.start()
            lines.append(_Line(start, start + len(line), line, start != previous_end + 1))
            previous_end = found.end()
    return lines


def _prose(text: str, lines: Sequence[_Line]) -> tuple[Unit, ...]:
    """None where the fences do not pair up."""
    units: list[Unit] = []
    heading: int | None = None
    at = 0
    while at < len(lines):
        if _FENCE.match(lines[at].text):
            stop = _after_fence(lines, at)
            if stop is None:
                return ()
            units.append(Unit(lines[at].start, lines[stop - 1].end, needs=heading))
        elif height := _heading_height(lines, at):
            stop, heading = at + height, len(units)
            units.append(Unit(lines[at].start, lines[stop - 1].end, Kind.HEADING))
        else:
            stop = _after_block(lines, at)
            pieces = _pieces(text, lines[at:stop])
            units += [Unit(start, end, needs=heading) for start, end in pieces]
        at = stop
    return tuple(units)


def _after_fence(lines: Sequence[_Line], at: int) -> int | None:
    """The line after the closing fence; None where there is none."""
    opening = _FENCE.match(lines[at].text)
    mark = opening.group(1) if opening else ""
    for stop in range(at + 1, len(lines)):
        line = lines[stop].text.strip()
        if line.startswith(mark) and not line.strip(mark[0]):
            return stop + 1
    return None


def _heading_height(lines: Sequence[_Line], at: int) -> int:
    """How many lines a heading takes that begins here; 0 for none."""
    if _ATX_HEADING.match(lines[at].text):
        return 1
    if not lines[at].after_blank:
        return 0
    block = lines[at : at + 3]
    joined = [not line.after_blank for line in block[1:]]
    marks = [_ADORNMENT.match(line.text) is not None for line in block]
    if joined[:1] == [True] and marks[:2] == [False, True]:
        return 2
    return 3 if joined == [True, True] and marks == [True, False, True] else 0


def _after_block(lines: Sequence[_Line], at: int) -> int:
    """The line after a list item, an indented block, or a paragraph."""
    indented = _is_indented_block(lines[at])
    for stop in range(at + 1, len(lines)):
        line = lines[stop]
        goes_on = line.columns >= _INDENTED if indented else not line.after_blank
        if not goes_on or _FENCE.match(line.text):
            return stop
        if not indented and (_LIST_ITEM.match(line.text) or _ATX_HEADING.match(line.text)):
            return stop
    return len(lines)


def _is_indented_block(line: _Line) -> bool:
    return line.after_blank and line.columns >= _INDENTED


def _pieces(text: str, block: Sequence[_Line]) -> Iterator[tuple[int, int]]:
    first, start, end = block[0], block[0].start, block[-1].end
    whole = (
        _is_indented_block(first)
        or _LIST_ITEM.match(first.text)
        or _BLOCK_MARK.match(first.text)
        or any(_TABLE_LINE.match(line.text) for line in block)
    )
    for stop, after in () if whole else sentence_gaps(text[start:end]):
        yield start, first.start + stop
        start = first.start + after
    yield start, end


_DEFINITION = re.compile(
    r"\s*(?:(?:export|default|public|private|protected|internal|static|abstract|final|sealed|open"
    r"|override|virtual|inline|async|extern|unsafe|pub(?:\(\w+\))?|data|partial)\s+)*"
    r"(?:def|class|function|func|fun|fn|struct|enum|interface|trait|impl|module|namespace|record"
    r"|object|protocol|extension|sub|procedure)\b"
)
_LEAD = re.compile(r"\s*(?:@\w|#|//|/\*|\*|--)")
_CLOSING = re.compile(r"\s*[)\]}]")
_DOCSTRING = re.compile(r"\s*[rRbBuU]{0,2}(?:\"|'''|//|/\*|\*|#)")
_MARK = re.compile(
    r"\"\"\"|'''|/\*|\*/|#[^\n]*|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[()\[\]]"
)
_ENDED_BY = {'"""': '"""', "'''": "'''", "/*": "*/"}


class _Code:
    """The work on one text. Places are those of lines."""

    def __init__(self, text: str, lines: Sequence[_Line]) -> None:
        self._lines = lines
        self._continues = _continued_lines(text, lines)
        self._leads = self._leading_lines()

    def units(self) -> tuple[Unit, ...]:
        """None where strings and comments do not pair up."""
        if not self._continues:
            return ()
        units: list[Unit] = []
        around: list[tuple[int, int]] = []  # definitions by their columns and places
        at = 0
        while at < len(self._lines):
            columns = self._lines[at].columns
            while around and around[-1][0] >= columns:
                around.pop()
            needs = around[-1][1] if around else None
            if self._leads[at]:
                kind, stop = Kind.SIGNATURE, self._after_signature(at)
                around.append((columns, len(units)))
            else:
                kind, stop = Kind.TEXT, self._after_block(at, around[-1][0] if around else -1)
            units.append(Unit(self._lines[at].start, self._lines[stop - 1].end, kind, needs))
            at = stop
        return tuple(units)

    def _leading_lines(self) -> list[bool]:
        """Whether a line begins a definition, or is one of those right above it."""
        leads = [False] * len(self._continues)
        for at in reversed(range(len(leads))):
            line = self._lines[at]
            goes_on = at + 1 < len(leads) and not self._lines[at + 1].after_blank and leads[at + 1]
            leads[at] = self._defines(at) or bool(_LEAD.match(line.text) and goes_on)
        return leads

    def _defines(self, at: int) -> bool:
        return not self._continues[at] and _DEFINITION.match(self._lines[at].text) is not None

    def _after_signature(self, at: int) -> int:
        """After what leads to a definition, its parameters, and its docstring or first comment."""
        while not self._defines(at):
            at += 1
        stop = self._after_continued(at)
        while (
            stop < len(self._lines)
            and self._lines[stop].columns > self._lines[at].columns
            and not self._leads[stop]
            and _DOCSTRING.match(self._lines[stop].text)
        ):
            is_comment = _LEAD.match(self._lines[stop].text)
            stop = self._after_continued(stop)
            if not is_comment:
                break
        return stop

    def _after_continued(self, at: int) -> int:
        stop = at + 1
        while stop < len(self._lines) and self._continues[stop]:
            stop += 1
        return stop

    def _after_block(self, at: int, around_columns: int) -> int:
        for stop in range(at + 1, len(self._lines)):
            line = self._lines[stop]
            if self._continues[stop] or _CLOSING.match(line.text):
                continue
            if line.after_blank or self._leads[stop] or line.columns <= around_columns:
                return stop
        return len(self._lines)


def _continued_lines(text: str, lines: Sequence[_Line]) -> list[bool]:
    """Whether each line begins inside a string, comment or bracket; none where strings and
    comments do not pair up.
    """
    inside, at, depth, ended_by = [False] * len(lines), 0, 0, ""
    for found in _MARK.finditer(text):
        while at < len(lines) and lines[at].start <= found.start():
            inside[at] = bool(ended_by or depth)
            at += 1
        mark = found.group()
        if ended_by:
            # What looks like a comment or a string may hold the end.
            ended_by = "" if ended_by in mark else ended_by
        elif mark == "*/":
            return []
        elif mark in _ENDED_BY:
            ended_by = _ENDED_BY[mark]
        else:
            depth = max(depth + (mark in ("(", "[")) - (mark in (")", "]")), 0)
    inside[at:] = [bool(ended_by or depth)] * (len(lines) - at)
    return [] if ended_by else inside
