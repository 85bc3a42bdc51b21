"""The graph leg over HTTP: what links lead to comes in, within the scope, and is told of."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api.parts import Parts
from app.errors import UnavailableError
from app.retrieval.candidate import Retrieval
from app.retrieval.expansion import ExpansionRules, Seeds
from app.retrieval.retriever import ScopedQuery
from tests.api.service import Api, Json, chunks, question, source, source_ids
from tests.api.stage_digests import digest_of, fusion_digest
from tests.recipes import calling

BEST = 10**9 // 61
"""The fused score of the first of one leg."""
LEXICAL = "retrievers: [{name: lexical}]"
RECIPES = {
    "plain": LEXICAL,
    "one-hop": f"{LEXICAL}\nexpansion: {{}}",
    "four-hops": f"{LEXICAL}\nexpansion: {{hops: 4, dampingPermille: 900}}",
    "two-seeds": f"{LEXICAL}\nexpansion: {{seeds: 2}}",
    "three-chunks": f"{LEXICAL}\nexpansion: {{hops: 4, limit: 3}}",
    "hurried": f"{LEXICAL}\nexpansion: {{deadlineMs: 1}}",
}


@pytest.fixture
async def client(running: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(running) as opened:
        yield opened


def linked(source_id: str, *links: str, text: str | None = None, **members: Any) -> Json:
    """A source whose text only the query for its own id finds."""
    return source(source_id, text or f"all about topic{source_id}", links=list(links), **members)


async def expanded(api: Api, query: str | None, strategy: str = "one-hop", **members: Any) -> Json:
    return await api.assemble(question(query, strategy=strategy, **members))


async def leg_of(api: Api, snapshot: Json) -> Json:
    """What the report says of the graph leg."""
    report = (await api.read(f"/snapshots/{snapshot['hash']}/report"))["report"]
    (leg,) = [leg for leg in report["retrievers"] if leg["name"] == "graph"]
    assert "retrieval:graph" in [stage["name"] for stage in report["stages"]]
    return dict(leg)


def from_graph(snapshot: Json) -> list[str]:
    items = snapshot["items"]
    return [one["sourceId"] for one in items if one["indexVersion"].startswith("graph:")]


async def test_a_neighbour_comes_in_after_what_was_found(api: Api) -> None:
    await api.index(linked("a", "b"), linked("b"), linked("c"))
    snapshot = await expanded(api, "topica")
    assert source_ids(snapshot) == ["a", "b"]
    version = await api.visible_version()
    assert [one["indexVersion"] for one in snapshot["items"]] == [
        f"lexical:{version}",
        f"graph:{version}",
    ]
    leg = await leg_of(api, snapshot)
    assert (leg["status"], leg["candidates"], leg["visibleVersion"]) == ("ok", 1, version)
    assert leg["predicateHash"] == snapshot["scope"]["policy"]["predicateHash"]
    checks = (await api.read(f"/snapshots/{snapshot['hash']}/verify"))["checks"]
    assert all(check["ok"] for check in checks)
    assert source_ids(await expanded(api, "topica", "plain")) == ["a"]


async def test_links_are_not_followed_backwards(api: Api) -> None:
    await api.index(linked("a"), linked("b", "a"))
    assert source_ids(await expanded(api, "topica")) == ["a"]


async def test_pinned_sources_are_followed_with_and_without_a_query(api: Api) -> None:
    await api.index(linked("a", "b"), linked("b"), linked("c", "d"), linked("d"))
    pins = [{"project": "booking", "sourceId": "c"}]
    assert source_ids(await expanded(api, "topica", pins=pins)) == ["c", "a", "b", "d"]
    snapshot = await expanded(api, None, pins=pins)
    assert source_ids(snapshot) == ["c", "d"]
    assert from_graph(snapshot) == ["d"]


async def test_nothing_found_and_nothing_pinned_leads_nowhere(api: Api) -> None:
    await api.index(linked("a", "b"), linked("b"))
    snapshot = await expanded(api, "zebra")
    assert snapshot["items"] == []
    assert (await leg_of(api, snapshot))["status"] == "ok"


async def test_a_chunk_that_was_found_keeps_its_score_and_its_leg(api: Api) -> None:
    await api.index(linked("a", "b", text="apples apples"), linked("b", text="pears, apples"))
    with_links, without = await expanded(api, "apples"), await expanded(api, "apples", "plain")
    shown = [(one["sourceId"], one["rank"], one["indexVersion"]) for one in with_links["items"]]
    assert shown == [(o["sourceId"], o["rank"], o["indexVersion"]) for o in without["items"]]
    assert (await leg_of(api, with_links))["candidates"] == 0


async def test_the_first_two_chunks_of_a_neighbour_come_in(api: Api) -> None:
    long = source("b", chunks=chunks("one", "two", "three"))
    await api.index(linked("a", "b", "c"), long, linked("c"))
    snapshot = await expanded(api, "topica")
    assert [(one["sourceId"], one["chunkId"]) for one in snapshot["items"]] == [
        ("a", "0"),
        ("b", "0"),
        ("b", "1"),
        ("c", "0"),
    ]


async def test_every_hop_takes_its_part_and_the_best_path_counts(api: Api) -> None:
    """The query ranks b first and a second. Of equal lengths the better seed's path counts, h
    being linked to both; d is two links from b, and one from a.
    """
    await api.index(
        linked("b", "c", "h", text="apples apples"),
        linked("a", "d", "h", text="apples and other things and so on and on"),
        linked("c", "d"),
        linked("d", "e"),
        linked("e", "f"),
        linked("f", "g"),
        linked("g"),
        linked("h"),
    )
    snapshot = await expanded(api, "apples", "four-hops")
    # 900 per mille of rank 2 is more than 810 of rank 1.
    assert source_ids(snapshot) == ["b", "a", "c", "h", "d", "e", "f", "g"]
    report = (await api.read(f"/snapshots/{snapshot['hash']}/report"))["report"]
    second = 10**9 // 62
    damped = [BEST * 900 // 1000] * 2 + [second * 900**n // 1000**n for n in (1, 2, 3, 4)]
    assert digest_of(report, "fusion") == fusion_digest(snapshot, [BEST, second, *damped])


async def test_only_the_best_candidates_are_seeds(api: Api) -> None:
    await api.index(
        linked("a", "x", text="apples apples apples"),
        linked("b", "y", text="apples apples pie"),
        linked("c", "z", text="apples in pies and cakes"),
        *map(linked, "xyz"),
    )
    assert source_ids(await expanded(api, "apples", "two-seeds")) == ["a", "b", "c", "x", "y"]


async def test_the_limit_counts_new_chunks_best_first(api: Api) -> None:
    """b is known already: it takes no place, and leads on."""
    await api.index(
        linked("a", "b", "e", "d", text="apples apples"),
        linked("b", "c", "f", text="apples and"),
        *map(linked, "cdef"),
    )
    snapshot = await expanded(api, "apples", "three-chunks")
    assert source_ids(snapshot) == ["a", "b", "d", "e", "c"]
    assert snapshot["exclusions"] == []


async def test_cycles_self_links_and_links_to_nothing_end(api: Api) -> None:
    await api.index(
        linked("a", "a", "b", "nowhere"), linked("b", "c", "b"), linked("c", "a", "b", "c")
    )
    snapshot = await expanded(api, "topica", "four-hops")
    assert source_ids(snapshot) == ["a", "b", "c"]


async def test_links_stay_in_the_project_and_in_the_tenant(api: Api) -> None:
    other = api.elsewhere()
    await other.index(linked("b", "c", text="of another tenant"))
    await api.index(
        linked("a", "b"),
        linked("b", text="of another project", project="billing"),
        linked("a", "z", text="of another project", project="billing"),
        linked("z", project="billing"),
        linked("z"),
    )
    assert source_ids(await expanded(api, "topica", scope={"projects": ["booking"]})) == ["a"]
    snapshot = await expanded(api, "topica")
    assert [(one["project"], one["sourceId"]) for one in snapshot["items"]] == [("booking", "a")]
    await api.index(linked("b"))
    snapshot = await expanded(api, "topica")
    assert [(one["project"], one["sourceId"]) for one in snapshot["items"]] == [
        ("booking", "a"),
        ("booking", "b"),
    ]


@pytest.mark.parametrize(
    "hidden",
    [
        {"classification": "restricted"},
        {"acl": {"allow": ["group:hr"]}},
        {"acl": {"deny": ["user:ana"]}},
        {"class": "memory"},
        {"trustTier": "untrusted-external"},
    ],
    ids=lambda hidden: next(iter(hidden)),
)
async def test_a_source_out_of_scope_is_no_end_and_no_middle(api: Api, hidden: Json) -> None:
    """Whatever keeps it out; the bytes are those of an index without it."""
    scope = {
        "maxClassification": "internal",
        "classes": ["documents"],
        "minTrustTier": "trusted-knowledge",
    }
    asked = question("topica", strategy="four-hops", scope=scope)
    await api.index(linked("a", "b"), linked("c"))
    before = (await api.post(asked)).content
    await api.index({**linked("b", "c"), **hidden})
    after = await api.post(asked, {"refresh": "true"})
    assert after.content == before
    assert source_ids(after.json()) == ["a"]
    # Who may see it is led through it.
    whole = await api.assemble({**asked, "scope": {}}, groups=["hr"], sub="bob")
    assert source_ids(whole) == ["a", "b", "c"]


async def test_a_source_that_the_patterns_leave_out_is_no_end_and_no_middle(api: Api) -> None:
    await api.index(linked("a", "drafts/b"), linked("drafts/b", "c"), linked("c"))
    denied = {"sources": {"deny": ["drafts/*"]}}
    assert source_ids(await expanded(api, "topica", "four-hops", scope=denied)) == ["a"]
    allowed = {"sources": {"allow": ["a", "c"]}}
    assert source_ids(await expanded(api, "topica", "four-hops", scope=allowed)) == ["a"]
    assert source_ids(await expanded(api, "topica", "four-hops")) == ["a", "drafts/b", "c"]


async def test_a_link_leads_to_what_the_index_held_then(api: Api) -> None:
    await api.index(linked("a", "b"), linked("b", "c", text="before"), linked("c"))
    first = await expanded(api, "topica", "four-hops")
    await api.index(linked("a", "d"), linked("b", text="after"), linked("d"))
    await api.delete("booking", "c")
    past = await expanded(api, "topica", "four-hops", asOf={"snapshot": first["hash"]})
    assert past["items"] == first["items"]
    assert source_ids(await expanded(api, "topica", "four-hops")) == ["a", "d"]
    answer = await api.client.post(f"/snapshots/{first['hash']}/replay", headers=api.headers())
    assert answer.json() == {"match": True, "hash": first["hash"]}


async def test_what_is_hidden_now_leads_nowhere_in_the_past_either(api: Api) -> None:
    await api.index(linked("a", "b"), linked("b", "c"), linked("c"))
    first = await expanded(api, "topicc", "four-hops")
    await api.index(linked("b", "c", classification="restricted"))
    asked = question("topica", strategy="four-hops", asOf={"snapshot": first["hash"]})
    snapshot = await api.assemble(asked, max_classification="internal")
    assert source_ids(snapshot) == ["a"]


@dataclass(frozen=True)
class BrokenGraph:
    error: Exception

    async def neighbours(
        self, query: ScopedQuery, seeds: Seeds, rules: ExpansionRules
    ) -> Retrieval:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnavailableError("down"), "error"),
        (ValueError("secret"), "error"),
        (TimeoutError(), "timeout"),
    ],
)
async def test_a_graph_that_gives_no_answer_is_told_and_done_without(
    api: Api, running: FastAPI, error: Exception, status: str
) -> None:
    await api.index(linked("a", "b"), linked("b"))
    parts: Parts = running.state.parts
    broken = replace(parts, services=replace(parts.services, graph=BrokenGraph(error)))
    running.state.parts = broken
    try:
        answer = await api.post(question("topica", strategy="one-hop"))
    finally:
        running.state.parts = parts
    assert answer.status_code == 201, answer.text
    assert answer.headers["Snapshot-Degraded"] == f"graph; reason={status}"
    snapshot = answer.json()
    assert source_ids(snapshot) == ["a"]
    assert snapshot["budget"]["assembly"]["degraded"] == ["graph"]
    assert (await leg_of(api, snapshot))["status"] == status
    metrics = (await api.client.get("/metrics")).text
    assert f'ctxsnap_degraded_retrievals_total{{reason="{status}",retriever="graph"}}' in metrics
    replayed = await api.client.post(f"/snapshots/{snapshot['hash']}/replay", headers=api.headers())
    assert replayed.json() == {"match": True, "hash": snapshot["hash"]}
