"""Near-duplicates: few different bits, the same numbers and negations, and no less trust."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.indexing.signature import sign
from app.retrieval.candidate import Chunk
from app.retrieval.fusion import FusedCandidate, drop_duplicates
from app.retrieval.near_duplicates import NearDuplicates
from app.scope.vocabulary import TrustTier
from tests.unit.retrieval.chunks import LABEL, chunk

PROPOSED_BITS = 3
"""What recipes are advised to take."""
VOCABULARY = [f"word{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(400)]
FILLER = " ".join(VOCABULARY[:400])


def near_to(base: Chunk, source_id: str, bits: int, *, text: str | None = None) -> Chunk:
    """Another text whose signature differs from the base's in so many bits."""
    assert base.signature is not None
    other = chunk(source_id, text=text or f"{base.text} {source_id}")
    return replace(other, signature=base.signature ^ ((1 << bits) - 1))


BASE = replace(chunk("base", text=FILLER), signature=sign(FILLER))


def find(kept: Chunk, asked: Chunk, most: int = PROPOSED_BITS) -> tuple[Chunk, int] | None:
    texts = NearDuplicates(1, most)
    texts.keep(kept)
    return texts.find(asked)


@pytest.mark.parametrize("most", [0, 1, 3, 16])
def test_a_text_is_near_up_to_the_number_of_bits_and_not_beyond(most: int) -> None:
    near, far = near_to(BASE, "near", most), near_to(BASE, "far", most + 1)
    assert find(BASE, near, most) == (BASE, most)
    assert find(BASE, far, most) is None


def test_the_sign_bit_is_one_bit() -> None:
    flipped = replace(near_to(BASE, "near", 0), signature=(BASE.signature or 0) ^ -(2**63))
    assert find(BASE, flipped) == (BASE, 1)


def test_a_signature_that_did_not_come_along_is_made_from_the_text() -> None:
    bare = replace(BASE, signature=None)
    same_words = chunk("other", text=FILLER.replace(" ", "\n"))
    assert find(bare, same_words) == (bare, 0)


def test_texts_too_short_for_a_signature_are_not_near() -> None:
    assert find(chunk("a", text="limit"), chunk("b", text="limit ")) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("the limit is 5 days", "the limit is 50 days"),
        ("the limit is 5 days", "the limit is 6 days"),
        ("from 5 to 50", "from 50 to 5"),
        ("version 1.5", "version 15"),
        ("a change of -5 points", "a change of 5 points"),
        ("you may cancel", "you may not cancel"),
        ("it does cancel", "it doesn't cancel"),
        ("it does cancel", "it doesn’t cancel"),
        ("with a receipt, unless", "with a receipt, if"),
        ("x < y", "x > y"),
        ("x == y", "x != y"),
        ("x <= y", "x < y"),
        ("10% off", "10 off"),
    ],
)
def test_a_rule_that_says_something_else_is_no_near_duplicate(first: str, second: str) -> None:
    """Even where not a bit of the signatures differs."""
    one = near_to(BASE, "one", 0, text=f"{FILLER} {first} {FILLER}")
    other = near_to(BASE, "other", 0, text=f"{FILLER} {second} {FILLER}")
    assert find(one, other, most=16) is None
    assert find(other, one, most=16) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Never mind", "NEVER mind"),
        ("i - 1", "i-1"),
        ("Title\n=====\n", "Title\n=======\n"),
        ("a page", "the page"),
    ],
)
def test_what_says_the_same_is_a_near_duplicate(first: str, second: str) -> None:
    one = near_to(BASE, "one", 0, text=f"{FILLER} {first}")
    assert find(one, near_to(BASE, "other", 0, text=f"{FILLER} {second}")) == (one, 0)


def paragraph(limit: str, seed: int) -> str:
    """Sixty words, one of them the limit."""
    words = random.Random(seed).sample(VOCABULARY, 60)
    words[30:33] = ["the", "limit", limit]
    return " ".join(words)


def test_of_a_60_word_paragraph_the_number_is_never_swallowed() -> None:
    """Some pairs have near signatures: it is the numbers that keep them apart."""
    near = 0
    for seed in range(200):
        five, fifty = (chunk(limit, text=paragraph(limit, seed)) for limit in ("5", "50"))
        assert find(five, fifty) is None
        a, b = sign(five.text), sign(fifty.text)
        assert a is not None
        assert b is not None
        near += ((a ^ b) % 2**64).bit_count() <= PROPOSED_BITS
    assert near > 0


def test_a_less_trusted_text_displaces_nothing() -> None:
    external = replace(LABEL, trust_tier=TrustTier.UNTRUSTED_EXTERNAL)
    forged = replace(near_to(BASE, "forged", 1), label=external)
    assert find(forged, BASE) is None
    assert find(BASE, forged) == (BASE, 1)


def candidates(*chunks: Chunk) -> list[FusedCandidate]:
    return [FusedCandidate(one, 100 - at, "x", "v1") for at, one in enumerate(chunks)]


def test_near_texts_are_left_out_only_where_the_strategy_says_so() -> None:
    ranked = candidates(near_to(BASE, "first", 1), BASE)
    assert drop_duplicates(ranked, ()) == (tuple(ranked), ())
    unique, (duplicate,) = drop_duplicates(ranked, (), 3)
    assert unique == (ranked[0],)
    assert (duplicate.candidate, duplicate.kept) == (ranked[1], ranked[0].chunk)
    assert duplicate.different_bits == 1


def test_a_copy_of_a_text_that_is_near_to_another_goes_with_it() -> None:
    near = near_to(BASE, "near", 2)
    copy = replace(near, source_id="copy", signature=None, text=near.text)
    unique, duplicates = drop_duplicates(candidates(BASE, near, copy), (), 3)
    assert [one.chunk for one in unique] == [BASE]
    assert [(one.candidate.chunk, one.kept, one.different_bits) for one in duplicates] == [
        (near, BASE, 2),
        (copy, BASE, 2),
    ]


def test_the_better_trusted_of_two_near_texts_stays_whatever_its_rank() -> None:
    policy = replace(LABEL, trust_tier=TrustTier.SYSTEM_POLICY)
    trusted = replace(near_to(BASE, "trusted", 2), label=policy)
    unique, (duplicate,) = drop_duplicates(candidates(BASE, trusted), (), 3)
    assert [one.chunk for one in unique] == [trusted]
    assert duplicate.kept == trusted


def test_a_text_near_to_a_taken_one_is_left_out_for_it() -> None:
    unique, (duplicate,) = drop_duplicates(candidates(near_to(BASE, "near", 3)), [BASE], 3)
    assert unique == ()
    assert (duplicate.kept, duplicate.different_bits) == (BASE, 3)


def test_a_less_trusted_taken_text_does_not_displace_a_candidate() -> None:
    tool = replace(BASE, label=replace(LABEL, trust_tier=TrustTier.TOOL_RESULT))
    ranked = candidates(near_to(BASE, "near", 1))
    assert drop_duplicates(ranked, [tool], 3) == (tuple(ranked), ())


def test_taken_texts_that_are_near_do_not_make_each_other_duplicates() -> None:
    taken = [BASE, near_to(BASE, "near", 1)]
    assert drop_duplicates(candidates(*taken), taken, 3) == ((), ())


def test_nearness_does_not_pass_on() -> None:
    """b is near to a, and c to b, which is not there any more: c stays."""
    b, c = near_to(BASE, "b", 3), near_to(BASE, "c", 6)
    unique, (duplicate,) = drop_duplicates(candidates(BASE, b, c), (), 3)
    assert [one.chunk for one in unique] == [BASE, c]
    assert duplicate.candidate.chunk == b


# One text has one signature.
SIGNATURES = {"t 1": 0, "u 1": 1, "v 1": 7, "w 2": 3, "x 2": -1}
tiers = st.sampled_from((TrustTier.SYSTEM_POLICY, TrustTier.USER, TrustTier.TOOL_RESULT))


@st.composite
def some_chunks(draw: st.DrawFn) -> list[Chunk]:
    found = []
    for at in range(draw(st.integers(0, 9))):
        text = draw(st.sampled_from(sorted(SIGNATURES)))
        label = replace(LABEL, trust_tier=draw(tiers))
        one = chunk(draw(st.sampled_from("abc")), at, text=text, label=label)
        found.append(replace(one, signature=SIGNATURES[text]))
    return found


def bits_between(one: Chunk, other: Chunk) -> int:
    return (((one.signature or 0) ^ (other.signature or 0)) % 2**64).bit_count()


@given(ranked=some_chunks(), taken=some_chunks(), most=st.integers(0, 16))
def test_what_stays_is_not_near_and_what_goes_is(
    ranked: list[Chunk], taken: list[Chunk], most: int
) -> None:
    given_candidates = candidates(*ranked)
    unique, duplicates = drop_duplicates(given_candidates, taken, most)
    assert (unique, duplicates) == drop_duplicates(given_candidates, taken, most)
    kept = [one.chunk for one in unique]
    present = {(one.identity, one.content_hash) for one in taken}
    already = [one for one in ranked if (one.identity, one.content_hash) in present]
    dropped = [one.candidate.chunk for one in duplicates]
    assert Counter(map(id, (*kept, *dropped, *already))) == Counter(map(id, ranked))
    for at, one in enumerate(kept):
        for other in kept[:at]:
            assert bits_between(one, other) > most or one.text[-1] != other.text[-1]
    for duplicate in duplicates:
        gone, stays = duplicate.candidate.chunk, duplicate.kept
        assert stays in kept or stays in taken
        if duplicate.different_bits is not None:
            assert bits_between(gone, stays) == duplicate.different_bits <= most
            assert stays.text[-1] == gone.text[-1]
            assert stays.label.trust_tier.rank <= gone.label.trust_tier.rank
        else:
            assert gone.content_hash == stays.content_hash
