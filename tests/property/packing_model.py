"""What packing promises, said by trying every subset: slow, and without any method."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from hypothesis import strategies as st

from app.packing.filling import ClassShare, Entry, PackingRules
from app.packing.packer import required_tokens
from app.scope.vocabulary import KnowledgeClass, TrustTier

TIERS = (TrustTier.AGENT, TrustTier.USER, TrustTier.UNTRUSTED_EXTERNAL)
CLASSES = (KnowledgeClass.CODE, KnowledgeClass.DOCUMENTS, KnowledgeClass.MEMORY)

Envelopes = Mapping[TrustTier, int]

shares = st.builds(
    ClassShare,
    min_permille=st.just(0) | st.integers(0, 500),
    max_permille=st.just(1000) | st.integers(500, 1000),
)
rules = st.builds(
    PackingRules,
    class_shares=st.dictionaries(st.sampled_from(CLASSES[:2]), shares),
    max_chunks_per_source=st.none() | st.integers(1, 3),
    min_relevance_permille=st.integers(0, 300),
)
envelopes = st.fixed_dictionaries(dict.fromkeys(TrustTier, st.just(0) | st.integers(0, 15)))


def entries(most: int, values: st.SearchStrategy[int]) -> st.SearchStrategy[list[Entry]]:
    return st.lists(
        st.builds(
            Entry,
            cost_tokens=st.integers(1, 60),
            value=values,
            tier=st.sampled_from(TIERS),
            knowledge_class=st.sampled_from(CLASSES),
            source=st.sampled_from("abc"),
            required=st.sampled_from([False] * 9 + [True]),
            relevance=st.integers(0, 1000),
        ),
        max_size=most,
    )


@dataclass(frozen=True)
class Case:
    """Entries and the tokens that the required ones leave of the capacity."""

    entries: Sequence[Entry]
    room: int
    envelopes: Envelopes
    rules: PackingRules

    @property
    def capacity(self) -> int:
        return self.room + required_tokens(self.entries, self.envelopes)

    @property
    def optional(self) -> list[int]:
        return [at for at, one in enumerate(self.entries) if not one.required]

    def best_value(self) -> int:
        return max(self._value(chosen) for chosen in self._subsets() if self.allows(chosen))

    def allows(self, chosen: Sequence[int]) -> bool:
        """Whether optional entries at these places may be taken together."""
        picked = [self.entries[at] for at in chosen]
        cap = self.rules.max_chunks_per_source
        sources = Counter((one.source, one.knowledge_class) for one in picked)
        if any(one.relevance < self.rules.min_relevance_permille for one in picked):
            return False
        if cap is not None and any(count > cap for count in sources.values()):
            return False
        room = self.room - self._envelopes_of(picked)
        tokens = Counter[KnowledgeClass]()
        for one in picked:
            tokens[one.knowledge_class] += one.cost_tokens
        kept = 0
        for name in CLASSES:
            share = self.rules.class_shares.get(name, ClassShare())
            if 1000 * tokens[name] > share.max_permille * self.room:
                return False
            claim = min(share.min_permille * room, 1000 * self.available(name))
            kept += max(1000 * tokens[name], claim)
        return kept <= 1000 * room

    def available(self, name: KnowledgeClass) -> int:
        """Tokens that a class could fill, by entries that fit alone, under cap and share."""
        by_source: dict[object, list[int]] = {}
        limit = self.rules.class_shares.get(name, ClassShare()).max_permille * self.room // 1000
        for at in self.fitting(name):
            one = self.entries[at]
            by_source.setdefault(one.source, []).append(one.cost_tokens)
        cap = self.rules.max_chunks_per_source
        costs = chain.from_iterable(sorted(one)[::-1][:cap] for one in by_source.values())
        return min(sum(costs), limit)

    def fitting(self, name: KnowledgeClass) -> list[int]:
        share = self.rules.class_shares.get(name, ClassShare())
        return [
            at
            for at in self.optional
            if (one := self.entries[at]).knowledge_class is name
            and one.relevance >= self.rules.min_relevance_permille
            and 1000 * one.cost_tokens <= share.max_permille * self.room
            and one.cost_tokens + self._envelopes_of([one]) <= self.room
        ]

    def _envelopes_of(self, picked: Sequence[Entry]) -> int:
        paid = {one.tier for one in self.entries if one.required}
        return sum(self.envelopes[tier] for tier in {one.tier for one in picked} - paid)

    def _value(self, chosen: Sequence[int]) -> int:
        return sum(self.entries[at].value for at in chosen)

    def _subsets(self) -> Iterator[tuple[int, ...]]:
        sizes = range(len(self.optional) + 1)
        return chain.from_iterable(combinations(self.optional, size) for size in sizes)
