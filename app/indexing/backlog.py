"""Giving every chunk its vector: right after it was written, and in the background.

A chunk is found by words from the moment it is stored, and by meaning once it has a vector.
What an embedding endpoint could not answer, and all chunks when the profile changes, is made up
for here; until a scope's vectors are complete, the profile before goes on serving it.

Guarantees: a text that the endpoint refuses keeps no other one from its vector. It goes without
one until the next start.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import structlog

from app.background import in_background
from app.errors import EmbeddingRefusedError
from app.indexing.embedding import (
    Embedder,
    EmbeddingProfile,
    HalfVector,
    UnembeddedChunk,
    VectorIndex,
)

_LOOKED_AT = 64
"""Chunks of one look at the index; each look with something to do makes one index version."""

_TAKEN_BY_ANY = "text"
"""An endpoint that refuses it as well has nothing against the texts before."""

_log = structlog.get_logger()


class EmbeddingBacklog:
    """Keeps, for each tenant this process has met, up to which chunk all have vectors.

    What fails is tried again after `interval_s`.
    """

    def __init__(self, index: VectorIndex, embedder: Embedder, *, interval_s: float) -> None:
        self._index = index
        self._embedder = embedder
        self._interval_s = interval_s
        self._done: defaultdict[str, int] = defaultdict(int)
        # How often a tenant was said to have new chunks, and of which time all have vectors.
        self._told: dict[str, int] = {}
        self._settled: defaultdict[str, int] = defaultdict(int)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wanted = asyncio.Event()
        self._progress = asyncio.Condition()

    def met(self, tenant: str) -> None:
        """Tell that the tenant may have chunks without vectors; costs nothing if it is known."""
        if tenant not in self._told:
            self._want(tenant)

    async def settle(self, tenant: str, *, within_s: float) -> None:
        """Have the tenant's new chunks embedded, and wait for that so long and no longer."""
        time = self._want(tenant)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._progress:
                await self._progress.wait_for(lambda: self._settled[tenant] >= time)

    async def catch_up(self, tenant: str, *, looks: int = 1) -> bool:
        """Embed the next chunks of a tenant; whether the endpoint and the index answered."""
        self.met(tenant)
        time = self._told[tenant]
        try:
            for _ in range(looks):
                if await self._look(tenant):
                    # Chunks that came meanwhile, and may not have been seen, were told of later.
                    self._settled[tenant] = max(self._settled[tenant], time)
                    break
        except Exception as error:
            # The words are indexed: whoever wrote them is not to blame for the endpoint.
            _log.warning("embedding_postponed", error_type=type(error).__name__)
            return False
        async with self._progress:
            self._progress.notify_all()
        return True

    @property
    def profile(self) -> EmbeddingProfile:
        """Under which profile chunks get their vectors."""
        return self._embedder.profile

    async def done(self, tenant: str, label_keys: Sequence[int], version: int) -> int:
        """How many chunks of these labels had a vector at an index version."""
        return await self._index.count_vectors(tenant, self.profile, label_keys, version)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Catch up inside of the block, whenever there is something to do."""
        async with in_background(self._rounds(), "embedding-backlog"):
            yield

    def _want(self, tenant: str) -> int:
        self._told[tenant] = self._told.get(tenant, 0) + 1
        self._wanted.set()
        return self._told[tenant]

    def _behind(self) -> list[str]:
        return [tenant for tenant, time in self._told.items() if self._settled[tenant] < time]

    async def _rounds(self) -> None:
        """One look for each tenant in turn: a large load does not keep the others waiting."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for tenant in self._behind():
                if not await self.catch_up(tenant):
                    await asyncio.sleep(self._interval_s)
            if self._behind():
                self._wanted.set()

    async def _look(self, tenant: str) -> bool:
        """Embed what one look at the index finds; whether that was the last of it."""
        profile = self._embedder.profile
        async with self._turns[tenant]:
            after = self._done[tenant]
            page = await self._index.unembedded(tenant, profile, after, _LOOKED_AT)
            if page.chunks:
                vectors = await self._vectors(page.chunks)
                await self._index.add_vectors(tenant, profile, vectors)
            if page.last_key is not None:
                self._done[tenant] = page.last_key
            return page.last_key is None

    async def _vectors(self, chunks: Sequence[UnembeddedChunk]) -> dict[int, HalfVector]:
        """By chunk key, without those whose texts the endpoint refuses."""
        try:
            vectors = await self._embedder.embed_passages([chunk.text for chunk in chunks])
        except EmbeddingRefusedError:
            await self._embedder.embed_passages([_TAKEN_BY_ANY])
        else:
            return dict(zip((chunk.key for chunk in chunks), vectors, strict=True))
        found = dict[int, HalfVector]()
        for chunk in chunks:
            with suppress(EmbeddingRefusedError):
                (found[chunk.key],) = await self._embedder.embed_passages([chunk.text])
        if refused := len(chunks) - len(found):
            _log.warning("embedding_refused", chunks=refused)
        return found
