"""k candidates are the best k of what is in scope, whatever outranks them elsewhere.

A backend that searches first and filters afterwards returns fewer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.adapters.postgres.database import Database
from app.adapters.postgres.vector import PostgresVectorRetriever
from app.api.parts import Parts
from app.retrieval.retriever import Retriever, ScopedQuery
from app.scope.access import RequestedScope, SourcePatterns, narrow
from app.scope.claims import ClaimNames, grant_from_claims
from tests.tokens import TokenFactory
from tests.word_vectors import WordVectors, embed_all

Json = dict[str, Any]

CALLER: Json = {"projects": ["mine"], "groups": ["eng"], "max_classification": "internal"}
STRONG = "cancel cancel cancel"
WEAK = "cancel some other word that makes it longer and weaker"
OTHERS: dict[str, Json] = {
    "another project": {"project": "theirs"},
    "a higher classification": {"classification": "confidential"},
    "a denied group": {"acl": {"deny": ["group:eng"]}},
    "an empty list": {"acl": {"allow": []}},
    "another tenant": {},
}


@dataclass(frozen=True)
class Index:
    """One tenant's index, written over HTTP and asked by its retriever directly."""

    client: httpx.AsyncClient
    token: TokenFactory
    parts: Parts
    database: Database
    words: WordVectors

    async def add(self, tenant: str, name: str, text: str, chunks: int, **members: Any) -> None:
        """Chunks of equal words, told apart by a number, so that none is another's duplicate."""
        document: Json = {"sourceId": name, "sourceRevision": "1", "class": "documents"}
        document |= {"project": "mine", "language": "en", **members}
        document["chunks"] = [{"chunkId": str(at), "text": f"{text} {at}"} for at in range(chunks)]
        answer = await self.client.put(
            "/sources", json={"sources": [document]}, headers=self.token.headers(tenant)
        )
        assert answer.status_code == 200, answer.text

    async def embed(self, *tenants: str) -> None:
        for tenant in tenants:
            await embed_all(self.database, tenant, self.words)

    async def best(
        self, tenant: str, k: int, leg: str = "lexical", *, patterns: tuple[str, ...] | None = None
    ) -> list[str]:
        """The sources of the k best chunks for the query `cancel`, best first."""
        grant = grant_from_claims({"sub": "ana", "tenant_id": tenant, **CALLER}, ClaimNames())
        scope = narrow(grant, RequestedScope(sources=SourcePatterns(patterns, ())))
        view = await self.parts.services.views.open(scope)
        query = ScopedQuery(scope, view, "cancel", "en", k)
        found = await self._legs()[leg].retrieve(query)
        return [one.chunk.source_id for one in found.candidates]

    def _legs(self) -> dict[str, Retriever]:
        vector = PostgresVectorRetriever(self.database, (self.words,))
        return {**self.parts.services.retrievers, "vector": vector}


LEGS = ("lexical", "vector")


@pytest.fixture
def index(
    client: httpx.AsyncClient, token: TokenFactory, parts: Parts, database: Database
) -> Index:
    return Index(client, token, parts, database, WordVectors())


@pytest.mark.parametrize(
    ("others", "own", "k"),
    [(100, 2, 50), (100, 5, 5), pytest.param(100_000, 10, 10, marks=pytest.mark.long)],
)
async def test_chunks_of_others_take_no_place_of_ones_own(
    index: Index, make_tenant: Callable[[], str], others: int, own: int, k: int
) -> None:
    tenant, neighbour = make_tenant(), make_tenant()
    each = others // len(OTHERS)
    for name, members in OTHERS.items():
        holder = neighbour if name == "another tenant" else tenant
        for at in range(0, each, 10_000):
            await index.add(holder, f"{name} {at}", STRONG, min(10_000, each - at), **members)
    for at in range(own):
        await index.add(tenant, f"mine{at}", WEAK, 1)
    await index.embed(tenant, neighbour)
    expected = [f"mine{at}" for at in range(own)]
    for leg in LEGS:
        assert sorted(await index.best(tenant, k, leg)) == expected
        assert sorted(await index.best(tenant, k, leg, patterns=("*",))) == expected
        theirs = await index.best(neighbour, k, leg)
        assert len(theirs) == min(k, each)
        assert {name.rpartition(" ")[0] for name in theirs} == {"another tenant"}


async def test_the_others_would_outrank_ones_own(
    index: Index, make_tenant: Callable[[], str]
) -> None:
    """Without this, the tests above would show nothing."""
    tenant = make_tenant()
    await index.add(tenant, "theirs", STRONG, 100)
    await index.add(tenant, "mine", WEAK, 1)
    await index.embed(tenant)
    for leg in LEGS:
        assert await index.best(tenant, 50, leg) == ["theirs"] * 50
        assert (await index.best(tenant, 101, leg))[-1] == "mine"
        assert await index.best(tenant, 5, leg, patterns=("mine*",)) == ["mine"]
