"""Vectors that are made from words, for tests that need to know which ones are near."""

import hashlib
from collections.abc import Sequence

import numpy as np

from app.adapters.postgres.database import Database
from app.adapters.postgres.vector_index import PostgresVectorIndex
from app.indexing.backlog import EmbeddingBacklog
from app.indexing.embedding import EmbeddingProfile, HalfVector, half_vector

DIMENSIONS = 24


class WordVectors:
    """Adds up a vector for each word: texts that share words are near each other."""

    def __init__(self, model: str = "words") -> None:
        self.profile = EmbeddingProfile(model, DIMENSIONS)
        self.passages = 0

    async def embed_passages(self, texts: Sequence[str]) -> tuple[HalfVector, ...]:
        self.passages += len(texts)
        return tuple(self.vector(text) for text in texts)

    async def embed_query(self, text: str) -> HalfVector:
        return self.vector(text)

    def vector(self, text: str) -> HalfVector:
        total = np.zeros(DIMENSIONS)
        for word in text.split():
            seed = hashlib.sha256(f"{self.profile.model} {word}".encode()).digest()
            total += np.random.default_rng(int.from_bytes(seed[:8], "big")).normal(size=DIMENSIONS)
        return half_vector(total, normalise=True)


async def embed_all(database: Database, tenant: str, embedder: WordVectors) -> None:
    """Give every chunk of the tenant its vector."""
    backlog = EmbeddingBacklog(PostgresVectorIndex(database), embedder, interval_s=3600)
    await backlog.catch_up(tenant, looks=10_000)
