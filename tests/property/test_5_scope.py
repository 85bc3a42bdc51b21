"""Property 5: every retriever gets the scope as a filter, and nothing outside comes back."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.api.parts import Parts
from app.api.snapshot_schemas import CreateSnapshotBody
from app.retrieval.retriever import ScopedQuery
from app.scope.access import narrow
from app.scope.claims import ClaimNames, grant_from_claims
from tests.property.access_rules import may_know
from tests.property.service import Service
from tests.property.worlds import Caller, Json, situations


@examples(max_examples=50)
@given(situation=situations(max_sources=14))
async def test_a_snapshot_accounts_for_exactly_what_its_caller_may_know(
    service: Service, situation: tuple[list[Json], Caller, Json]
) -> None:
    """Items and exclusions together are the hits in scope, each chunk once."""
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    answer = await service.assemble(tenant, caller, request)
    assert answer.status_code == 201, answer.text
    snapshot = answer.json()
    shown = Counter(
        (entry["project"], entry["sourceId"], entry["chunkId"])
        for entry in (*snapshot["items"], *snapshot["exclusions"])
    )
    expected = Counter(
        (source["project"], source["sourceId"], chunk["chunkId"])
        for source in sources
        if may_know(source, caller, request["scope"])
        for chunk in source["chunks"]
        if set(chunk["text"].split()) & set(request["query"].split())
    )
    assert shown == expected


@examples(max_examples=50)
@given(situation=situations(max_sources=14), limit=st.integers(1, 6))
async def test_the_backend_returns_the_best_k_of_what_is_in_scope(
    service: Service,
    parts: Parts,
    situation: tuple[list[Json], Caller, Json],
    limit: int,
) -> None:
    """A filter after the search would return fewer, or rank with others' statistics."""
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    grant = grant_from_claims(
        {"tenant_id": tenant, **{k: v for k, v in caller.claims().items() if v is not None}},
        ClaimNames(),
    )
    body = CreateSnapshotBody.model_validate(request).to_core(grant)
    scope = narrow(grant, body.scope)
    view = await parts.services.views.open(scope)
    query = ScopedQuery(scope, view, request["query"], "en", limit)
    found = await parts.services.retrievers["lexical"].retrieve(query)
    reference = _bm25(
        [source for source in sources if may_know(source, caller, request["scope"])],
        request["query"],
    )
    assert len(found.candidates) == min(limit, len(reference))
    best = sorted(reference.values(), reverse=True)[:limit]
    for candidate, score in zip(found.candidates, best, strict=True):
        assert math.isclose(reference[candidate.chunk.identity], score, rel_tol=1e-4)
        assert math.isclose(candidate.score / 2**20, score, rel_tol=1e-4, abs_tol=1e-4)


def _bm25(sources: list[Json], query: str) -> dict[tuple[str, str, str], float]:
    """BM25 from its formula, over the given sources alone; words are their own stems here."""
    chunks = {
        (source["project"], source["sourceId"], chunk["chunkId"]): chunk["text"].split()
        for source in sources
        for chunk in source["chunks"]
    }
    mean = sum(map(len, chunks.values())) / len(chunks) if chunks else 1.0
    scores: dict[tuple[str, str, str], float] = {}
    for word in query.split():
        holding = sum(word in words for words in chunks.values())
        idf = math.log(1 + (len(chunks) - holding + 0.5) / (holding + 0.5))
        for key, words in chunks.items():
            frequency = words.count(word)
            if frequency:
                norm = frequency + 1.2 * (0.25 + 0.75 * len(words) / mean)
                scores[key] = scores.get(key, 0.0) + idf * frequency * 2.2 / norm
    return scores
