"""Real text that lies on this machine, cut into chunks as the service cuts it.

Guarantees: files come in the order of the folders and of their paths; HTML is reduced to its
text; no chunk's text comes twice, however many packages carry the same licence; nothing is made
up to reach a size.
"""

import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from app.indexing.chunking import chunk
from app.scope.vocabulary import KnowledgeClass

DEFAULT_FOLDERS = (
    Path("/usr/share/doc"),
    Path(sysconfig.get_path("purelib")),
    Path("/usr/lib/python3"),
    Path(sysconfig.get_path("stdlib")),
)

_MEDIA_TYPES = {
    ".html": "text/html",
    ".htm": "text/html",
    ".md": "text/markdown",
    ".rst": "text/x-rst",
    ".txt": "text/plain",
    ".py": "text/x-python",
}
# `_sources` says once more what the HTML beside it says, translations say it in other languages.
_SKIPPED_FOLDERS = frozenset({"_sources", "translations"})
_MOST_BYTES = 4 << 20
_FEWEST_CHARS = 80


@dataclass(frozen=True, slots=True)
class Document:
    """One file: where it comes from (the folder below a given one), and its chunks."""

    path: str
    origin: str
    knowledge_class: KnowledgeClass
    media_type: str
    chunks: tuple[str, ...]


def read_documents(
    folders: Sequence[Path],
    most_chunks: int,
    *,
    max_tokens: int,
    count_tokens: Callable[[str], int],
) -> Iterator[Document]:
    """Documents until there are `most_chunks` chunks, or no more text."""
    seen: set[str] = set()
    visited: set[Path] = set()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if len(seen) >= most_chunks:
                return
            real = path.resolve()
            media_type = _MEDIA_TYPES.get(path.suffix)
            if media_type is None or real in visited or _SKIPPED_FOLDERS & set(path.parts):
                continue
            visited.add(real)
            text = _text(real, media_type)
            kind = "text/plain" if media_type == "text/html" else media_type
            pieces = chunk(text, kind, max_tokens=max_tokens, count_tokens=count_tokens)
            fresh = dict.fromkeys(one for one in pieces if len(one) >= _FEWEST_CHARS)
            new = [one for one in fresh if one not in seen][: most_chunks - len(seen)]
            if new:
                seen.update(new)
                top = path.relative_to(folder).parts[0]
                is_code = media_type == "text/x-python"
                yield Document(
                    path=str(path),
                    origin=str(folder / top) if (folder / top).is_dir() else str(folder),
                    knowledge_class=KnowledgeClass.CODE if is_code else KnowledgeClass.DOCUMENTS,
                    media_type=kind,
                    chunks=tuple(new),
                )


def _text(path: Path, media_type: str) -> str:
    """The file's text; empty for what is too large, no UTF-8, or no file at all."""
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return ""
    try:
        text = path.read_bytes().decode("utf-8").replace("\0", "")
    except (UnicodeDecodeError, PermissionError) as error:
        print(f"skipped {path}: {type(error).__name__}", file=sys.stderr)
        return ""
    if media_type != "text/html":
        return text
    extractor = _TextOfHtml()
    extractor.feed(text)
    extractor.close()
    return extractor.text()


class _TextOfHtml(HTMLParser):
    """Text between tags; block elements end a line, navigation and scripts are left out."""

    _HIDDEN = frozenset({"script", "style", "nav", "head"})
    _INLINE = frozenset(
        {"a", "abbr", "acronym", "b", "cite", "code", "em", "i", "kbd", "q", "samp", "small"}
        | {"span", "strong", "sub", "sup", "tt", "u", "var"}
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self._hidden += tag in self._HIDDEN
        self._break_at(tag)

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(self._hidden - (tag in self._HIDDEN), 0)
        self._break_at(tag)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._pieces.append(data)

    def text(self) -> str:
        lines = (" ".join(line.split()) for line in "".join(self._pieces).splitlines())
        return "\n".join(line for line in lines if line)

    def _break_at(self, tag: str) -> None:
        if tag not in self._INLINE:
            self._pieces.append("\n")
