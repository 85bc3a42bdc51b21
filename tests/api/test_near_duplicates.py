"""Near-duplicates over HTTP: left out with a reason where the recipe says so, and only then."""

import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.adapters.postgres.database import Database
from app.indexing.signature import sign
from tests.api.service import Api, Json, chunks, item, question, source, source_ids
from tests.api.stage_digests import digest_of, fusion_digest
from tests.recipes import calling

LEXICAL = "retrievers: [{name: lexical}]"
RECIPES = {
    "same-only": LEXICAL,
    "near": f"{LEXICAL}\ndedupe: {{maxDifferentBits: 3}}",
    "by-score": f"{LEXICAL}\nfusion: {{method: normalised-scores}}",
}
VOCABULARY = [f"word{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(600)]


def words(number: int, seed: int = 1) -> str:
    return "cancel " + " ".join(random.Random(seed).sample(VOCABULARY, number))


LONG = words(200)
REFORMATTED = LONG.replace(" ", "\n\n", 40)
LIMIT_5, LIMIT_50 = (f"{words(30)} the limit is {days} days {words(30, 2)}" for days in (5, 50))


@pytest.fixture
async def client(running: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(running) as opened:
        yield opened


def whole(source_id: str, text: str, **members: Any) -> Json:
    """A source of one chunk."""
    return source(source_id, chunks=chunks(text), **members)


async def asked(api: Api, strategy: str = "near", **members: Any) -> Json:
    return await api.assemble(question("cancel", strategy=strategy, **members))


def left_out(snapshot: Json) -> list[tuple[str, str, str]]:
    return [(one["sourceId"], one["reason"], one["detail"]) for one in snapshot["exclusions"]]


async def report_of(api: Api, snapshot: Json) -> Json:
    report: Json = (await api.read(f"/snapshots/{snapshot['hash']}/report"))["report"]
    return report


async def test_a_near_duplicate_is_an_exclusion_that_says_how_near(api: Api) -> None:
    await api.index(whole("a", LONG), whole("b", REFORMATTED), whole("c", words(200, 3)))
    snapshot = await asked(api)
    assert source_ids(snapshot) == ["a", "c"]
    detail = (
        "nearly the same text as chunk 0 of a in booking: 0 of 64 bits of the signatures differ"
    )
    assert left_out(snapshot) == [("b", "duplicate", detail)]
    report = await report_of(api, snapshot)
    assert report["dedupe"] == {
        "method": "near-text",
        "maxDifferentBits": 3,
        "duplicates": 1,
        "near": 1,
    }
    assert "dedupe" in [stage["name"] for stage in report["stages"]]
    answer = await api.client.post(f"/snapshots/{snapshot['hash']}/replay", headers=api.headers())
    assert answer.json() == {"match": True, "hash": snapshot["hash"]}
    told = {"project": "booking", "sourceId": "b"}
    stages = (await api.read(f"/snapshots/{snapshot['hash']}/explain", told))["stages"]
    assert (stages[-1]["stage"], stages[-1]["outcome"]) == ("dedupe", "duplicate")


async def test_without_a_word_of_the_recipe_only_equal_texts_are_duplicates(api: Api) -> None:
    await api.index(whole("a", LONG), whole("b", REFORMATTED), whole("c", LONG))
    snapshot = await asked(api, "same-only")
    assert source_ids(snapshot) == ["a", "b"]
    assert left_out(snapshot) == [("c", "duplicate", "same text as chunk 0 of a in booking")]
    report = await report_of(api, snapshot)
    assert report["dedupe"] == {"method": "same-text", "duplicates": 1}


async def test_a_rule_with_another_number_is_kept(api: Api) -> None:
    await api.index(whole("a", LIMIT_5), whole("b", LIMIT_50), whole("c", LONG))
    snapshot = await asked(api)
    assert sorted(source_ids(snapshot)) == ["a", "b", "c"]
    assert snapshot["exclusions"] == []


async def test_an_untrusted_copy_does_not_displace_the_text_that_it_copies(api: Api) -> None:
    """Its many words of the query rank it first."""
    forged = f"{REFORMATTED}\n\nCancel."
    await api.index(
        whole("a", LONG),
        whole("copy", forged, trustTier="untrusted-external"),
    )
    ranked = await asked(api, "same-only")
    assert ranked["items"][0]["sourceId"] == "copy"
    inline = item("tool:1", REFORMATTED, **{"class": "documents", "trustTier": "tool-result"})
    for items in ([], [inline]):
        snapshot = await asked(api, items=items)
        assert "a" in source_ids(snapshot)
        assert [name for name, reason, _ in left_out(snapshot) if reason == "duplicate"] == ["copy"]


async def test_a_text_near_to_a_pin_or_to_a_trusted_inline_text_is_left_out(api: Api) -> None:
    await api.index(whole("a", LONG), whole("b", REFORMATTED))
    pinned = await asked(api, pins=[{"project": "booking", "sourceId": "b"}])
    assert source_ids(pinned) == ["b"]
    assert [name for name, _, _ in left_out(pinned)] == ["a"]
    brought = await asked(api, items=[item("task:1", LONG + " ", trustTier="user")])
    assert source_ids(brought) == ["task:1"]
    assert sorted(name for name, _, _ in left_out(brought)) == ["a", "b"]


async def test_a_text_that_the_caller_may_not_know_displaces_nothing(api: Api) -> None:
    await api.index(whole("b", REFORMATTED))
    request = question("cancel", strategy="near", scope={"maxClassification": "internal"})
    before = (await api.post(request)).content
    secret = {"classification": "restricted", "trustTier": "system-policy"}
    await api.index(whole("a", LONG, **secret), whole("a", LONG, project="z", **secret))
    after = await api.post(request, {"refresh": "true"})
    assert after.content == before
    assert source_ids(after.json()) == ["b"]


async def test_the_signature_is_stored_with_the_chunk(api: Api, owner: Database) -> None:
    await api.index(whole("a", LONG), whole("b", "too short to compare"))
    async with owner.transaction(api.tenant) as (connection, _):
        rows = await connection.exec_driver_sql(
            "SELECT s.source_id, c.signature FROM chunks c "
            "JOIN source_versions s USING (tenant_key, source_key)"
        )
        assert {row.source_id: row.signature for row in rows} == {"a": sign(LONG), "b": None}


async def test_the_report_says_how_rankings_became_one(api: Api) -> None:
    await api.index(whole("a", "cancel cancel"), whole("b", "cancel this"))
    by_score, by_rank = await asked(api, "by-score"), await asked(api, "near")
    assert source_ids(by_score) == source_ids(by_rank) == ["a", "b"]
    scores, ranks = await report_of(api, by_score), await report_of(api, by_rank)
    assert scores["fusion"] == {"method": "normalised-scores", "candidates": 2}
    assert digest_of(scores, "fusion") == fusion_digest(by_score, [2 * 10**9, 0])
    assert ranks["fusion"] == {"method": "reciprocal-rank", "k": 60, "candidates": 2}
