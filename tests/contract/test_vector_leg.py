"""The vector leg on the real database: exact within the scope, versioned, in integers."""

import asyncio
import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from app.adapters.postgres.database import Database
from app.adapters.postgres.index_views import PostgresIndexViews
from app.adapters.postgres.vector import PostgresVectorRetriever
from app.adapters.postgres.vector_approximate import PostgresApproximateVectorRetriever
from app.adapters.postgres.vector_index import PostgresVectorIndex
from app.errors import EmbeddingRefusedError, EmbeddingUnavailableError
from app.indexing.backlog import EmbeddingBacklog
from app.indexing.embedding import HalfVector
from app.retrieval.candidate import Retrieval
from app.retrieval.retriever import ScopedQuery
from app.scope.access import AccessScope, RequestedScope, SourcePatterns, narrow
from app.scope.claims import ClaimNames, grant_from_claims
from app.storage.labels import IndexVersion
from tests.api.service import Api, Json, chunks, source
from tests.contract.changes import forget_statistics
from tests.contract.test_query_plans import explaining
from tests.word_vectors import WordVectors, embed_all


@pytest.fixture
def words() -> WordVectors:
    return WordVectors()


def _scope(tenant: str, patterns: SourcePatterns | None = None, **claims: Any) -> AccessScope:
    usual: Json = {"tenant_id": tenant, "sub": "ana", "projects": ["*"]}
    grant = grant_from_claims({**usual, "max_classification": "internal", **claims}, ClaimNames())
    return narrow(grant, RequestedScope(sources=patterns or SourcePatterns()))


async def _ask(
    database: Database,
    scope: AccessScope,
    text: str,
    *embedders: WordVectors,
    limit: int = 10,
    at: int | None = None,
    recorded: Any = None,
) -> Retrieval:
    version = None if at is None else IndexVersion(at)
    view = await PostgresIndexViews(database).open(scope, version)
    query = ScopedQuery(scope, view, text, None, limit, recorded)
    return await PostgresVectorRetriever(database, embedders).retrieve(query)


def _exact(query: HalfVector, passage: HalfVector) -> int:
    """The dot product in units of 2^-32, rounded down, by fractions."""
    pairs = zip(np.frombuffer(query, ">f2"), np.frombuffer(passage, ">f2"), strict=True)
    product = sum((Fraction(float(a)) * Fraction(float(b)) for a, b in pairs), Fraction(0))
    return int(product * 2**32 // 1)


def _ids(found: Retrieval) -> list[tuple[str, str]]:
    return [(one.chunk.source_id, one.chunk.chunk_id) for one in found.candidates]


TEXTS = [" ".join(words) for words in itertools.combinations(("cancel", "order", "ship", "pay"), 2)]


async def test_the_best_k_in_scope_in_exact_order(
    api: Api, database: Database, words: WordVectors
) -> None:
    hidden = [source(f"hidden-{at}", "cancel", classification="restricted") for at in range(60)]
    shown = [source(f"s{at}", text) for at, text in enumerate(TEXTS * 3)]
    await api.index(*hidden, *shown)
    await embed_all(database, api.tenant, words)
    question = words.vector("cancel")
    expected = sorted(
        (-_exact(question, words.vector(one["text"])), one["sourceId"]) for one in shown
    )
    for limit in (1, 4, 7, 18, 50):
        found = await _ask(database, _scope(api.tenant), "cancel", words, limit=limit)
        assert [(-one.score, one.chunk.source_id) for one in found.candidates] == expected[:limit]
        assert [one.rank for one in found.candidates] == list(range(1, min(limit, 18) + 1))


async def test_many_equal_vectors_are_told_apart_by_their_names(
    api: Api, database: Database, words: WordVectors
) -> None:
    """More ties than are looked at in one go."""
    await api.index(*(source(f"s{at:03}", "the same words") for at in range(200)))
    await embed_all(database, api.tenant, words)
    found = await _ask(database, _scope(api.tenant), "the same words", words, limit=5)
    assert _ids(found) == [(f"s{at:03}", "0") for at in range(5)]


async def test_patterns_select_and_projects_keep_apart(
    api: Api, database: Database, words: WordVectors
) -> None:
    await api.index(
        source("a.md", "cancel"),
        source("drafts/a.md", "cancel"),
        source("a.md", "cancel", project="billing"),
    )
    await embed_all(database, api.tenant, words)
    patterns = SourcePatterns(deny=("drafts/*",))
    found = await _ask(
        database, _scope(api.tenant, patterns, projects=["booking"]), "cancel", words
    )
    assert [(one.chunk.project, one.chunk.source_id) for one in found.candidates] == [
        ("booking", "a.md")
    ]
    nothing = await _ask(database, _scope(api.tenant, SourcePatterns(allow=())), "cancel", words)
    assert nothing.candidates == ()
    other = await _ask(database, _scope("another-tenant"), "cancel", words)
    assert other.candidates == ()


async def test_what_is_out_of_scope_changes_neither_ranking_nor_fingerprint(
    api: Api, database: Database, words: WordVectors
) -> None:
    await api.index(source("a.md", "cancel order"), source("b.md", "pay"))
    await embed_all(database, api.tenant, words)
    before = await _ask(database, _scope(api.tenant), "cancel", words)
    await api.index(source("secret.md", "cancel", classification="restricted"))
    await embed_all(database, api.tenant, words)
    after = await _ask(database, _scope(api.tenant), "cancel", words)
    assert (after.candidates, after.visible_version) == (before.candidates, before.visible_version)
    await api.index(source("c.md", "ship"))
    unembedded = await _ask(database, _scope(api.tenant), "cancel", words)
    await embed_all(database, api.tenant, words)
    embedded = await _ask(database, _scope(api.tenant), "cancel", words)
    versions = {one.visible_version for one in (before, unembedded, embedded)}
    assert len(versions) == 3
    await api.delete("booking", "c.md")
    removed = await _ask(database, _scope(api.tenant), "cancel", words)
    assert removed.visible_version == before.visible_version


async def test_an_older_version_is_searched_as_it_was(
    api: Api, database: Database, words: WordVectors
) -> None:
    await api.index(source("a.md", chunks=chunks("cancel", "order")), source("b.md", "cancel"))
    await embed_all(database, api.tenant, words)
    version = await api.index_version()
    before = await _ask(database, _scope(api.tenant), "cancel", words)
    await api.index(source("a.md", "ship", sourceRevision="2"))
    await api.delete("booking", "b.md")
    await embed_all(database, api.tenant, words)
    assert _ids(await _ask(database, _scope(api.tenant), "cancel", words)) == [("a.md", "0")]
    again = await _ask(database, _scope(api.tenant), "cancel", words, at=version)
    assert (again.candidates, again.visible_version) == (before.candidates, before.visible_version)
    older = await _ask(database, _scope(api.tenant), "cancel", words, at=version - 1)
    assert older.candidates == (), "vectors are seen from the version that added them"


async def test_another_profile_serves_once_it_is_complete_in_the_scope(
    api: Api, database: Database, words: WordVectors
) -> None:
    await api.index(source("a.md", "cancel"), source("s.md", "x", classification="restricted"))
    await embed_all(database, api.tenant, words)
    newer = WordVectors("newer")
    before = await _ask(database, _scope(api.tenant), "cancel", newer, words)
    assert before.inputs is not None
    assert before.inputs["profile"] == words.profile.id
    await embed_all(database, api.tenant, newer)
    after = await _ask(database, _scope(api.tenant), "cancel", newer, words)
    assert after.inputs is not None
    assert after.inputs["profile"] == newer.profile.id
    recalled = await _ask(
        database, _scope(api.tenant), "never asked", newer, recorded=before.inputs
    )
    assert recalled.candidates == before.candidates


async def test_the_backlog_makes_each_vector_once(
    api: Api, database: Database, words: WordVectors
) -> None:
    await api.index(*(source(f"s{at}", f"text {at}") for at in range(300)))
    backlog = EmbeddingBacklog(PostgresVectorIndex(database), words, interval_s=3600)
    await backlog.catch_up(api.tenant)
    assert words.passages == 64
    await backlog.catch_up(api.tenant, looks=4)
    assert words.passages == 300
    await embed_all(database, api.tenant, words)
    assert words.passages == 300
    found = await _ask(database, _scope(api.tenant), "text 7", words, limit=1)
    assert _ids(found) == [("s7", "0")]
    assert found.facts == {"vectors": 300, "chunks": 300}


async def test_large_texts_are_looked_at_a_few_at_a_time(
    api: Api, database: Database, words: WordVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.adapters.postgres.vector_index._BYTES_PER_LOOK", 30)
    await api.index(source("a.md", chunks=chunks(*(f"cancel number {at}" for at in range(10)))))
    await api.index(source("b.md", chunks=chunks("order " * 20, "pay")))
    index, looks, after = PostgresVectorIndex(database), list[int](), 0
    while True:
        page = await index.unembedded(api.tenant, words.profile, after, 64)
        if page.last_key is None:
            break
        looks.append(len(page.chunks))
        after = page.last_key
    assert looks == [2, 2, 2, 2, 2, 1, 1]
    await embed_all(database, api.tenant, words)
    assert words.passages == 12


class _Slow(WordVectors):
    """Answers once it is let, and fails at first."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.failures = asyncio.Event(), 1

    async def embed_passages(self, texts: Sequence[str]) -> tuple[HalfVector, ...]:
        if self.failures:
            self.failures -= 1
            raise EmbeddingUnavailableError("not now")
        await self.let.wait()
        return await super().embed_passages(texts)


async def test_a_writer_waits_a_while_and_the_background_makes_up_for_the_rest(
    api: Api, database: Database
) -> None:
    slow = _Slow()
    backlog = EmbeddingBacklog(PostgresVectorIndex(database), slow, interval_s=0.01)
    await api.index(source("a.md", "cancel"))
    async with backlog.running():
        await backlog.settle(api.tenant, within_s=0.3)
        found = await _ask(database, _scope(api.tenant), "cancel", slow)
        assert found.facts == {"vectors": 0, "chunks": 1}
        await api.index(source("b.md", "cancel"))
        slow.let.set()
        await backlog.settle(api.tenant, within_s=30)
        found = await _ask(database, _scope(api.tenant), "cancel", slow)
        assert found.facts == {"vectors": 2, "chunks": 2}


async def test_a_source_that_is_replaced_keeps_the_vectors_of_the_texts_that_it_keeps(
    api: Api, database: Database, words: WordVectors
) -> None:
    before = chunks("cancel a booking", "pay later")
    await api.index({**source("a.md"), "chunks": before}, source("b.md", "new words"))
    await embed_all(database, api.tenant, words)
    assert words.passages == 3
    # Moved to another place and label, beside a text that another source had.
    after = chunks("new words", "cancel a booking")
    await api.index({**source("a.md", classification="public"), "chunks": after})
    found = await _ask(database, _scope(api.tenant), "cancel", words)
    assert found.facts == {"vectors": 2, "chunks": 3}
    assert [one.chunk.source_id for one in found.candidates] == ["a.md", "b.md"]
    await embed_all(database, api.tenant, words)
    assert words.passages == 4
    again = await _ask(database, _scope(api.tenant), "cancel", words)
    assert again.facts == {"vectors": 3, "chunks": 3}
    first, *_ = again.candidates
    assert (first.chunk.source_id, first.chunk.chunk_id) == ("a.md", "1")
    assert first.score == _exact(await words.embed_query("cancel"), words.vector(first.chunk.text))


async def test_the_old_profile_serves_until_the_new_one_has_caught_up(
    api: Api, database: Database, words: WordVectors
) -> None:
    """What is written meanwhile gets its vector under the new one alone: neither is complete."""
    newer = WordVectors("newer")

    async def serving() -> object:
        found = await _ask(database, _scope(api.tenant), "cancel", newer, words)
        assert found.inputs is not None
        return found.inputs["profile"]

    await api.index(*(source(f"s{at}", f"cancel {at}") for at in range(70)))
    await embed_all(database, api.tenant, words)
    backlog = EmbeddingBacklog(PostgresVectorIndex(database), newer, interval_s=3600)
    await backlog.catch_up(api.tenant)
    assert await serving() == words.profile.id
    await api.index(source("new", "cancel anew"))
    assert await serving() == words.profile.id
    await embed_all(database, api.tenant, newer)
    assert await serving() == newer.profile.id


class _Choosy(WordVectors):
    """Takes no text that holds `poison`, and no text at all while it is closed."""

    closed = False

    async def embed_passages(self, texts: Sequence[str]) -> tuple[HalfVector, ...]:
        if self.closed or any("poison" in text for text in texts):
            raise EmbeddingRefusedError("answered 400")
        return await super().embed_passages(texts)


async def test_a_text_that_is_refused_keeps_no_other_one_from_its_vector(
    api: Api, database: Database
) -> None:
    choosy = _Choosy()
    texts = [*(f"poison {at}" for at in range(64)), *(f"order {at}" for at in range(70))]
    texts[3], texts[70] = "cancel", "poison again"
    await api.index(source("a.md", chunks=chunks(*texts)))
    await embed_all(database, api.tenant, choosy)
    found = await _ask(database, _scope(api.tenant), "cancel", choosy, limit=1)
    assert _ids(found) == [("a.md", "3")]
    assert found.facts == {"vectors": 70, "chunks": 134}


async def test_an_endpoint_that_refuses_everything_is_asked_again_for_all(
    api: Api, database: Database
) -> None:
    choosy = _Choosy()
    choosy.closed = True
    await api.index(source("a.md", "cancel"))
    backlog = EmbeddingBacklog(PostgresVectorIndex(database), choosy, interval_s=3600)
    assert not await backlog.catch_up(api.tenant)
    choosy.closed = False
    assert await backlog.catch_up(api.tenant)
    found = await _ask(database, _scope(api.tenant), "cancel", choosy)
    assert found.facts == {"vectors": 1, "chunks": 1}


async def test_a_source_that_is_hidden_by_now_and_erased_leaves_nothing_in_the_past(
    api: Api, database: Database, words: WordVectors
) -> None:
    shown, secret = source("a.md", "cancel"), source("s.md", chunks=chunks("cancel", "order"))
    scope, answers = _scope(api.tenant), []
    await api.index(shown, secret)
    await embed_all(database, api.tenant, words)
    version = IndexVersion(await api.index_version())
    await api.index({**secret, "classification": "restricted"})
    for _ in range(2):
        view = await PostgresIndexViews(database).open(scope, version, admitted_now=scope)
        query = ScopedQuery(scope, view, "cancel", None, 10)
        answers.append(await PostgresVectorRetriever(database, [words]).retrieve(query))
        await api.client.delete(
            "/sources",
            params={"project": "booking", "sourceId": "s.md", "erase": "true"},
            headers=api.headers(),
        )
    assert answers[0].facts == {"vectors": 1, "chunks": 1}
    assert answers[1] == answers[0]
    # As if it had never been there.
    other = api.elsewhere()
    await other.index(shown)
    await embed_all(database, other.tenant, words)
    alone = await _ask(database, _scope(other.tenant), "cancel", words)
    assert alone.visible_version == answers[0].visible_version


# On a database of its own run: what hundreds of other tenants leave behind changes the plans.
@pytest.mark.long
@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
async def test_the_past_is_searched_without_reading_what_was_before_it_and_since(
    api: Api, database: Database, owner: Database, words: WordVectors, early: bool
) -> None:
    sources = [source(f"s{at}", f"cancel {at}") for at in range(20)]
    await api.index(*sources)
    await embed_all(database, api.tenant, words)
    version = await api.index_version()
    for revision in range(2, 42):
        await api.index(*({**one, "sourceRevision": str(revision)} for one in sources))
    version = version if early else await api.index_version() - 1
    await forget_statistics(owner)
    scope = _scope(api.tenant, SourcePatterns(allow=("s*",)))
    with explaining() as plans:
        found = await _ask(database, scope, "cancel", words, at=version)
        view = await PostgresIndexViews(database).open(_scope(api.tenant), IndexVersion(version))
        recorded: Any = {**(found.inputs or {}), "chunks": ["1", "2"]}
        query = ScopedQuery(_scope(api.tenant), view, "cancel", None, 10, recorded)
        await PostgresApproximateVectorRetriever(database, [words]).retrieve(query)
    assert len(found.candidates) == 10
    states = [scan for plan in plans for scan in plan.of("label_states", "vector_states")]
    assert len(states) == 4
    for scan in states:
        assert (scan.rows, scan.dropped_rows) == (1, 0), scan
    vectors = [scan for plan in plans for scan in plan.of("ended_vectors")]
    assert len(vectors) == 2
    for scan in vectors:
        # With its source's end each vector is one entry of the index.
        assert "valid_to = " in scan.condition, scan
