"""Texts of data as they may go to a terminal.

Guarantees: no control, format or bidirectional character is left; what cannot be seen is
written as an escape, and nothing is lost.

Not handled: terminals that misread characters which are printable (look-alike letters).
"""

import unicodedata


def printable(text: str, *, lines: bool = False) -> str:
    """`text` with what cannot be seen written as an escape; `lines` keeps line feeds and tabs."""
    kept = "\n\t" if lines else ""
    return "".join(
        char if char in kept or is_visible(char) else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def is_visible(char: str) -> bool:
    # Python calls spaces other than the usual one not printable; they do no harm.
    return char.isprintable() or unicodedata.category(char) == "Zs"
