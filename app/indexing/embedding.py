"""Embeddings: profiles, vectors in half precision, and the port to whoever computes them.

Guarantees: scores are exact. Every half-precision number is a whole multiple of 2^-24, so that
dot products are sums of whole numbers, the same on every CPU and in every order.

Not handled: endpoints that answer one text with different numbers from day to day. Their answers
are recorded where a replay needs them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import numpy as np
import numpy.typing as npt

from app.canonical import digest_value

HalfVector = NewType("HalfVector", bytes)
"""Big-endian IEEE 754 half-precision numbers, one for each dimension."""

MAX_DIMENSIONS = 4000
"""A row has to fit into a page of the database."""

MAX_NORM = 64.0
"""Beyond this length a vector is refused: products of two within it fit into 64 bits."""

_UNIT_BITS = 24
_SCORE_BITS = 32
_FLOAT_STEP = 2.0**-22


@dataclass(frozen=True, slots=True)
class EmbeddingProfile:
    """How texts become vectors; vectors of two profiles are never compared."""

    model: str
    dimensions: int
    normalise: bool = True
    query_prefix: str = ""
    passage_prefix: str = ""
    input_type: bool = False
    """Whether a request says in `input_type` what its texts are: `query` or `passage`."""

    @property
    def id(self) -> str:
        """16 hexadecimal digits that tell profiles apart."""
        digest = digest_value(
            {
                "model": self.model,
                "dimensions": self.dimensions,
                "normalise": self.normalise,
                "queryPrefix": self.query_prefix,
                "passagePrefix": self.passage_prefix,
                "inputType": self.input_type,
            }
        )
        return digest.removeprefix("sha256:")[:16]


class Embedder(Protocol):
    """Computes vectors under one profile.

    Both calls raise UnavailableError when no right answer comes in time, EmbeddingRefusedError
    where it would not come either if they were made again.
    """

    @property
    def profile(self) -> EmbeddingProfile: ...

    async def embed_passages(self, texts: Sequence[str]) -> tuple[HalfVector, ...]:
        """One vector for each text, in their order."""

    async def embed_query(self, text: str) -> HalfVector: ...


def half_vector(
    values: Sequence[float] | npt.NDArray[np.float64], *, normalise: bool
) -> HalfVector:
    """Round to half precision, after scaling to length 1 where asked; ties go to even.

    Raises ValueError for a vector that is not finite, is zero (also once it is rounded), or,
    where it is not scaled, is longer than MAX_NORM.
    """
    numbers = np.asarray(values, np.float64)
    greatest = float(np.max(np.abs(numbers), initial=0.0))
    if not math.isfinite(greatest):
        raise ValueError("the vector holds a number that is not finite")
    if normalise and greatest > 0.0:
        # A power of two changes no digit, and keeps squares from overflowing or vanishing.
        numbers = np.ldexp(numbers, -math.frexp(greatest)[1])
        numbers = numbers / _length(numbers)
    elif greatest > MAX_NORM or _length(numbers) > MAX_NORM:
        raise ValueError(f"the vector is longer than {MAX_NORM:.0f}")
    halves = numbers.astype(">f2")
    if not halves.any():
        raise ValueError("the vector is zero")
    return HalfVector(halves.tobytes())


def _length(numbers: npt.NDArray[np.float64]) -> float:
    """From a sum that is rounded once, so that no order of adding shows in it."""
    return math.sqrt(math.fsum((numbers * numbers).tolist()))


def as_text(vector: HalfVector) -> str:
    """As pgvector reads a `halfvec`: the shortest digits that give the same numbers."""
    return "[" + ",".join(str(number) for number in np.frombuffer(vector, ">f2")) + "]"


def exact_products(query: HalfVector, passages: bytes) -> list[int]:
    """Dot products of a query with vectors that stand one after the other, in units of 2^-32.

    Rounded down. By Cauchy and Schwarz neither a dot product nor any part of its sum is beyond
    the product of the lengths. Rounded to half precision, lengths are below 2^6.5, so that the
    sums, in units of 2^-48, stay below 2^61: no 64-bit number overflows.
    """
    one = _multiples(query)
    others = _multiples(passages).reshape(-1, len(one))
    products: list[int] = ((others @ one) >> (2 * _UNIT_BITS - _SCORE_BITS)).tolist()
    return products


def greatest_float_error(query: HalfVector, *, normalised: bool = True) -> float:
    """How far a dot product in single precision may be from the exact one.

    The error of a sum of n products is below n * 2^-24 times the sum of their sizes (Higham,
    "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1), which is at most the
    product of the lengths; four times as much is allowed for here.
    """
    numbers = np.frombuffer(query, ">f2").astype(np.float64)
    longest = 1.01 if normalised else MAX_NORM
    return float(len(numbers) * _FLOAT_STEP * np.sqrt(np.sum(numbers * numbers)) * longest)


def _multiples(vectors: bytes) -> npt.NDArray[np.int64]:
    """The numbers as multiples of 2^-24, which every half-precision number is."""
    numbers = np.frombuffer(vectors, ">f2").astype(np.float64)
    return (numbers * 2.0**_UNIT_BITS).astype(np.int64)


@dataclass(frozen=True, slots=True)
class UnembeddedChunk:
    """A live chunk without a vector; `key` grows with every chunk that the tenant gets."""

    key: int
    text: str


@dataclass(frozen=True, slots=True)
class UnembeddedPage:
    """Chunks after a key in the order of keys; `last_key` is where to go on, None at the end."""

    chunks: tuple[UnembeddedChunk, ...]
    last_key: int | None


class VectorIndex(Protocol):
    """Where vectors are kept. Adding them is a change of the tenant's index like any other."""

    async def unembedded(
        self, tenant: str, profile: EmbeddingProfile, after_key: int, limit: int
    ) -> UnembeddedPage:
        """Look at the next `limit` chunks, fewer where they are large, and return those that
        have no vector.
        """

    async def add_vectors(
        self, tenant: str, profile: EmbeddingProfile, vectors: Mapping[int, HalfVector]
    ) -> int:
        """Add vectors by chunk key, as one index version, and return how many were added.

        Chunks that have ended meanwhile, or have a vector by now, are left out.
        """

    async def count_vectors(
        self, tenant: str, profile: EmbeddingProfile, label_keys: Sequence[int], version: int
    ) -> int:
        """How many chunks of these labels had a vector at an index version."""
