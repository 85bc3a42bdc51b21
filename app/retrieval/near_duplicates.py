"""Texts that nearly repeat one that is kept already. Pure.

Guarantees: two texts are near when their signatures (`indexing.signature`) differ in few
enough bits and both hold the same numbers, comparisons and English negations in the same
order: one such token turns a rule or a condition into another, and is too small a part of a
long text to show in a signature. A less trusted text never displaces a more trusted one.

Not handled: other words. Of two texts of 200 words that differ in one word, each second pair is
near at 3 bits, whatever the word says; a text too short for a signature has no near ones.
"""

import re

import numpy as np
import numpy.typing as npt

from app.indexing.signature import sign
from app.retrieval.candidate import Chunk

# A longer run of symbols is a line below a heading.
_TELLING = re.compile(
    r"(?:(?<!\w)-)?\d+|(?<![<>=!+%&^~])[<>=!+%&^~]{1,3}(?![<>=!+%&^~])"
    r"|\b(?:no|not|never|none|nor|neither|cannot|without|unless|except)\b|n['’]t\b",
    re.IGNORECASE,
)


class NearDuplicates:
    """Texts that are kept, and the question whether another one nearly repeats one of them.

    At most `capacity` texts; time is linear in their number, for each question.
    """

    def __init__(self, capacity: int, max_different_bits: int) -> None:
        self._signatures: npt.NDArray[np.uint64] = np.zeros(capacity, np.uint64)
        self._kept: list[Chunk] = []
        self._max_different_bits = max_different_bits

    def keep(self, chunk: Chunk) -> None:
        """A text too short for a signature is not remembered."""
        signature = _signature(chunk)
        if signature is not None:
            self._signatures[len(self._kept)] = signature
            self._kept.append(chunk)

    def find(self, chunk: Chunk) -> tuple[Chunk, int] | None:
        """The first kept text that this one nearly repeats, and how many bits differ."""
        signature = _signature(chunk)
        if signature is None:
            return None
        differing = np.bitwise_count(self._signatures[: len(self._kept)] ^ np.uint64(signature))
        for at in np.flatnonzero(differing <= self._max_different_bits).tolist():
            kept = self._kept[at]
            trusted = kept.label.trust_tier.rank <= chunk.label.trust_tier.rank
            if trusted and _telling(kept.text) == _telling(chunk.text):
                return kept, int(differing[at])
        return None


def _signature(chunk: Chunk) -> int | None:
    """As 64 unsigned bits; inline texts, and what others index, come without one."""
    signature = sign(chunk.text) if chunk.signature is None else chunk.signature
    return None if signature is None else signature % (1 << 64)


def _telling(text: str) -> list[str]:
    return [token.lower() for token in _TELLING.findall(text)]
