"""Packing finds the best subset within all rules, proves it, and depends on the numbers alone."""

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from app.packing.filling import ClassShare, Entry, PackingRules
from app.packing.packer import Packing, pack
from app.scope.vocabulary import KnowledgeClass, TrustTier
from tests.property import packing_model as model
from tests.property.packing_model import Case
from tests.property.sizes import sized

_CODE, _DOCUMENTS = KnowledgeClass.CODE, KnowledgeClass.DOCUMENTS
_FREE = dict.fromkeys(TrustTier, 0)


def _cases(most: int = 8) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        entries=model.entries(most, st.integers(0, 1000)),
        room=st.integers(0, 200),
        envelopes=model.envelopes,
        rules=model.rules,
    )


def _packed(case: Case) -> Packing:
    return pack(case.entries, case.capacity, case.envelopes, case.rules)


def _optional(case: Case, packing: Packing) -> list[int]:
    return [at for at in packing.chosen if not case.entries[at].required]


@sized(120, full=20_000)
@given(case=_cases())
def test_no_subset_within_the_rules_is_worth_more_and_the_bound_says_so(case: Case) -> None:
    packing = _packed(case)
    assert case.allows(_optional(case, packing))
    assert packing.value == case.best_value() == packing.upper_bound


@sized(60, full=10_000)
@given(case=_cases())
def test_nothing_that_would_still_fit_is_left_out(case: Case) -> None:
    packing = _packed(case)
    taken = _optional(case, packing)
    assert not any(case.allows([*taken, at]) for at in packing.left_out)


@sized(100, full=20_000)
@given(case=_cases(), more=st.integers(1, 60))
@example(  # rounding each class's minimum by itself took a token from the third
    case=Case(
        [Entry(1, 5, TrustTier.USER, name, "a") for name in model.CLASSES],
        1,
        _FREE,
        PackingRules({name: ClassShare(500) for name in model.CLASSES[:2]}),
    ),
    more=1,
)
def test_a_larger_budget_never_has_less_value(case: Case, more: int) -> None:
    larger = replace(case, room=case.room + more)
    for name, share in case.rules.class_shares.items():
        # The one exception: what was too large for the smaller budget claims its class's share.
        assume(not share.min_permille or case.fitting(name) == larger.fitting(name))
    assert _packed(larger).value >= _packed(case).value


@sized(60, full=10_000)
@given(
    case=st.builds(
        Case,
        # No two subsets are worth the same, so that there is one best.
        entries=model.entries(8, st.just(0)).map(
            lambda found: [replace(one, value=1 << at) for at, one in enumerate(found)]
        ),
        room=st.integers(0, 200),
        envelopes=model.envelopes,
        rules=model.rules,
    ),
    seed=st.integers(0, 1 << 16),
)
def test_the_order_of_the_entries_does_not_change_what_is_chosen(case: Case, seed: int) -> None:
    order = list(range(len(case.entries)))
    Random(seed).shuffle(order)
    shuffled = replace(case, entries=[case.entries[at] for at in order])
    first, second = _packed(case), _packed(shuffled)
    assert set(first.chosen) == {order[at] for at in second.chosen}
    assert first.next_tokens == second.next_tokens
    assert {order[at]: why for at, why in second.left_out.items()} == first.left_out


@sized(60, full=10_000)
@given(case=_cases())
def test_what_is_told_to_be_missing_admits_each_of_the_next(case: Case) -> None:
    packing = _packed(case)
    taken = _optional(case, packing)
    for at, tokens in packing.next:
        assert tokens > 0
        assert replace(case, room=case.room + tokens).allows([*taken, at])
        if not case.rules.class_shares:
            assert not replace(case, room=case.room + tokens - 1).allows([*taken, at])


@sized(25, full=2_000)
@given(
    costs=st.lists(st.integers(1, 300), min_size=20, max_size=120),
    seed=st.integers(0, 1 << 16),
    room=st.integers(0, 4000),
    spread=st.sampled_from([3, 100, 10**7]),
)
def test_many_entries_are_packed_as_well_as_by_dynamic_programming(
    costs: list[int], seed: int, room: int, spread: int
) -> None:
    random = Random(seed)
    entries = [
        Entry(cost, random.randint(1, spread), TrustTier.USER, _DOCUMENTS, at)
        for at, cost in enumerate(costs)
    ]
    best = np.zeros(room + 1, np.int64)
    for one in entries:
        if one.cost_tokens <= room:
            taken = best[: room + 1 - one.cost_tokens] + one.value
            best[one.cost_tokens :] = np.maximum(best[one.cost_tokens :], taken)
    packing = pack(entries, room, _FREE, PackingRules())
    assert packing.value == best[-1] == packing.upper_bound
