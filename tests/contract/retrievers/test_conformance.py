"""What every retriever adapter must do, each with its real backend.

docs/adapters.md has a column for each adapter and a row for each test here.
"""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.postgres.database import Database
from app.retrieval.candidate import Retrieval
from tests.contract.retrievers.backends import Asking, Backend
from tests.contract.retrievers.world import CASES, QUERY, SOURCES, Case, access, document
from tests.property.access_rules import may_know
from tests.property.sizes import sized
from tests.property.worlds import callers, narrowings

ALL = Case("everything")


@pytest.fixture(scope="module")
async def filled(backend: Backend, database: Database, make_tenant: Callable[[], str]) -> Asking:
    """One tenant with a source under each kind of label, and another one with the same."""
    one, other = Asking(backend, make_tenant(), database), make_tenant()
    await one.put(*SOURCES)
    await backend.put(other, [{**source, "sourceRevision": "other"} for source in SOURCES])
    return one


def names(found: Retrieval) -> list[tuple[str, str]]:
    return [(one.chunk.project, one.chunk.source_id) for one in found.candidates]


async def test_the_backend_returns_exactly_what_each_part_of_the_scope_admits(
    filled: Asking,
) -> None:
    for case in CASES:
        found = await filled.ask(case.access(filled.tenant), QUERY)
        assert sorted(names(found)) == sorted(case.expected()), case.name
        assert {one.chunk.revision for one in found.candidates} <= {"1"}, case.name


@sized(8, full=300)
@given(data=st.data())
async def test_the_backend_returns_exactly_what_any_scope_admits(
    filled: Asking, data: st.DataObject
) -> None:
    caller = data.draw(callers())
    scope = data.draw(narrowings(caller))
    found = await filled.ask(access(filled.tenant, caller, scope), QUERY)
    expected = (one for one in SOURCES if may_know(one, caller, scope))
    assert sorted(names(found)) == sorted((one["project"], one["sourceId"]) for one in expected)


async def test_labels_and_texts_come_back_as_they_were_put(filled: Asking) -> None:
    found = await filled.ask(ALL.access(filled.tenant), QUERY)
    sources = {(one["project"], one["sourceId"]): one for one in SOURCES}
    for name, candidate in zip(names(found), found.candidates, strict=True):
        source, label = sources[name], candidate.chunk.label.canonical()
        assert candidate.chunk.text == source["text"]
        assert label == {
            "project": source["project"],
            "class": source["class"],
            "classification": source["classification"],
            "trustTier": source["trustTier"],
            "allow": source["acl"].get("allow"),
            "deny": source["acl"].get("deny", []),
        }


async def test_k_are_the_best_k_of_what_is_in_scope(asking: Asking) -> None:
    """A hundred better ones out of scope take no place."""
    await asking.put(
        *(document(f"hidden-{at}", "cancel", classification="restricted") for at in range(100)),
        *(document(f"s{at}", f"cancel {'and more words ' * at}") for at in range(5)),
    )
    scope = Case("k", {"maxClassification": "internal"}).access(asking.tenant)
    best = await asking.ask(scope, QUERY, 100)
    assert len(best.candidates) == 5
    for k in (1, 3, 5, 50):
        found = await asking.ask(scope, QUERY, k)
        assert found.candidates == best.candidates[:k]


async def test_candidates_are_in_order_and_ties_go_by_name(asking: Asking) -> None:
    equal = [
        document("same", project=project, chunks=[{"chunkId": "0", "text": QUERY}])
        for project in ("beta", "alpha")
    ]
    several = document("many", chunks=[{"chunkId": f"c{at}", "text": QUERY} for at in range(3)])
    await asking.put(*equal, several, document("Z", text="cancel"), document("é"))
    found = await asking.ask(ALL.access(asking.tenant), QUERY)
    ranked = [(-one.score, one.chunk.tie_break) for one in found.candidates]
    assert ranked == sorted(ranked)
    assert [one.rank for one in found.candidates] == list(range(1, len(ranked) + 1))
    same = [one.chunk for one in found.candidates if one.chunk.text == QUERY]
    assert [(one.source_id, one.project, one.chunk_id) for one in same] == [
        ("many", "alpha", "c0"),
        ("many", "alpha", "c1"),
        ("many", "alpha", "c2"),
        ("same", "alpha", "0"),
        ("same", "beta", "0"),
    ]
    assert (await asking.ask(ALL.access(asking.tenant), QUERY, 2)).candidates == (
        found.candidates[:2]
    )


async def test_the_visible_version_follows_what_is_in_scope_and_nothing_else(
    asking: Asking,
) -> None:
    scope = Case("visible", {"maxClassification": "internal"}).access(asking.tenant)
    await asking.put(document("a"), document("b"))
    before = await asking.ask(scope, QUERY)
    hidden = document("hidden", classification="restricted")
    await asking.put(hidden, document("out", acl={"allow": ["user:bob"]}))
    after = await asking.ask(scope, QUERY)
    assert (after.visible_version, after.candidates) == (before.visible_version, before.candidates)
    await asking.put(document("c"))
    more = await asking.ask(scope, QUERY)
    await asking.put(document("c", text="cancel other words"))
    changed = await asking.ask(scope, QUERY)
    assert len({one.visible_version for one in (before, more, changed)}) == 3
    await asking.backend.remove(asking.tenant, "alpha", "c")
    assert (await asking.ask(scope, QUERY)).visible_version == before.visible_version


async def test_a_source_that_is_replaced_or_removed_leaves_nothing_behind(asking: Asking) -> None:
    chunks = [{"chunkId": str(at), "text": f"cancel {at}"} for at in range(5)]
    await asking.put(document("a", chunks=chunks), document("b"))
    await asking.put(document("a", chunks=chunks[:2], sourceRevision="2"))
    found = await asking.ask(ALL.access(asking.tenant), QUERY)
    assert sorted((one.chunk.source_id, one.chunk.revision) for one in found.candidates) == [
        ("a", "2"),
        ("a", "2"),
        ("b", "1"),
    ]
    await asking.backend.remove(asking.tenant, "alpha", "a")
    assert names(await asking.ask(ALL.access(asking.tenant), QUERY)) == [("alpha", "b")]


async def test_a_query_of_signs_is_data(filled: Asking) -> None:
    for text in ("cancel' OR 1=1 --", 'cancel" OR "', "cancel*", "(cancel", "cancel NOT booking"):
        for case in (ALL, Case("no class", {"classes": []})):
            found = await filled.ask(case.access(filled.tenant), text)
            assert set(names(found)) <= case.expected(), text


async def test_a_call_that_is_given_up_ends(filled: Asking) -> None:
    """And the next one is answered."""
    before = asyncio.all_tasks()
    scope = ALL.access(filled.tenant)
    for _ in range(5):
        call = asyncio.create_task(filled.ask(scope, QUERY))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}
    assert len((await filled.ask(scope, QUERY)).candidates) == len(ALL.expected())
