"""A candidate that the rest of the room is too small for comes in as its nearest sentences."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.adapters.tokens import TiktokenCounter
from app.canonical import digest_text
from tests.api.service import Api, Json, chunks, question, source
from tests.recipes import calling

RECIPES = {
    "shortening": "retrievers: [{name: lexical}]\npacking: {compression: {minPermille: 10}}",
    "whole-only": "retrievers: [{name: lexical}]",
    "long-only": "retrievers: [{name: lexical}]\npacking: {compression: {minPermille: 900}}",
    "little-code": (
        "retrievers: [{name: lexical}]\n"
        "packing: {classShares: {code: {maxPermille: 300}}, compression: {minPermille: 10}}"
    ),
    "one-each": (
        "retrievers: [{name: lexical}]\n"
        "packing: {maxChunksPerSource: 1, compression: {minPermille: 10}}"
    ),
}
FILLER = [
    f"The weather of day {day} was mild and the harbour was calm all day." for day in range(40)
]
LONG = " ".join([*FILLER[:20], "Refunds take five days.", *FILLER[20:], "A refund is free."])
KEPT = "Refunds take five days. … A refund is free."


GUIDE = source("guide.md", chunks=chunks(LONG))


@pytest.fixture
async def client(running: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(running) as opened:
        yield opened


def asked(max_tokens: int, strategy: str = "shortening", **members: Any) -> Json:
    return question(
        "refund",
        strategy=strategy,
        budget={"maxTokens": max_tokens, "reservedForOutput": 0},
        **members,
    )


async def test_what_does_not_fit_comes_in_shortened_and_is_told_so(api: Api) -> None:
    await api.index(GUIDE)
    whole = await api.assemble(asked(4_000))
    snapshot = await api.assemble(asked(200))
    (item,), (full,) = snapshot["items"], whole["items"]
    assert item["compressed"] is True
    assert item["originalTokens"] == full["tokens"]
    assert item["tokens"] < 200 < item["originalTokens"]
    assert item["contentHash"] == digest_text(KEPT)
    assert snapshot["exclusions"] == []
    assert not {"compressed", "originalTokens"} & full.keys()
    (told,) = (await api.read(f"/snapshots/{snapshot['hash']}/report"))["report"]["compression"][
        "items"
    ]
    assert (told["originalTokens"], told["tokens"]) == (item["originalTokens"], item["tokens"])
    assert told["originalHash"] == full["contentHash"] == digest_text(LONG)
    assert [LONG[start:end] for start, end in told["spans"]] == KEPT.split(" … ")


@pytest.mark.parametrize("format_", ["text", "messages"])
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
async def test_the_prompt_counted_whole_is_what_was_used_and_everything_verifies(
    api: Api, format_: str, encoding: str
) -> None:
    await api.index(GUIDE, source("short.md", "Refund whom?"))
    request = asked(250)
    request["budget"] |= {"format": format_, "encoding": encoding}
    snapshot = await api.assemble(request)
    assert [item.get("compressed", False) for item in snapshot["items"]] in (
        [True, False],
        [False, True],
    )
    ref, count = f"/snapshots/{snapshot['hash']}", TiktokenCounter().count
    prompt = await api.get(f"{ref}/prompt")
    messages = prompt.json()["messages"] if format_ == "messages" else []
    assert KEPT in (messages[0]["content"] if messages else prompt.text)
    counted = count(prompt.text, encoding) if not messages else 0
    for one in messages:
        counted += 3 + count(one["role"], encoding) + count(one["content"], encoding)
    assert counted == snapshot["budget"]["usedTokens"] <= 250
    contents = (await api.read(f"{ref}/contents"))["contents"]
    assert {one["text"] for one in contents} == {KEPT, "Refund whom?"}
    verified = await api.read(f"{ref}/verify")
    assert verified["ok"] is True, verified
    replay = await api.client.post(f"{ref}/replay", headers=api.headers())
    assert replay.json() == {"match": True, "hash": snapshot["hash"]}


async def test_without_the_rule_and_below_the_floor_it_is_left_out(api: Api) -> None:
    await api.index(GUIDE)
    for strategy in ("whole-only", "long-only"):
        snapshot = await api.assemble(asked(200, strategy))
        assert snapshot["items"] == []
        assert [one["reason"] for one in snapshot["exclusions"]] == ["budget"]
        assert snapshot["exclusions"][0]["detail"].startswith("no-room")


async def test_shares_and_caps_hold_for_shortened_texts_too(api: Api) -> None:
    await api.index(GUIDE, source("a.py", chunks=chunks(LONG + " More."), class_="code"))
    snapshot = await api.assemble(asked(300, "little-code"))
    assert [(one["class"], one["compressed"]) for one in snapshot["items"]] == [("documents", True)]
    assert [one["sourceId"] for one in snapshot["exclusions"]] == ["a.py"]

    await api.index(source("parts.md", chunks=chunks("A refund.", LONG)), source("a.py", "x"))
    snapshot = await api.assemble(asked(400, "one-each"))
    shown = [(one["sourceId"], one["chunkId"]) for one in snapshot["items"]]
    assert ("parts.md", "0") in shown
    assert ("parts.md", "1") not in shown


async def test_what_a_request_names_is_never_shortened(api: Api) -> None:
    await api.index(GUIDE)
    pin = {"project": "booking", "sourceId": "guide.md", "required": False}
    snapshot = await api.assemble(asked(200, pins=[pin]))
    assert snapshot["items"] == []


async def test_erasing_the_source_leaves_nothing_of_a_shortened_text(api: Api) -> None:
    await api.index(GUIDE)
    snapshot = await api.assemble(asked(200))
    gone = await api.client.delete(
        "/sources",
        params={"project": "booking", "sourceId": "guide.md", "erase": "true"},
        headers=api.headers(),
    )
    assert gone.is_success, gone.text
    ref = f"/snapshots/{snapshot['hash']}"
    (content,) = (await api.read(f"{ref}/contents"))["contents"]
    assert (content["text"], content["erased"]) == (None, True)
    assert (await api.get(f"{ref}/prompt")).json()["code"] == "content-erased"
    for part in (ref, f"{ref}/report", f"{ref}/contents"):
        assert "Refunds take" not in (await api.get(part)).text
    assert (await api.read(f"{ref}/verify"))["ok"] is True


async def test_a_smaller_budget_changes_an_item_by_shortening_it(api: Api) -> None:
    await api.index(GUIDE)
    whole, less = [await api.assemble(asked(tokens)) for tokens in (4_000, 200)]
    found = await api.read(f"/snapshots/{whole['hash']}/diff/{less['hash']}")
    assert [one["sourceId"] for one in found["items"]["changed"]] == ["guide.md"]
    assert [one["cause"] for one in found["causes"]] == ["budget"]


async def test_code_is_shortened_by_its_media_type_or_class(api: Api) -> None:
    body = "\n\n".join(f"    weather_{day} = calm(harbour, {day})" for day in range(80))
    code = f'def pay(order):\n    """Make a refund."""\n{body}\n'
    await api.index(
        source("a.py", chunks=chunks(code), class_="code"),
        source("b.txt", chunks=chunks(code + "    return refund\n"), mediaType="text/x-python"),
    )
    snapshot = await api.assemble(asked(400))
    contents = (await api.read(f"/snapshots/{snapshot['hash']}/contents"))["contents"]
    texts = {one["text"] for one in contents}
    signature = 'def pay(order):\n    """Make a refund."""'
    assert signature in texts
    assert any(text.startswith(signature + "\n…\n") for text in texts)
