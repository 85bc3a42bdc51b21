"""Giving every chunk its vector: right after it was written, and in the background.

A chunk is found by words from the moment it is stored, and by meaning once it has a vector.
What an embedding endpoint could not answer, and all chunks when the profile changes, is made up
for here; until a scope's vectors are complete, the profile before goes on serving it.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from app.indexing.embedding import Embedder, VectorIndex

_LOOKED_AT = 256
"""Chunks of one look at the index; each look with something to do makes one index version."""

_log = structlog.get_logger()


class EmbeddingBacklog:
    """Keeps, for each tenant this process has met, up to which chunk all have vectors."""

    def __init__(self, index: VectorIndex, embedder: Embedder, *, interval_s: float) -> None:
        self._index = index
        self._embedder = embedder
        self._interval_s = interval_s
        self._done: dict[str, int] = {}
        self._behind: set[str] = set()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def met(self, tenant: str) -> None:
        """Tell that the tenant may have chunks without vectors; costs nothing if it is known."""
        if tenant not in self._done:
            self._done[tenant] = 0
            self._behind.add(tenant)

    async def catch_up(self, tenant: str, *, looks: int = 1) -> None:
        """Embed the next chunks of a tenant; what is left or fails waits for the background."""
        self.met(tenant)
        self._behind.add(tenant)
        try:
            for _ in range(looks):
                if await self._look(tenant):
                    self._behind.discard(tenant)
                    return
        except Exception as error:
            # The words are indexed: whoever wrote them is not to blame for the endpoint.
            _log.warning("embedding_postponed", error_type=type(error).__name__)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Catch up in rounds inside of the block."""
        task = asyncio.create_task(self._rounds(), name="embedding-backlog")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            for tenant in tuple(self._behind):
                await self.catch_up(tenant, looks=8)

    async def _look(self, tenant: str) -> bool:
        """Embed what one look at the index finds; whether that was the last of it."""
        profile = self._embedder.profile
        async with self._turns[tenant]:
            after = self._done[tenant]
            page = await self._index.unembedded(tenant, profile, after, _LOOKED_AT)
            if page.chunks:
                texts = [chunk.text for chunk in page.chunks]
                vectors = await self._embedder.embed_passages(texts)
                keys = [chunk.key for chunk in page.chunks]
                await self._index.add_vectors(
                    tenant, profile, dict(zip(keys, vectors, strict=True))
                )
            if page.last_key is not None:
                self._done[tenant] = page.last_key
            return page.last_key is None
