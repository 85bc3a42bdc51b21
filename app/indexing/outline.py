"""Where a text may be cut, and how willingly: headings, paragraphs, definitions, lines.

Guarantees: one entry per non-blank line, in order, each at the start of its line; time grows
linearly with the text; nothing is rejected: what does not look like markup is plain text.

Not handled: this is no parser. Markdown inside HTML, headings inside block quotes, and
reStructuredText titles shorter than three characters are lines like any other; code is told apart
by blank lines, indentation and the keywords that begin definitions in common languages.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import zip_longest

# Depths: the lower, the sooner a text is cut there. Headings have 1 to 9, their own level.
_DEEPEST_HEADING = 9
_BLOCK = 10  # a paragraph or definition; 11 to 13 when indented
_ITEM = 14
_FENCED_BLOCK = 15
_LINE = 16
GLUED = 17
"""This line belongs to the one before it, as the text under a heading does."""

_INDENT_WIDTH = 4
_LINES = re.compile(r"[^\n]+")
_INDENT = re.compile(r"[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_ATX_HEADING = re.compile(r" {0,3}(#{1,6})(?:\s|$)")
_SETEXT_UNDERLINE = re.compile(r" {0,3}(?:(=+)|-+)\s*$")
_LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s")
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*$")
_DEFINITION = re.compile(
    r"\s*(?:(?:export|default|public|private|protected|internal|static|abstract|final|sealed|open"
    r"|override|virtual|inline|async|extern|unsafe|pub(?:\(\w+\))?|data|partial)\s+)*"
    r"(?:def|class|function|func|fun|fn|struct|enum|interface|trait|impl|module|namespace|record"
    r"|object|protocol|extension|sub|procedure)\b"
)
_DECORATOR = re.compile(r"\s*@\w")
_LEADS_DEFINITION = re.compile(r"\s*(?:@|#|//|/\*|\*|--|;|\[)")
_CLOSING = re.compile(r"\s*[)\]}]")


class Format(Enum):
    PLAIN = auto()
    MARKDOWN = auto()
    RESTRUCTUREDTEXT = auto()
    CODE = auto()


_FORMATS = {
    "text/markdown": Format.MARKDOWN,
    "text/x-markdown": Format.MARKDOWN,
    "text/x-rst": Format.RESTRUCTUREDTEXT,
    "text/prs.fallenstein.rst": Format.RESTRUCTUREDTEXT,
    "text/css": Format.CODE,
    "text/javascript": Format.CODE,
    "application/javascript": Format.CODE,
    "application/json": Format.CODE,
    "application/sql": Format.CODE,
    "application/toml": Format.CODE,
    "application/typescript": Format.CODE,
    "application/xml": Format.CODE,
    "application/yaml": Format.CODE,
}


@dataclass(frozen=True, slots=True)
class Outline:
    """`starts[i]` is the offset of the i-th non-blank line, `depths[i]` that of a cut before it."""

    starts: tuple[int, ...]
    depths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    text: str
    after_blank: bool

    @property
    def block_depth(self) -> int:
        """Of a block that begins here: outer blocks are cut apart before inner ones."""
        indent = _INDENT.match(self.text)
        columns = 0 if indent is None else len(indent.group().expandtabs(_INDENT_WIDTH))
        return _BLOCK + min(-(-columns // _INDENT_WIDTH), 3)


def format_of(media_type: str | None) -> Format:
    """By media type alone, parameters ignored; `text/x-…` is code, anything unknown is plain."""
    name = (media_type or "").partition(";")[0].strip().lower()
    known = _FORMATS.get(name)
    if known is not None:
        return known
    return Format.CODE if name.startswith(("text/x-", "application/x-")) else Format.PLAIN


def outline(text: str, format_: Format) -> Outline:
    lines = list(_non_blank_lines(text))
    match format_:
        case Format.MARKDOWN:
            depths = _markdown_depths(lines)
        case Format.RESTRUCTUREDTEXT:
            depths = _restructuredtext_depths(lines)
        case Format.CODE:
            depths = _code_depths(lines)
        case Format.PLAIN:
            depths = (_block_or_line(line) for line in lines)
    return Outline(tuple(line.start for line in lines), tuple(depths))


def _non_blank_lines(text: str) -> Iterator[_Line]:
    previous_end = -2  # the first line counts as one after a blank
    for found in _LINES.finditer(text):
        line = found.group()
        if not line.isspace():
            yield _Line(found.start(), line, after_blank=found.start() != previous_end + 1)
            previous_end = found.end()


def _block_or_line(line: _Line) -> int:
    return line.block_depth if line.after_blank else _LINE


def _markdown_depths(lines: list[_Line]) -> Iterator[int]:
    fence = ""
    heading = 0  # the level of the heading that the next line follows
    for line, following in zip_longest(lines, lines[1:]):
        if fence:
            yield _FENCED_BLOCK if line.after_blank else _LINE
            mark = line.text.strip()
            fence = "" if mark.startswith(fence) and not mark.strip(fence[0]) else fence
            continue
        level = _markdown_heading_level(line, following)
        if level:
            # A heading directly below its parent stays with it; next to a sibling it does not.
            yield GLUED if 0 < heading < level else level
        elif heading:
            yield GLUED
        elif _LIST_ITEM.match(line.text):
            yield line.block_depth if line.after_blank else _ITEM
        else:
            yield _block_or_line(line)
        # The underline of a Setext heading comes next; what follows that is glued as well.
        heading = level or (heading if heading and _SETEXT_UNDERLINE.match(line.text) else 0)
        opening = _FENCE.match(line.text)
        fence = opening.group(1) if opening else ""


def _markdown_heading_level(line: _Line, following: _Line | None) -> int:
    atx = _ATX_HEADING.match(line.text)
    if atx:
        return len(atx.group(1))
    begins_paragraph = line.after_blank and not _SETEXT_UNDERLINE.match(line.text)
    if not begins_paragraph or following is None or following.after_blank:
        return 0
    underline = _SETEXT_UNDERLINE.match(following.text)
    if underline is None:
        return 0
    return 1 if underline.group(1) else 2


def _restructuredtext_depths(lines: list[_Line]) -> Iterator[int]:
    levels: dict[str, int] = {}  # by adornment, in the order of appearance (docutils)
    title_lines = 0  # of the current title still to come
    heading = 0
    introduces = False
    for position, line in enumerate(lines):
        adornments = "" if title_lines else _title_adornments(lines, position)
        if title_lines:
            title_lines -= 1
            yield GLUED
        elif adornments:
            level = min(levels.setdefault(adornments, len(levels) + 1), _DEEPEST_HEADING)
            yield GLUED if 0 < heading < level else level
            heading = level
            title_lines = len(adornments)
        else:
            yield GLUED if heading or introduces else _block_or_line(line)
            heading = 0
        # "For example::" introduces the block that follows.
        introduces = line.text.rstrip().endswith("::")


def _title_adornments(lines: list[_Line], position: int) -> str:
    """The title's underline character, twice if it has an overline too; "" for no title."""
    block = lines[position : position + 3]
    if any(line.after_blank for line in block[1:2]) or len(block) < 2:
        return ""
    marks = [_ADORNMENT.match(line.text) for line in block]
    widths = [len(line.text.strip()) for line in block]
    if not marks[0] and marks[1] and block[0].after_blank and not block[0].text[0].isspace():
        return marks[1].group(1) if widths[1] >= min(widths[0], 4) else ""
    if len(block) == 3 and marks[0] and not marks[1] and marks[2] and not block[2].after_blank:
        mark = marks[0].group(1)
        return 2 * mark if mark == marks[2].group(1) else ""
    return ""


def _code_depths(lines: list[_Line]) -> Iterator[int]:
    leads = False
    defined_at = _LINE  # the depth of the definition that the line before begins, if it does
    for line in lines:
        definition = _DEFINITION.match(line.text) is not None
        opens = definition or _DECORATOR.match(line.text) is not None
        begins = line.after_blank or (opens and not leads)
        if defined_at < _LINE and not (definition and line.block_depth <= defined_at):
            yield GLUED
        elif begins and not _CLOSING.match(line.text):
            yield line.block_depth
        else:
            yield _LINE
        leads = _LEADS_DEFINITION.match(line.text) is not None
        defined_at = line.block_depth if definition else _LINE
