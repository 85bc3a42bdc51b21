"""The rest of the room goes to shortened entries, under the same rules as whole ones."""

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from app.packing.filling import ClassShare, Entry, PackingRules
from app.packing.packer import OFFERED, pack
from app.scope.vocabulary import KnowledgeClass
from tests.unit.packing.test_packer import CODE, DOCUMENTS, ENVELOPES, FREE, OPEN, USER, entry

CLASSES = (CODE, DOCUMENTS, KnowledgeClass.MEMORY)


def to(cost: int) -> Callable[[int, int], int | None]:
    return lambda _, room: cost if cost <= room else None


def test_the_best_of_those_without_room_is_shortened_to_what_is_left() -> None:
    entries = [entry(60, 9), entry(80, 5), entry(90, 4)]
    packing = pack(entries, 100, FREE, OPEN, lambda _, room: room)
    assert (packing.chosen, packing.shortened) == ((0, 1), {1: 40})
    assert (packing.used_tokens, packing.left_out) == (100, {2: "no-room"})
    # What it is worth whole is not what it is worth now.
    assert (packing.value, packing.upper_bound) == (9, 9)
    assert (packing.next_tokens, packing.next) == (90, ((2, 90),))


def test_several_share_what_is_left_and_an_envelope_is_paid_first() -> None:
    entries = [entry(60, 9), entry(80, 5), entry(90, 4)]
    assert pack(entries, 100, FREE, OPEN, to(15)).shortened == {1: 15, 2: 15}
    alone = [entry(80, 5)]
    assert pack(alone, ENVELOPES[USER] + 15, ENVELOPES, OPEN, to(15)).shortened == {0: 15}
    assert pack(alone, ENVELOPES[USER] + 14, ENVELOPES, OPEN, to(15)).shortened == {}


def test_only_what_is_out_for_want_of_room_is_offered_it_and_not_without_end() -> None:
    asked = []

    def shorten(at: int, room: int) -> None:
        asked.append((at, room))

    rules = PackingRules(min_relevance_permille=100, max_chunks_per_source=1)
    entries = [
        entry(60, 9, source="a"),
        entry(80, 8, source="a"),
        entry(80, 7, source="b", relevance=99),
        *(entry(80, 6, source=at) for at in range(30)),
    ]
    assert pack(entries, 100, FREE, rules, shorten).shortened == {}
    assert asked == [(at, 40) for at in range(3, 3 + OFFERED)]


@st.composite
def _entries(draw: st.DrawFn) -> list[Entry]:
    one = st.builds(
        Entry,
        cost_tokens=st.integers(5, 80),
        value=st.integers(0, 50),
        tier=st.sampled_from(list(ENVELOPES)[:3]),
        knowledge_class=st.sampled_from(CLASSES),
        source=st.integers(0, 3),
        relevance=st.sampled_from((0, 500, 1000)),
    )
    return draw(st.lists(one, max_size=12))


_shares = st.dictionaries(
    st.sampled_from(CLASSES), st.builds(ClassShare, st.integers(0, 300), st.integers(300, 1000))
)


@given(
    entries=_entries(),
    capacity=st.integers(0, 200),
    shares=_shares,
    cap=st.none() | st.integers(1, 3),
    parts=st.lists(st.integers(1, 10), min_size=12, max_size=12),
)
def test_no_rule_is_broken_for_a_shortened_entry(
    entries: list[Entry],
    capacity: int,
    shares: dict[KnowledgeClass, ClassShare],
    cap: int | None,
    parts: list[int],
) -> None:
    rules = PackingRules(class_shares=shares, max_chunks_per_source=cap, min_relevance_permille=100)
    packing = pack(
        entries, capacity, ENVELOPES, rules, lambda at, room: room * parts[at] // 10 or None
    )
    whole = pack(entries, capacity, ENVELOPES, rules)
    assert packing == pack(
        entries, capacity, ENVELOPES, rules, lambda at, room: room * parts[at] // 10 or None
    )
    assert set(packing.chosen) == set(whole.chosen) | packing.shortened.keys()
    assert set(packing.chosen) | packing.left_out.keys() == set(range(len(entries)))
    assert (packing.value, packing.upper_bound) == (whole.value, whole.upper_bound)
    costs = {at: packing.shortened.get(at, entries[at].cost_tokens) for at in packing.chosen}
    tiers = {entries[at].tier for at in packing.chosen}
    used = sum(costs.values()) + sum(ENVELOPES[tier] for tier in tiers)
    assert used == packing.used_tokens <= capacity
    of_source = Counter(entries[at].cap_key for at in packing.chosen)
    assert cap is None or max(of_source.values(), default=0) <= cap
    for name, share in shares.items():
        own = sum(costs[at] for at in packing.chosen if entries[at].knowledge_class is name)
        assert own * 1000 <= share.max_permille * capacity
    for at, cost in packing.shortened.items():
        assert whole.left_out[at] == "no-room"
        assert cost < entries[at].cost_tokens
        assert entries[at].relevance >= 100
