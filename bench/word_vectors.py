"""Vectors made from the words of a text, for measuring speed where no model is fast enough.

A text's vector is the sum of a random direction for each of its terms: texts that share words are
near each other. They say nothing about the quality of vectors that a model makes.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.indexing.analysis import analyze
from app.indexing.embedding import EmbeddingProfile, HalfVector, half_vector

DIMENSIONS = 384
_DIRECTIONS = 1 << 16


class WordVectors:
    """Implements `indexing.embedding.Embedder`."""

    profile = EmbeddingProfile("words", DIMENSIONS)

    def __init__(self) -> None:
        drawn = np.random.default_rng(384)
        self._directions = drawn.standard_normal((_DIRECTIONS, DIMENSIONS), np.float32)

    def numbers(self, text: str) -> npt.NDArray[np.float32]:
        """Not normalised; terms beyond the number of directions share them."""
        places = [zlib.crc32(term.encode()) % _DIRECTIONS for term in analyze(text, "en")]
        total: npt.NDArray[np.float32] = self._directions[places or [0]].sum(axis=0)
        return total

    async def embed_passages(self, texts: Sequence[str]) -> tuple[HalfVector, ...]:
        return tuple(self._vector(text) for text in texts)

    async def embed_query(self, text: str) -> HalfVector:
        return self._vector(text)

    def _vector(self, text: str) -> HalfVector:
        return half_vector(self.numbers(text).astype(np.float64), normalise=True)
