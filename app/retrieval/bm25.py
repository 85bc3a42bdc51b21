"""Exact BM25 within a scope, scored from packed postings with integer results.

Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond"
(2009), with the never-negative idf ln(1 + (N - n + 1/2) / (n + 1/2)).

Guarantees: equal inputs give equal integers on every machine. The logarithm is taken in
decimal arithmetic and made an integer before it meets a posting; what follows uses only
the IEEE 754 operations + * /, which every CPU rounds alike, and then whole numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt

K1 = 1.2
B = 0.75
_IMPACT_SCALE = 1 << 20
_DENSE_SHARE = 8
_DENSE_FLOOR = 1 << 16
_DECIMAL = Context(prec=28)

ChunkKeys = npt.NDArray[np.int64]
Scores = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PostingList:
    """The postings of one query term within the scope.

    `keys` and `weights` are big-endian 64-bit integers in the same order; a weight holds
    the term's frequency in its upper and the chunk's length in its lower 32 bits.
    `query_frequency` is how often the query has the term.
    """

    keys: bytes
    weights: bytes
    query_frequency: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """The number of chunks within the scope and of terms in them."""

    chunks: int
    terms: int


def score(lists: Sequence[PostingList], corpus: Corpus) -> tuple[ChunkKeys, Scores]:
    """The keys of all chunks with a query term, ascending, and their scores (at least 1)."""
    all_keys, all_impacts = [], []
    for postings in lists:
        if not postings.keys:
            continue
        keys = np.frombuffer(postings.keys, dtype=">i8").astype(np.int64)
        weights = np.frombuffer(postings.weights, dtype=">i8").astype(np.int64)
        all_keys.append(keys)
        all_impacts.append(_impacts(weights, len(keys), postings.query_frequency, corpus))
    if not all_keys:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    low = min(int(keys.min()) for keys in all_keys)
    span = max(int(keys.max()) for keys in all_keys) - low + 1
    if span > _DENSE_SHARE * sum(map(len, all_keys)) + _DENSE_FLOOR:
        keys, positions = np.unique(np.concatenate(all_keys), return_inverse=True)
        scores = np.zeros(len(keys), np.int64)
        np.add.at(scores, positions, np.concatenate(all_impacts))
        return keys, scores
    # A list holds a key once, so that adding by position is safe; several times faster
    # than sorting where the keys lie close together.
    dense = np.zeros(span, np.int64)
    for keys, impacts in zip(all_keys, all_impacts, strict=True):
        dense[keys - low] += impacts
    hits = np.flatnonzero(dense)
    return hits + low, dense[hits]


def _impacts(
    weights: npt.NDArray[np.int64], found: int, query_frequency: int, corpus: Corpus
) -> Scores:
    frequencies = (weights >> 32).astype(np.float64)
    lengths = (weights & 0xFFFFFFFF).astype(np.float64)
    mean_length = corpus.terms / corpus.chunks if corpus.terms else 1.0
    saturation = frequencies + (K1 * (1.0 - B) + (K1 * B / mean_length) * lengths)
    idf = float(_scaled_idf(corpus.chunks, found) * query_frequency)
    impacts = np.floor(idf * (frequencies * (K1 + 1.0)) / saturation)
    # A term that nearly every chunk has weighs next to nothing, but a hit stays a hit.
    return np.maximum(impacts, 1.0).astype(np.int64)


def _scaled_idf(chunks: int, found: int) -> int:
    """ln(1 + (N - n + 1/2) / (n + 1/2)) in units of 2^-20, rounded to the nearest."""
    ratio = _DECIMAL.divide(Decimal(2 * (chunks + 1)), Decimal(2 * found + 1))
    return int((_DECIMAL.ln(ratio) * _IMPACT_SCALE).to_integral_value())


@dataclass(frozen=True, slots=True)
class Cut:
    """The best chunks: those surely in, and those that tie for the last `places`."""

    certain: tuple[int, ...]
    tied: tuple[int, ...]
    places: int
    scores: dict[int, int]


def cut(keys: ChunkKeys, scores: Scores, limit: int) -> Cut:
    """The `limit` best by score, leaving ties at the border to the caller's tie-break."""
    if len(keys) <= limit:
        chosen = dict(zip(keys.tolist(), scores.tolist(), strict=True))
        return Cut(tuple(chosen), (), 0, chosen)
    border = int(np.partition(scores, len(scores) - limit)[len(scores) - limit])
    above, at_border = keys[scores > border], keys[scores == border]
    known = dict(zip(above.tolist(), scores[scores > border].tolist(), strict=True))
    known |= dict.fromkeys(at_border.tolist(), border)
    return Cut(tuple(above.tolist()), tuple(at_border.tolist()), limit - len(above), known)
