"""Packing keeps within every bound, passes over what does not fit, and tells the truth."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.packing.filling import ClassShare, Entry, PackingRules
from app.packing.packer import Packing, pack, required_tokens
from app.scope.vocabulary import KnowledgeClass, TrustTier

CODE, DOCUMENTS = KnowledgeClass.CODE, KnowledgeClass.DOCUMENTS
USER, AGENT = TrustTier.USER, TrustTier.AGENT
FREE = dict.fromkeys(TrustTier, 0)
ENVELOPES = {tier: 10 + tier.rank for tier in TrustTier}
OPEN = PackingRules()


def entry(cost: int, value: int = 1, **members: object) -> Entry:
    usual = Entry(cost, value, USER, DOCUMENTS, "s")
    return replace(usual, **members)  # type: ignore[arg-type]


def test_everything_fits_in_a_budget_that_is_just_enough() -> None:
    packing = pack([entry(30), entry(70)], 100, FREE, OPEN)
    assert packing == Packing(
        chosen=(0, 1), left_out={}, used_tokens=100, value=2, upper_bound=2, next_tokens=None
    )


def test_one_token_less_leaves_the_last_out_and_says_what_is_missing() -> None:
    packing = pack([entry(30), entry(70)], 99, FREE, OPEN)
    assert packing.chosen == (0,)
    assert packing.left_out == {1: "no-room"}
    assert packing.next_tokens == 1


def test_an_entry_of_15000_tokens_among_five_small_ones_is_passed_over() -> None:
    small = [entry(100 + at, 10 - at) for at in range(5)]
    for place in range(6):
        entries = [*small[:place], entry(15_000, 100), *small[place:]]
        packing = pack(entries, 2_000, ENVELOPES, OPEN)
        assert packing.chosen == tuple(at for at in range(6) if at != place)
        assert packing.left_out == {place: "no-room"}
        free = 2_000 - packing.used_tokens
        assert packing.next_tokens == 15_000 - free


def test_a_pack_of_nothing_costs_nothing() -> None:
    assert pack([], 100, ENVELOPES, OPEN) == Packing((), {}, 0, 0, 0, None)
    packing = pack([entry(5)], 0, FREE, OPEN)
    assert (packing.chosen, packing.used_tokens, packing.next_tokens) == ((), 0, 5)


def test_the_envelope_is_charged_once_for_each_tier() -> None:
    entries = [
        entry(10),
        entry(10),
        entry(10, tier=AGENT),
        entry(10, tier=AGENT),
        entry(10, tier=TrustTier.UNTRUSTED_EXTERNAL),
    ]
    packing = pack(entries, 1_000, ENVELOPES, OPEN)
    opened = (USER, AGENT, TrustTier.UNTRUSTED_EXTERNAL)
    assert packing.used_tokens == 50 + sum(ENVELOPES[tier] for tier in opened)


def test_an_entry_that_fits_only_without_its_envelope_is_left_out() -> None:
    assert pack([entry(90)], 90 + ENVELOPES[USER] - 1, ENVELOPES, OPEN).chosen == ()
    assert pack([entry(90)], 90 + ENVELOPES[USER], ENVELOPES, OPEN).chosen == (0,)


def test_an_envelope_that_is_paid_lets_a_later_entry_in() -> None:
    entries = [entry(50, required=True), entry(10)]
    assert pack(entries, 60 + ENVELOPES[USER], ENVELOPES, OPEN).chosen == (0, 1)


def test_required_entries_come_first_whatever_their_place_and_worth() -> None:
    entries = [entry(60, 9), entry(60, 0, required=True)]
    packing = pack(
        entries, 100, FREE, replace(OPEN, min_relevance_permille=5, max_chunks_per_source=1)
    )
    assert packing.chosen == (1,)
    assert packing.left_out == {0: "no-room"}
    assert packing.value == 0


def test_required_tokens_counts_required_entries_and_their_envelopes_alone() -> None:
    entries = [entry(5, required=True), entry(7, required=True), entry(1_000)]
    assert required_tokens(entries, ENVELOPES) == 12 + ENVELOPES[USER]
    assert required_tokens([entry(1_000)], ENVELOPES) == 0


def test_nothing_below_the_floor_is_taken_just_to_fill_up() -> None:
    packing = pack(
        [entry(10, 5, relevance=500), entry(10, 4, relevance=499)],
        1_000,
        FREE,
        replace(OPEN, min_relevance_permille=500),
    )
    assert packing.chosen == (0,)
    assert packing.left_out == {1: "relevance-floor"}
    assert packing.next_tokens is None


def test_a_source_gives_no_more_chunks_than_its_cap() -> None:
    entries = [entry(1), entry(1), entry(1), entry(1, source="other")]
    packing = pack(entries, 1_000, FREE, replace(OPEN, max_chunks_per_source=2))
    assert packing.chosen == (0, 1, 3)
    assert packing.left_out == {2: "source-cap"}


def test_a_passed_over_entry_does_not_count_against_its_source() -> None:
    entries = [entry(1_000), entry(1), entry(1)]
    packing = pack(entries, 100, FREE, replace(OPEN, max_chunks_per_source=2))
    assert packing.chosen == (1, 2)
    assert packing.left_out == {0: "source-cap"}


def shares(**permille: tuple[int, int]) -> PackingRules:
    return PackingRules(
        class_shares={
            KnowledgeClass(name): ClassShare(*bounds) for name, bounds in permille.items()
        }
    )


def test_a_class_takes_no_more_than_its_share() -> None:
    code = [entry(10, 9, knowledge_class=CODE) for _ in range(5)]
    packing = pack([*code, entry(70)], 100, FREE, shares(code=(0, 300)))
    assert packing.chosen == (0, 1, 2, 5)
    assert packing.left_out == {3: "class-share", 4: "class-share"}
    assert packing.next_tokens is None


def test_a_class_gets_its_minimum_before_better_entries_of_others() -> None:
    entries = [entry(100, 9), entry(30, 1, knowledge_class=CODE)]
    assert pack(entries, 100, FREE, OPEN).chosen == (0,)
    packing = pack(entries, 100, FREE, shares(code=(200, 1000)))
    assert packing.chosen == (1,)
    assert packing.left_out == {0: "no-room"}


def test_a_minimum_that_has_been_reached_reserves_nothing_more() -> None:
    code = [entry(20, 1, knowledge_class=CODE) for _ in range(3)]
    packing = pack([entry(60, 9), *code], 100, FREE, shares(code=(400, 1000)))
    assert packing.chosen == (0, 1, 2)


def test_a_minimum_without_entries_of_the_class_wastes_nothing() -> None:
    assert pack([entry(100)], 100, FREE, shares(code=(1000, 1000))).chosen == (0,)


def test_shares_are_of_what_required_entries_leave() -> None:
    entries = [entry(60, required=True, knowledge_class=CODE)] + [
        entry(10, knowledge_class=CODE) for _ in range(4)
    ]
    packing = pack(entries, 100, FREE, shares(code=(0, 500)))
    assert packing.chosen == (0, 1, 2)


def test_a_share_of_nothing_excludes_the_class() -> None:
    packing = pack([entry(1, knowledge_class=CODE)], 100, FREE, shares(code=(0, 0)))
    assert packing.left_out == {0: "class-share"}


def test_a_share_does_not_depend_on_which_class_opens_a_tier() -> None:
    """An envelope is the tier's: an entry that fits in the end is never left out for it."""
    entries = [entry(18, 5, knowledge_class=CODE), entry(10, 4)]
    envelopes = dict.fromkeys(TrustTier, 5)
    packing = pack(entries, 100, envelopes, shares(code=(0, 200)))
    assert packing.chosen == (0, 1)
    assert packing.next_tokens is None
    two = [entry(10, knowledge_class=CODE), entry(10, knowledge_class=CODE)]
    assert pack(two, 100, envelopes, shares(code=(0, 200))).chosen == (0, 1)


def test_what_a_share_keeps_out_is_not_promised_for_more_tokens() -> None:
    entries = [entry(50, 5), entry(60, 4, knowledge_class=CODE)]
    packing = pack(entries, 100, FREE, shares(code=(0, 200)))
    assert packing.left_out == {1: "class-share"}
    assert packing.next_tokens is None


entries_of_any_kind = st.lists(
    st.builds(
        Entry,
        cost_tokens=st.integers(1, 60),
        value=st.integers(0, 20),
        tier=st.sampled_from([AGENT, USER, TrustTier.UNTRUSTED_EXTERNAL]),
        knowledge_class=st.sampled_from([CODE, DOCUMENTS, KnowledgeClass.MEMORY]),
        source=st.sampled_from(["a", "b", "c"]),
        required=st.just(False) | st.booleans(),
        relevance=st.integers(0, 20),
    ),
    max_size=12,
)
any_envelopes = st.fixed_dictionaries({tier: st.integers(0, 15) for tier in TrustTier})
any_share = st.tuples(st.integers(0, 333), st.integers(333, 1000)).map(
    lambda bounds: ClassShare(*bounds)
)
any_rules = st.builds(
    PackingRules,
    class_shares=st.dictionaries(st.sampled_from([CODE, DOCUMENTS]), any_share),
    max_chunks_per_source=st.none() | st.integers(1, 4),
    min_relevance_permille=st.integers(0, 5),
)


def cost_of(entries: list[Entry], chosen: tuple[int, ...], envelopes: dict[TrustTier, int]) -> int:
    tiers = {entries[at].tier for at in chosen}
    return sum(entries[at].cost_tokens for at in chosen) + sum(envelopes[tier] for tier in tiers)


@examples(max_examples=120)
@given(
    entries=entries_of_any_kind, extra=st.integers(0, 300), envelopes=any_envelopes, rules=any_rules
)
def test_all_bounds_hold_for_any_entries(
    entries: list[Entry], extra: int, envelopes: dict[TrustTier, int], rules: PackingRules
) -> None:
    room = extra
    capacity = required_tokens(entries, envelopes) + extra
    packing = pack(entries, capacity, envelopes, rules)
    assert packing.used_tokens == cost_of(entries, packing.chosen, envelopes) <= capacity
    assert sorted([*packing.chosen, *packing.left_out]) == list(range(len(entries)))
    assert list(packing.chosen) == sorted(packing.chosen)
    required = {at for at, one in enumerate(entries) if one.required}
    assert required <= set(packing.chosen)
    optional = [entries[at] for at in packing.chosen if at not in required]
    assert packing.value == sum(one.value for one in optional) <= packing.upper_bound
    assert all(one.relevance >= rules.min_relevance_permille for one in optional)
    for name, share in rules.class_shares.items():
        tokens = sum(one.cost_tokens for one in optional if one.knowledge_class is name)
        assert tokens * 1000 <= share.max_permille * room
    if rules.max_chunks_per_source is not None:
        for source in "abc":
            taken = Counter(one.knowledge_class for one in optional if one.source == source)
            assert max(taken.values(), default=0) <= rules.max_chunks_per_source


@examples(max_examples=120)
@given(
    entries=entries_of_any_kind, extra=st.integers(0, 200), envelopes=any_envelopes, rules=any_rules
)
@example(  # the share counted the envelope, which another class paid later
    entries=[Entry(18, 5, USER, CODE, "a"), Entry(10, 4, USER, DOCUMENTS, "b")],
    extra=100,
    envelopes=dict.fromkeys(TrustTier, 5),
    rules=PackingRules(class_shares={CODE: ClassShare(0, 200)}),
)
def test_granting_exactly_the_next_tokens_admits_an_entry_that_was_left_out(
    entries: list[Entry], extra: int, envelopes: dict[TrustTier, int], rules: PackingRules
) -> None:
    capacity = required_tokens(entries, envelopes) + extra
    packing = pack(entries, capacity, envelopes, rules)
    without_room = [at for at, reason in packing.left_out.items() if reason == "no-room"]
    assert (packing.next_tokens is None) == (not without_room)
    if packing.next_tokens is not None:
        assert packing.next_tokens > 0
        more = pack(entries, capacity + packing.next_tokens, envelopes, rules)
        assert set(more.chosen) - set(packing.chosen)


@examples(max_examples=120)
@given(entries=entries_of_any_kind, extra=st.integers(0, 200), envelopes=any_envelopes)
def test_no_packing_is_worth_more_than_the_upper_bound(
    entries: list[Entry], extra: int, envelopes: dict[TrustTier, int]
) -> None:
    capacity = required_tokens(entries, envelopes) + extra
    required = tuple(at for at, one in enumerate(entries) if one.required)
    optional = [at for at, one in enumerate(entries) if not one.required]
    best = max(
        sum(entries[at].value for at in chosen)
        for size in range(len(optional) + 1)
        for chosen in combinations(optional, size)
        if cost_of(entries, required + chosen, envelopes) <= capacity
    )
    packing = pack(entries, capacity, envelopes, OPEN)
    assert packing.value <= best <= packing.upper_bound


@given(
    entries=entries_of_any_kind, extra=st.integers(0, 300), envelopes=any_envelopes, rules=any_rules
)
def test_the_same_entries_in_the_same_order_give_the_same_packing(
    entries: list[Entry], extra: int, envelopes: dict[TrustTier, int], rules: PackingRules
) -> None:
    capacity = required_tokens(entries, envelopes) + extra
    first = pack(entries, capacity, envelopes, rules)
    stirred = dict(reversed(envelopes.items()))
    other = replace(rules, class_shares=dict(reversed(list(rules.class_shares.items()))))
    again = pack(tuple(entries), capacity, stirred, other)
    assert first == again
    assert list(first.left_out) == list(again.left_out)


@pytest.mark.parametrize("capacity", [0, 1, 10, 499])
def test_a_budget_below_the_only_entry_packs_nothing_and_never_goes_negative(capacity: int) -> None:
    packing = pack([entry(500)], capacity, FREE, OPEN)
    assert (packing.chosen, packing.used_tokens) == ((), 0)
    assert packing.next_tokens == 500 - capacity
    assert 0 <= packing.upper_bound <= 1


def test_the_most_valuable_subset_beats_the_best_single_entry() -> None:
    packing = pack([entry(100, 9), entry(50, 5), entry(50, 5)], 100, FREE, OPEN)
    assert (packing.chosen, packing.value, packing.upper_bound) == ((1, 2), 10, 10)


def test_of_equal_entries_the_earlier_ones_are_taken() -> None:
    assert pack([entry(30, 5)] * 6, 100, FREE, OPEN).chosen == (0, 1, 2)
    capped = replace(OPEN, max_chunks_per_source=1)
    apart = [entry(30, 5, source=at // 2) for at in range(6)]
    assert pack(apart, 70, FREE, capped).chosen == (0, 2)


def test_a_tier_is_opened_only_when_its_entries_are_worth_its_envelope() -> None:
    envelopes = {**FREE, AGENT: 40}
    entries = [entry(60, 9), entry(40, 5), entry(30, 6, tier=AGENT)]
    assert pack(entries, 100, envelopes, OPEN).chosen == (0, 1)
    assert pack(entries, 130, envelopes, OPEN).chosen == (0, 2)


def test_a_minimum_share_keeps_room_free_of_other_classes() -> None:
    entries = [*(entry(20, 9) for _ in range(5)), entry(35, 1, knowledge_class=CODE)]
    packing = pack(entries, 100, FREE, shares(code=(500, 1000)))
    assert packing.chosen == (0, 1, 2, 5)
    assert packing.left_out == {3: "no-room", 4: "no-room"}
    too_large = [*entries[:5], entry(101, 1, knowledge_class=CODE)]
    assert pack(too_large, 100, FREE, shares(code=(500, 1000))).chosen == (0, 1, 2, 3, 4)


def test_what_another_class_keeps_free_is_told_as_its_share() -> None:
    entries = [entry(60, 9), entry(60, 8), entry(60, 1, knowledge_class=CODE)]
    packing = pack(entries, 150, FREE, shares(code=(400, 1000)))
    assert packing.chosen == (0, 2)
    assert packing.left_out == {1: "no-room"}
    packing = pack(
        [entry(70, 9), entry(50, 8, knowledge_class=CODE)], 100, FREE, shares(code=(500, 1000))
    )
    assert packing.chosen == (1,)
    assert packing.left_out == {0: "no-room"}
    packing = pack(
        [
            entry(45, 9),
            entry(10, 2),
            entry(45, 1, knowledge_class=CODE),
            entry(70, 1, knowledge_class=CODE),
        ],
        100,
        FREE,
        shares(code=(500, 1000)),
    )
    assert packing.chosen == (0, 2)
    assert packing.left_out == {1: "class-share", 3: "no-room"}


def test_a_text_that_lost_its_place_to_likeness_says_so() -> None:
    entries = [entry(50, 10), entry(50, 2, discount=7), entry(50, 3)]
    packing = pack(entries, 100, FREE, OPEN)
    assert packing.chosen == (0, 2)
    assert packing.left_out == {1: "diversity"}
    assert packing.next_tokens == 50


def test_the_first_that_were_left_out_say_what_they_need() -> None:
    entries = [entry(90, 20), *(entry(20 + at, 9 - at) for at in range(8))]
    packing = pack(entries, 95, FREE, OPEN)
    assert packing.chosen == (1, 2, 3, 4)
    assert packing.next == ((0, 81), (5, 15), (6, 16), (7, 17), (8, 18))
    assert packing.next_tokens == 15
