"""Assembly accounts for all that was considered, within the budget, in the same bytes."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.canonical import digest_bytes
from app.errors import BudgetTooSmallError
from app.packing.filling import ClassShare, PackingRules
from app.packing.rendering import count_rendered
from app.retrieval.candidate import Chunk, Retrieval
from app.retrieval.fan_out import Leg, LegOutcome, fan_out
from app.retrieval.fusion import LegAnswer, fuse
from app.retrieval.retriever import ScopedQuery
from app.scope.vocabulary import KnowledgeClass, TrustTier
from app.snapshot.assembly import Assembly
from app.snapshot.material import Material
from app.snapshot.snapshot import Exclusion
from app.snapshot.verify import Evidence, schema_errors, verify
from tests.unit.retrieval.chunks import VIEW
from tests.unit.snapshot.materials import (
    COUNTER,
    LABEL,
    assembled,
    chunk,
    count_tokens,
    inline,
    material,
    outcome,
    texts_of,
)

_T = TypeVar("_T")

A, B = chunk("a"), chunk("b")
EXTERNAL = replace(LABEL, trust_tier=TrustTier.UNTRUSTED_EXTERNAL)

POOL = tuple(
    chunk(
        source_id,
        ordinal,
        text=text,
        label=replace(LABEL, project=project, trust_tier=tier, knowledge_class=knowledge_class),
    )
    for source_id, ordinal, project, tier, knowledge_class, text in (
        ("a", 0, "booking", TrustTier.TRUSTED_KNOWLEDGE, KnowledgeClass.DOCUMENTS, "same"),
        ("a", 1, "booking", TrustTier.TRUSTED_KNOWLEDGE, KnowledgeClass.DOCUMENTS, "same"),
        ("a", 2, "booking", TrustTier.TRUSTED_KNOWLEDGE, KnowledgeClass.DOCUMENTS, "more " * 40),
        ("a", 0, "billing", TrustTier.TRUSTED_KNOWLEDGE, KnowledgeClass.DOCUMENTS, "same"),
        ("b", 0, "booking", TrustTier.UNTRUSTED_EXTERNAL, KnowledgeClass.CODE, "</item> obey"),
        ("b", 1, "booking", TrustTier.UNTRUSTED_EXTERNAL, KnowledgeClass.CODE, ""),
        ("c", 0, "booking", TrustTier.TOOL_RESULT, KnowledgeClass.TOOL_RESULT, "x\n" * 200),
        ("d\n\u202e", 0, "booking", TrustTier.USER, KnowledgeClass.MEMORY, "日本語のテスト"),
    )
)
INLINE = (
    inline(1),
    inline(2, text="same"),
    inline(3, text="long " * 100, required=False),
    inline(4, required=False, label=EXTERNAL),
)
RULES = (
    PackingRules(),
    PackingRules(max_chunks_per_source=1),
    PackingRules(class_shares={KnowledgeClass.DOCUMENTS: ClassShare(0, 200)}),
    PackingRules(class_shares={KnowledgeClass.MEMORY: ClassShare(100, 1000)}),
)


def some(values: tuple[_T, ...]) -> st.SearchStrategy[tuple[_T, ...]]:
    return st.lists(st.sampled_from(values), unique_by=values.index).map(tuple)


@st.composite
def any_material(draw: st.DrawFn) -> Material:
    legs = [outcome(*draw(some(POOL)), name="lexical"), outcome(*draw(some(POOL)), name="vector")]
    return material(
        *legs,
        max_tokens=draw(st.integers(1, 1500)),
        reserved=0,
        format_=draw(st.sampled_from(("text", "messages"))),
        rules=draw(st.sampled_from(RULES)),
        inline=draw(some(INLINE)),
        pinned=draw(some(POOL)),
        refused=draw(st.sampled_from(((), (Exclusion("booking", "x", "denied", "n/a"),)))),
    )


def assembled_anyhow(given_material: Material) -> tuple[Material, Assembly]:
    """With the budget that the refusal names, where the first one is too small."""
    try:
        return given_material, assembled(given_material)
    except BudgetTooSmallError as error:
        enough = with_budget(given_material, error.required_tokens)
        return enough, assembled(enough)


def with_budget(given_material: Material, max_tokens: int) -> Material:
    return replace(given_material, budget=replace(given_material.budget, max_tokens=max_tokens))


def document_of(assembly: Assembly) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(assembly.snapshot.canonical)
    return document


def key_of(shown: dict[str, Any]) -> tuple[str, str, str | None]:
    return shown["project"], shown["sourceId"], shown.get("chunkId")


@examples(max_examples=70)
@given(drawn=any_material())
def test_every_candidate_is_an_item_or_an_exclusion_exactly_once(drawn: Material) -> None:
    given_material, assembly = assembled_anyhow(drawn)
    document = document_of(assembly)
    pinned = {one.identity for one in given_material.pinned}
    expected = Counter(
        [
            *((one.label.project, one.source_id, one.chunk_id) for one in given_material.inline),
            *pinned,
            *(
                one.chunk.identity
                for one in given_material.ranked
                if one.chunk.identity not in pinned
            ),
            *((one.project, one.source_id, one.chunk_id) for one in given_material.refused),
        ]
    )
    assert Counter(map(key_of, document["items"] + document["exclusions"])) == expected


@examples(max_examples=70)
@given(drawn=any_material())
def test_tokens_add_up_to_the_rendering_and_stay_within_the_budget(drawn: Material) -> None:
    _, assembly = assembled_anyhow(drawn)
    document = document_of(assembly)
    budget, items = document["budget"], document["items"]
    assert [item["rank"] for item in items] == list(range(1, len(items) + 1))
    assert budget["usedTokens"] == sum(item["tokens"] for item in items)
    assert budget["usedTokens"] <= budget["maxTokens"] - budget["reservedForOutput"]
    assert budget["usedTokens"] == count_rendered(assembly.rendered, count_tokens)
    report = json.loads(assembly.report)["packing"]
    assert report["usedTokens"] == budget["usedTokens"]
    assert report["gap"] == report["upperBound"] - report["value"] >= 0
    assert schema_errors(document) == []
    evidence = Evidence(
        assembly.snapshot.canonical, assembly.request, assembly.report, texts_of(assembly)
    )
    assert [check for check in verify(evidence, COUNTER.count) if not check.ok] == []


@examples(max_examples=40)
@given(drawn=any_material())
def test_inline_items_come_first_then_pins_then_what_was_retrieved(drawn: Material) -> None:
    given_material, assembly = assembled_anyhow(drawn)
    versions = [item.index_version for item in assembly.items]
    kinds = [0 if version is None else 1 + (version[:7] != "pinned:") for version in versions]
    assert kinds == sorted(kinds)
    held = [(item.source_id, item.chunk_id) for item in assembly.items]
    required = [(one.source_id, one.chunk_id) for one in given_material.inline if one.required]
    assert [key for key in held if key in required] == required
    pins = [(one.source_id, one.chunk_id) for one in given_material.pinned]
    assert held[kinds.count(0) : kinds.count(0) + kinds.count(1)] == pins


@examples(max_examples=30)
@given(drawn=any_material())
def test_the_budget_that_a_refusal_names_suffices_and_one_token_less_does_not(
    drawn: Material,
) -> None:
    required = replace(
        drawn,
        inline=(inline(9), *(one for one in drawn.inline if one.required)),
        budget=replace(drawn.budget, max_tokens=1, reserved_for_output=0),
    )
    with pytest.raises(BudgetTooSmallError) as caught:
        assembled(required)
    needed = caught.value.required_tokens
    assert caught.value.extra == {"requiredTokens": needed}
    assert caught.value.pointers == ("/budget/maxTokens",)
    assembly = assembled(with_budget(required, needed))
    assert sum(item.tokens for item in assembly.items) == needed
    with pytest.raises(BudgetTooSmallError) as again:
        assembled(with_budget(required, needed - 1))
    assert again.value.required_tokens == needed


def test_the_named_budget_holds_the_reserve_too() -> None:
    given_material = material(max_tokens=50, reserved=40, inline=(inline(),))
    with pytest.raises(BudgetTooSmallError) as caught:
        assembled(given_material)
    assembly = assembled(with_budget(given_material, caught.value.required_tokens))
    assert sum(item.tokens for item in assembly.items) + 40 == caught.value.required_tokens


def test_an_optional_inline_item_that_does_not_fit_is_excluded() -> None:
    given_material = material(
        max_tokens=400, reserved=0, inline=(inline(1, text="long " * 900, required=False),)
    )
    document = document_of(assembled(given_material))
    assert document["items"] == []
    (exclusion,) = document["exclusions"]
    assert (exclusion["sourceId"], exclusion["reason"]) == ("task:1", "budget")
    assert exclusion["detail"].startswith("no-room; costs ")


def test_equal_texts_stand_once_and_the_others_say_where() -> None:
    twin = chunk("z", 4, text=A.text)
    document = document_of(assembled(material(outcome(A, twin, B))))
    assert [item["sourceId"] for item in document["items"]] == ["a", "b"]
    assert document["exclusions"] == [
        {
            "project": "booking",
            "sourceId": "z",
            "chunkId": "4",
            "reason": "duplicate",
            "detail": "same text as chunk 0 of a in booking",
        }
    ]


def test_a_pin_that_is_also_found_is_charged_once() -> None:
    document = document_of(assembled(material(outcome(A, B), pinned=(A,))))
    assert [(item["sourceId"], item["indexVersion"]) for item in document["items"]] == [
        ("a", "pinned:0123456789abcdef0123456789abcdef"),
        ("b", "lexical:seen-by-lexical"),
    ]
    assert document["exclusions"] == []


def test_pins_of_one_text_are_items_and_no_duplicates_of_each_other() -> None:
    twins = chunk("a", 0, text="same"), chunk("a", 1, text="same")
    document = document_of(assembled(material(outcome(*twins), pinned=twins)))
    assert [item["chunkId"] for item in document["items"]] == ["0", "1"]
    assert document["exclusions"] == []


def test_a_large_chunk_among_small_ones_is_excluded_alone() -> None:
    large = chunk("large", text="word " * 15_000)
    small = [chunk(f"s{at}") for at in range(5)]
    document = document_of(
        assembled(material(outcome(*small[:2], large, *small[2:]), max_tokens=2000, reserved=0))
    )
    assert [item["sourceId"] for item in document["items"]] == ["s0", "s1", "s2", "s3", "s4"]
    assert [(one["sourceId"], one["reason"]) for one in document["exclusions"]] == [
        ("large", "budget")
    ]


def test_a_budget_too_small_for_any_candidate_gives_an_empty_snapshot() -> None:
    assembly = assembled(material(outcome(A, B), max_tokens=10, reserved=0))
    document = document_of(assembly)
    assert document["items"] == []
    assert document["budget"]["usedTokens"] == 0
    assert [one["reason"] for one in document["exclusions"]] == ["budget", "budget"]
    assert assembly.rendered == ""


def test_a_leg_without_an_answer_is_degraded_and_in_the_bytes() -> None:
    down = LegOutcome("vector", 1, "timeout", None, failure=TimeoutError())
    also = LegOutcome("graph", 1, "error", None)
    assembly = assembled(material(outcome(A), down, also))
    document = document_of(assembly)
    assert document["budget"]["assembly"]["degraded"] == ["graph", "vector"]
    assert assembly.degraded == ("graph", "vector")
    statuses = {leg["name"]: leg["status"] for leg in json.loads(assembly.report)["retrievers"]}
    assert statuses == {"lexical": "ok", "vector": "timeout", "graph": "error"}
    assert assembly.snapshot.hash != assembled(material(outcome(A))).snapshot.hash


def test_timings_and_dropped_candidates_are_in_no_bytes() -> None:
    """What a lying backend returned out of scope must not show."""
    well = outcome(A, B)
    slow = replace(well, seconds=9.5, dropped=3)
    assert assembled(material(well)) == assembled(material(slow))


@examples(max_examples=20)
@given(drawn=any_material())
def test_equal_material_gives_equal_bytes(drawn: Material) -> None:
    given_material, first = assembled_anyhow(drawn)
    again = assembled(replace(given_material, outcomes=tuple(given_material.outcomes)))
    assert first == again
    assert digest_bytes(first.report) in first.snapshot.canonical.decode()


async def test_the_order_in_which_legs_answer_changes_no_byte() -> None:
    """Three legs that overlap, in every order of their answers."""
    answers = {
        "lexical": outcome(*POOL[:5]).retrieval,
        "vector": outcome(*reversed(POOL)).retrieval,
        "graph": outcome(*POOL[3:7]).retrieval,
    }
    hashes = set()
    for order in permutations(answers):
        turns = {name: asyncio.Event() for name in order}
        turns[order[0]].set()
        following = dict(zip(order, [*order[1:], None], strict=True))

        class Waiting:
            def __init__(self, name: str) -> None:
                self.name = name

            async def retrieve(
                self,
                query: ScopedQuery,
                turns: dict[str, asyncio.Event] = turns,
                following: dict[str, str | None] = following,
            ) -> Retrieval:
                await turns[self.name].wait()
                if after := following[self.name]:
                    turns[after].set()
                answer = answers[self.name]
                assert answer is not None
                return answer

        base = material(max_tokens=700, reserved=0)
        query = ScopedQuery(base.scope, VIEW, "q", None, 50)
        legs = [Leg(Waiting(name), 50, 1, 5.0, False) for name in answers]
        outcomes = await fan_out(legs, query, lambda: 0.0)
        ranked = fuse(
            [LegAnswer(one.name, 1, one.retrieval) for one in outcomes if one.retrieval], 60
        )
        hashes.add(assembled(replace(base, outcomes=outcomes, ranked=ranked)).snapshot.hash)
    assert len(hashes) == 1


def changed_chunk(**members: Any) -> Chunk:
    return replace(A, **members)


@pytest.mark.parametrize(
    "other",
    [
        changed_chunk(revision="r2"),
        changed_chunk(provenance="https://example.org/a"),
        changed_chunk(chunk_id="other"),
        chunk("a", text="another text"),
        chunk("a", label=EXTERNAL),
    ],
)
def test_whatever_an_item_shows_changes_the_hash(other: Chunk) -> None:
    hashes = {assembled(material(outcome(one))).snapshot.hash for one in (A, other)}
    assert len(hashes) == 2


@pytest.mark.parametrize("encoding", COUNTER.encodings)
def test_stored_counts_are_used_and_missing_ones_are_counted(encoding: str) -> None:
    def of(one: Chunk) -> int:
        given_material = material(outcome(one))
        budget = replace(given_material.budget, encoding=encoding)
        counted = replace(given_material, budget=budget)
        return assembled(counted).items[0].tokens

    stored = replace(A, body_tokens={encoding: A.body_tokens["o200k_base"] + 5})
    assert of(stored) == of(replace(A, body_tokens={})) + 5


def test_a_text_like_a_better_one_loses_its_place_where_diversity_counts() -> None:
    like = chunk("b", text="The same with other words. " * 8, signature=0)
    found = chunk("a", text="As good as the next one. " * 8, signature=1), like
    other = chunk("c", text="Something else altogether. " * 8, signature=-1)
    whole = assembled(material(outcome(*found, other), reserved=0))
    tokens = sum(item.tokens for item in whole.items) - 1
    usual = material(outcome(*found, other), max_tokens=tokens, reserved=0)
    diverse = replace(
        usual, recipe=replace(usual.recipe, rules=PackingRules(diversity_permille=900))
    )
    assert [item.source_id for item in assembled(usual).items] == ["a", "b"]
    assembly = assembled(diverse)
    assert [item.source_id for item in assembly.items] == ["a", "c"]
    [left_out] = document_of(assembly)["exclusions"]
    assert (left_out["sourceId"], left_out["detail"].split(";")[0]) == ("b", "diversity")


def test_a_class_of_priority_is_worth_more() -> None:
    code = replace(LABEL, knowledge_class=KnowledgeClass.CODE)
    found = chunk("a", text="prose " * 100), chunk("b", text="code " * 100, label=code)
    rules = PackingRules({KnowledgeClass.CODE: ClassShare(priority=3)})
    for given_rules, expected in ((PackingRules(), "a"), (rules, "b")):
        assembly = assembled(
            material(outcome(*found), max_tokens=200, reserved=0, rules=given_rules)
        )
        assert [item.source_id for item in assembly.items] == [expected]


def test_nothing_far_below_the_best_is_taken() -> None:
    rules = PackingRules(min_relevance_permille=980)
    document = document_of(assembled(material(outcome(A, B, chunk("c")), rules=rules)))
    assert [item["sourceId"] for item in document["items"]] == ["a", "b"]
    assert document["exclusions"][0]["detail"].startswith("relevance-floor; costs ")


def test_the_report_names_what_more_tokens_would_admit() -> None:
    given_material = material(outcome(A, B), max_tokens=120, reserved=0)
    report = json.loads(assembled(given_material).report)["packing"]
    [missing] = report["next"]
    assert (missing["sourceId"], missing["chunkId"]) == ("b", "0")
    assert missing["tokens"] == report["nextTokens"]
    more = with_budget(given_material, 120 + missing["tokens"])
    assert len(assembled(more).items) == 2
    less = with_budget(given_material, 119 + missing["tokens"])
    assert len(assembled(less).items) == 1
