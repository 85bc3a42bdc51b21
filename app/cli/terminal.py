"""What goes to a terminal or into a pipe.

Guarantees: no control, format or bidirectional character of data reaches a terminal, and
markup in data is shown, not interpreted. Into a pipe or a file documents go byte by byte.

Not handled: terminals that misread characters which are printable (look-alike letters).
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from app.visible import is_visible, printable

_WIDTH_WITHOUT_TERMINAL = 160
_NARROWEST = 40

__all__ = [
    "cell",
    "console",
    "printable",
    "printable_json",
    "say",
    "write_answer",
    "write_json",
    "write_text",
]


def printable_json(document: str) -> str:
    """A JSON text of the same value, with what cannot be seen as JSON's own escapes."""
    return "".join(
        char if char == "\n" or is_visible(char) else json.dumps(char)[1:-1] for char in document
    )


def cell(value: object, style: str = "") -> Text:
    """A value of a table."""
    return Text(printable(str(value)), style=style, overflow="fold")


def console(*, stderr: bool = False) -> Console:
    """A console that takes texts as they are; outside of a terminal nothing is cut."""
    target = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not target.is_terminal:
        target.width = _WIDTH_WITHOUT_TERMINAL
    target.width = max(target.width, _NARROWEST)
    return target


def say(message: str) -> None:
    """One message for people, on standard error."""
    target = console(stderr=True)
    target.print(Text(printable(message, lines=True)), soft_wrap=True)


def write_json(body: bytes) -> None:
    """A JSON document on standard output: the exact bytes, or for a terminal the same value."""
    if not sys.stdout.isatty():
        _write_exact(body)
        return
    sys.stdout.write(printable_json(body.decode("utf-8", errors="replace")).rstrip("\n") + "\n")


def write_answer(
    body: bytes, view: Callable[[Any], RenderableType], *, as_json: bool = False
) -> None:
    """A service's JSON answer: the document for programs, a view of it for people."""
    if as_json:
        write_json(body)
    else:
        console().print(view(json.loads(body)))


def write_text(text: str) -> None:
    """A text on standard output: exact, or for a terminal with lines but without controls."""
    if not sys.stdout.isatty():
        _write_exact(text.encode())
        return
    sys.stdout.write(printable(text, lines=True).rstrip("\n") + "\n")


def _write_exact(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
