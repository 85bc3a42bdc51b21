"""A 64-bit signature of a text, in which near-duplicates differ in few bits. Pure.

Source: Charikar, "Similarity Estimation Techniques from Rounding Algorithms" (2002), as used by
Manku, Jain and Das Sarma, "Detecting Near-Duplicates for Web Crawling" (2007). A feature is a
run of SHINGLE_TOKENS tokens; each distinct one counts once. For two texts whose sets of features
have the cosine c, about 64 * arccos(c) / pi bits differ: one word changed among n changes three
features, and so about 64 * sqrt(6 / n) / pi bits, 3.5 where n is 200.

Guarantees: the same text has the same signature in every process and on every CPU (whole
numbers only); white space does not count, nor the difference between canonically equivalent
characters. Time grows linearly with the text, space too.

Not handled: a text with fewer than FEWEST_FEATURES features has no signature, because so few
decide a bit by chance. A signature tells how much of a text differs, not what: which differences
are too important is for those who compare (`retrieval.fusion`).

SIGNATURE_VERSION has to be raised with every change of the bits. They depend on the version of
Unicode as well, which ANALYZER_VERSION names.
"""

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import regex

from app.indexing.analysis import UNSPACED, WORD_LIMIT, normalized, term_key

SIGNATURE_VERSION = 1
SHINGLE_TOKENS = 3
FEWEST_FEATURES = 16

_BITS = 64
_REMEMBERED_TOKENS = 1 << 16
_BLOCK = 1 << 14
"""Features that are taken apart at once: each needs 64 bytes meanwhile."""
# Symbols are tokens too: in code and in formulas they make the difference.
_TOKEN = re.compile(rf"\w{{1,{WORD_LIMIT}}}|[^\w\s]{{1,{WORD_LIMIT}}}")
# Three times slower; a script without spaces is read letter by letter.
_UNSPACED_LETTER = regex.compile(UNSPACED, regex.V1)
_UNSPACED_TOKEN = regex.compile(
    rf"{UNSPACED}|[\w--{UNSPACED}]{{1,{WORD_LIMIT}}}+|[^\w\s]{{1,{WORD_LIMIT}}}+", regex.V1
)

# The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), and odd multipliers for the places.
_PLACES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))

_Features = npt.NDArray[np.uint64]


def sign(text: str) -> int | None:
    """The signature as a signed 64-bit integer; None for a text too short to compare."""
    features = _distinct(_features(_tokens(text)))
    if len(features) < FEWEST_FEATURES:
        return None
    times_set = np.zeros(_BITS, np.int64)
    for start in range(0, len(features), _BLOCK):
        some = features[start : start + _BLOCK].astype(">u8").view(np.uint8)
        times_set += np.unpackbits(some).reshape(-1, _BITS).sum(axis=0, dtype=np.int32)
    # A bit is set where it is set in more than half of the features.
    is_set = 2 * times_set > len(features)
    return int.from_bytes(np.packbits(is_set).tobytes(), "big", signed=True)


def _tokens(text: str) -> list[str]:
    if not text.isascii():
        text = normalized(text)
        if _UNSPACED_LETTER.search(text):
            return _UNSPACED_TOKEN.findall(text)
    return _TOKEN.findall(text)


def _features(tokens: list[str]) -> _Features:
    """A hash of each run of tokens, in the order of the text."""
    keys = np.array([_token_key(token) for token in tokens], np.uint64)
    runs = max(len(keys) - SHINGLE_TOKENS + 1, 0)
    mixed = np.zeros(runs, np.uint64)
    for place, multiplier in enumerate(_PLACES):
        mixed += keys[place : place + runs] * np.uint64(multiplier)
    for shift, multiplier in _ROUNDS:
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(multiplier)
    return mixed


def _distinct(features: _Features) -> _Features:
    """Ascending; ten times faster here than `numpy.unique`."""
    features.sort()
    is_first = np.ones(len(features), np.bool_)
    np.not_equal(features[1:], features[:-1], out=is_first[1:])
    return features[is_first]


@lru_cache(maxsize=_REMEMBERED_TOKENS)
def _token_key(token: str) -> int:
    return term_key(token) % (1 << _BITS)
