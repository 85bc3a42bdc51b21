"""A text to chunks: the pieces that are ranked and packed.

Guarantees, for any text without surrogates and any counter:

* every chunk is a substring of the text, not blank, and counts at most `max_tokens`;
* chunks come in the order of the text and do not overlap, and nothing but white space lies between
  them; so joined they hold every other character, in order;
* the text is cut where its outline (`outline`) is strongest: between sections before paragraphs
  before lines before sentences before words; inside a grapheme cluster only where one alone is
  too large. Neighbours of one level share a chunk as long as they fit. A heading and the first
  line below it are not cut apart unless they do not fit together;
* equal arguments give equal chunks, and time grows linearly with the text for a counter that does.

Not handled: overlap between chunks, repeating headings in later chunks, and syntax trees of
programming languages.

CHUNKER_VERSION has to be raised with every change of the chunks.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import regex

from app.errors import ConfigurationError
from app.indexing.outline import GLUED, Outline, format_of, outline

CHUNKER_VERSION = "1"

# Text longer than this per token is taken for too large without counting it, which keeps the
# counting linear. Only long repetitions have tokens of that length, and they are merely cut finer.
_CHARACTERS_PER_TOKEN_LIMIT = 16
_TYPICAL_CHARACTERS_PER_TOKEN = 4
_FULL = 0.9
_GROWTH_ATTEMPTS = 4
_PROPORTIONAL_ATTEMPTS = 3

_WHITE_SPACE = regex.compile(r"(?:\s(?![\p{M}\u200d]))*+")
# Searched backwards. A mark or joiner after white space forms one cluster with it.
_SOFT_CUTS = (
    regex.compile(r"(?r)\n(?=[^\p{M}\u200d])"),
    regex.compile(r"(?r)[.!?…][\"'”’»)\]]*\s(?=[^\s\p{M}\u200d])"),
    regex.compile(r"(?r)[。！？।][”’」』）]*(?=[^\p{M}\u200d”’」』）])"),
    regex.compile(r"(?r)\s(?=[^\s\p{M}\u200d])"),
)
_CLUSTER = regex.compile(r"\X")
_EXTENDING = regex.compile(r"[\p{M}\u200d]")


def chunk(
    text: str,
    media_type: str | None,
    *,
    max_tokens: int,
    count_tokens: Callable[[str], int],
) -> tuple[str, ...]:
    """Chunks in the order of the text; none for a blank text.

    `media_type` names the format; None and unknown ones are plain text.
    Raises ConfigurationError if `max_tokens` is not positive or a single character counts more.
    """
    if max_tokens < 1:
        raise ConfigurationError(f"A chunk needs at least 1 token, not {max_tokens}.")
    lines = outline(text, format_of(media_type))
    cutter = _Cutter(text, lines, max_tokens, count_tokens)
    if lines.starts:
        cutter.cut_lines(0, len(lines.starts))
    return tuple(cutter.chunks)


@dataclass(slots=True)
class _Cutter:
    """The work on one text. Offsets are in characters, `end` is exclusive."""

    text: str
    lines: Outline
    max_tokens: int
    count_tokens: Callable[[str], int]
    chunks: list[str] = field(default_factory=list)
    reach: int = 0
    """How many characters lately made a full chunk: where the next search begins."""

    def __post_init__(self) -> None:
        self.reach = self.max_tokens * _TYPICAL_CHARACTERS_PER_TOKEN

    def cut_lines(self, first: int, last: int) -> None:
        """Cut the lines `first` to `last` (exclusive), strongest boundaries first."""
        start, end = self._offset(first), self._offset(last)
        if self._tokens(start, end) <= self.max_tokens:
            self._emit(start, end)
            return
        depth = min(self.lines.depths[first + 1 : last], default=GLUED)
        if depth == GLUED:
            self._cut_characters(start, end)
            return
        parts = [
            first,
            *(at for at in range(first + 1, last) if self.lines.depths[at] == depth),
            last,
        ]
        offsets = [self._offset(part) for part in parts]
        at = 0
        while at < len(parts) - 1:
            snap = partial(_last_of, offsets, at + 1)
            stop = self._longest(offsets[at], end, offsets[at + 1], snap)
            if stop is None:
                self.cut_lines(parts[at], parts[at + 1])
                at += 1
            else:
                self._emit(offsets[at], stop)
                at = bisect_right(offsets, stop) - 1

    def _cut_characters(self, start: int, end: int) -> None:
        """Cut where no line boundary helps: after sentences, words or clusters."""
        while True:
            start = self._skip_white_space(start, end)
            if start >= end:
                return
            stop = self._longest(start, end, start + 1, partial(self._soft_cut, start, end))
            if stop is None:
                raise ConfigurationError(
                    f"Chunks of at most {self.max_tokens} tokens cannot hold a single character "
                    f"of some texts; allow more tokens per chunk."
                )
            self._emit(start, stop)
            start = stop

    def _longest(
        self, start: int, end: int, shortest: int, snap: Callable[[int], int]
    ) -> int | None:
        """The end of a piece from `start` that fits and is nearly as long as can be.

        `snap` gives the last allowed end up to an offset, or `shortest`. None: not even that fits.
        """
        best: int | None = None
        reach = self.reach
        attempt = 0
        while True:
            stop = snap(min(end, start + reach))
            if best is not None and stop <= best:
                return best
            tokens = self._tokens(start, stop)
            attempt += 1
            proportional = (stop - start) * self.max_tokens // max(tokens, 1)
            if tokens <= self.max_tokens:
                best = stop
                self.reach = max(1, min(proportional, self._longest_counted))
                full = tokens >= _FULL * self.max_tokens
                if stop == end or full or attempt >= _GROWTH_ATTEMPTS:
                    return best
                reach = self.reach
            elif best is not None:
                return best
            elif stop <= shortest:
                return None
            else:
                # Where tokens are spread unevenly only halving is sure to get there soon.
                shrunk = proportional if attempt <= _PROPORTIONAL_ATTEMPTS else (stop - start) // 2
                reach = max(1, min(shrunk, stop - start - 1))

    def _soft_cut(self, start: int, end: int, limit: int) -> int:
        """The best place to cut at or before `limit`, preferably in the second half."""
        if limit >= end:
            return end
        half = start + (limit - start + 1) // 2
        for pattern in _SOFT_CUTS:
            found = pattern.search(self.text, half, limit + 1)
            if found:
                return found.end()
        return self._cluster_cut(start, limit)

    def _cluster_cut(self, start: int, limit: int) -> int:
        for offset in range(limit, start, -1):
            before = self.text[offset - 1]
            pair = self.text[offset - 1 : offset + 1]
            # Two characters that part on their own part in any text, unless the first extends
            # what stands before it (UAX #29, GB9c and GB11).
            if not _EXTENDING.match(before) and len(_CLUSTER.findall(pair)) == 2:
                return offset
        # Flags pair up from the first, so their boundaries only show from the start.
        last = start
        for cluster in _CLUSTER.findall(self.text[start : limit + 1]):
            if last + len(cluster) > limit:
                break
            last += len(cluster)
        return last if last > start else limit

    def _skip_white_space(self, start: int, end: int) -> int:
        found = _WHITE_SPACE.match(self.text, start, end)
        return start if found is None else found.end()

    @property
    def _longest_counted(self) -> int:
        return self.max_tokens * _CHARACTERS_PER_TOKEN_LIMIT

    def _tokens(self, start: int, end: int) -> int:
        """Of the piece as it would be emitted; of a very long one only that it is too large."""
        piece = self.text[start:end].rstrip()
        if len(piece) > self._longest_counted:
            return len(piece)
        return self.count_tokens(piece) if piece else 0

    def _emit(self, start: int, end: int) -> None:
        piece = self.text[start:end].rstrip()
        if piece:
            self.chunks.append(piece)

    def _offset(self, line: int) -> int:
        return self.lines.starts[line] if line < len(self.lines.starts) else len(self.text)


def _last_of(offsets: list[int], first: int, limit: int) -> int:
    """The last of the ascending `offsets` up to `limit`, at least the one at index `first`."""
    return offsets[max(first, bisect_right(offsets, limit) - 1)]
