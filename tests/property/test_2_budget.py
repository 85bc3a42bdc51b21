"""Property 2: the budget holds, and the rendered context counted whole is `usedTokens`."""

import json
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.tokens import TiktokenCounter
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import WORDS, Caller, Json, requests, source_lists

_EVERYONE = Caller("ana", ["*"], [], None, "restricted")
_HOSTILE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
_ENDS = st.sampled_from(["", "\n", "\n\n", " ", "/", "//", "</", ">", "<", '"', "1", "  \n", "é"])


@st.composite
def _hostile_sources(draw: st.DrawFn) -> list[Json]:
    """Sources whose texts begin and end with what tokenizers merge across.

    Some are of so many sentences that they have to be shortened.
    """
    found = draw(source_lists(8))
    for source in found:
        for chunk in source["chunks"]:
            chunk["text"] = (
                draw(_ENDS)
                + draw(_HOSTILE)
                + " "
                + "。".join([chunk["text"]] * draw(st.sampled_from((1, 40))))
                + draw(_HOSTILE)
                + draw(_ENDS)
            )
    return found


@pytest.fixture(scope="module")
def counter() -> TiktokenCounter:
    return TiktokenCounter()


@sized(40, full=10_000)
@given(
    sources=_hostile_sources(),
    request=requests(_EVERYONE),
    tight=st.integers(1, 400),
    shortens=st.booleans(),
)
async def test_the_prompt_counted_whole_is_what_was_used(
    service: Service,
    counter: TiktokenCounter,
    sources: list[Json],
    request: Json,
    tight: int,
    shortens: bool,
) -> None:
    if shortens:
        request |= {"strategy": "documents", "scope": {}, "query": " ".join(WORDS)}
        tight += 150
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    request["budget"]["maxTokens"] = tight + request["budget"]["reservedForOutput"]
    answer = await service.assemble(tenant, _EVERYONE, request)
    assert answer.status_code == 201, answer.text
    snapshot = answer.json()
    budget = snapshot["budget"]
    assert budget["usedTokens"] == sum(item["tokens"] for item in snapshot["items"])
    assert budget["usedTokens"] + budget["reservedForOutput"] <= budget["maxTokens"]
    prompt = await service.get(tenant, f"/snapshots/{snapshot['hash']}/prompt")
    whole = _count(counter, prompt.text, budget)
    assert whole == budget["usedTokens"]


def _count(counter: TiktokenCounter, body: str, budget: dict[str, Any]) -> int:
    encoding = budget["encoding"]
    if budget["format"] == "text":
        return counter.count(body, encoding)
    return sum(
        3 + counter.count(message["role"], encoding) + counter.count(message["content"], encoding)
        for message in json.loads(body)["messages"]
    )


def test_the_counter_of_this_suite_agrees_with_plain_tiktoken(counter: TiktokenCounter) -> None:
    plain = tiktoken.Encoding(
        name="check",
        pat_str=r"(?s).+",
        mergeable_ranks={bytes([value]): value for value in range(256)},
        special_tokens={},
    )
    assert len(plain.encode_ordinary("abc")) == 3
    assert counter.count("hello world", "o200k_base") == 2
