"""What may be packed, the rules for it, and a packing as it fills. Pure, in whole numbers."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.packing.value import ValueRule
from app.scope.vocabulary import KnowledgeClass, TrustTier

PromptOrder = Literal["rank", "source"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that may be packed: its cost without envelope, in tokens, and its value.

    `relevance` is in per mille of the best candidate's; `discount` is what nearness to better
    ranked texts took from the value.
    """

    cost_tokens: int
    value: int
    tier: TrustTier
    knowledge_class: KnowledgeClass
    source: Hashable
    required: bool = False
    relevance: int = 1000
    discount: int = 0

    @property
    def cap_key(self) -> Hashable:
        """What a cap per source counts by: a source is of one class, except for inline items."""
        return self.source, self.knowledge_class


@dataclass(frozen=True, slots=True)
class ClassShare:
    """Bounds for one class, in per mille of the budget that required entries leave.

    They count entries without envelopes, which belong to tiers: else a bound would depend on
    which class opens a tier. The minimum is kept free of other classes, as far as the class
    has entries for it; it forces none of them in. What the class is worth counts `priority`
    times (`value`).
    """

    min_permille: int = 0
    max_permille: int = 1000
    priority: int = 1


@dataclass(frozen=True, slots=True)
class PackingRules:
    """What a strategy says about packing.

    Entries below the least relevance are never taken. `diversity_permille` is how much of an
    entry's value a text like it takes away. `order` is that of the prompt. A candidate without
    room may be shortened to `min_compressed_permille` of its tokens or more; None: never.
    """

    class_shares: Mapping[KnowledgeClass, ClassShare] = field(default_factory=dict)
    max_chunks_per_source: int | None = None
    value: ValueRule = "ranks"
    min_relevance_permille: int = 0
    diversity_permille: int = 0
    order: PromptOrder = "rank"
    min_compressed_permille: int | None = None


_NO_SHARE = ClassShare()
_NO_LIMIT = 1 << 40


class Filling:
    """Optional entries as they are taken, beside the required ones that are in already.

    `room` is what those leave of the capacity.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        capacity_tokens: int,
        envelopes: Mapping[TrustTier, int],
        rules: PackingRules,
    ) -> None:
        self.entries, self._rules = list(entries), rules
        required = [entry for entry in entries if entry.required]
        self._open = {entry.tier for entry in required}
        self.used_tokens = sum(entry.cost_tokens for entry in required)
        self.used_tokens += sum(envelopes[tier] for tier in self._open)
        self.room = capacity_tokens - self.used_tokens
        self._capacity, self._envelopes = capacity_tokens, envelopes
        self.taken: set[int] = set()
        self._limits = {
            name: share.max_permille * self.room // 1000
            for name, share in rules.class_shares.items()
            if share.max_permille < 1000
        }
        self._class_tokens: Counter[KnowledgeClass] = Counter()
        self._per_source: Counter[Hashable] = Counter()
        self._optional_tokens = 0
        relevant = [at for at, entry in enumerate(entries) if self._is_relevant(entry)]
        shared = rules.class_shares
        self._reserved = sorted(name for name in shared if shared[name].min_permille)
        self._claimable = self._tokens_by_class(relevant) if shared else Counter()
        self._available = self._claimable
        if self._reserved:
            self._available = self._tokens_by_class(filter(self.fits_alone, relevant))

    def envelope(self, tier: TrustTier) -> int:
        return 0 if tier in self._open else self._envelopes[tier]

    def add(self, at: int) -> None:
        entry = self.entries[at]
        self.used_tokens += entry.cost_tokens + self.envelope(entry.tier)
        self._open.add(entry.tier)
        self._optional_tokens += entry.cost_tokens
        self._class_tokens[entry.knowledge_class] += entry.cost_tokens
        self._per_source[entry.cap_key] += 1
        self.taken.add(at)

    def shrink(self, at: int, cost_tokens: int) -> None:
        """Let an entry that is not taken cost less."""
        self.entries[at] = replace(self.entries[at], cost_tokens=cost_tokens)

    def room_for(self, at: int) -> int:
        """The most that an entry may cost to be added to what is taken; below 0: not at all."""
        entry, free = self.entries[at], range(max(self._capacity - self.used_tokens, 0) + 1)

        def is_refused(cost: int) -> bool:
            return self._refusal(replace(entry, cost_tokens=cost)) is not None

        return bisect_left(free, True, key=is_refused) - 1

    def refusal(self, at: int) -> str | None:
        """Why an entry cannot be added to what is taken."""
        return self._refusal(self.entries[at])

    def _refusal(self, entry: Entry) -> str | None:
        cap = self._rules.max_chunks_per_source
        if entry.relevance < self._rules.min_relevance_permille:
            return "relevance-floor"
        if cap is not None and self._per_source[entry.cap_key] >= cap:
            return "source-cap"
        own = self._class_tokens[entry.knowledge_class] + entry.cost_tokens
        if own > self.limit(entry.knowledge_class):
            return "class-share"
        if entry.cost_tokens + self.envelope(entry.tier) > self._capacity - self.used_tokens:
            return "no-room"
        return "class-share" if self._reserved and not self._leaves_reserves(entry, 0) else None

    def reasons(self, places: Iterable[int]) -> dict[int, str]:
        """Why these are out: what stands against each, or what it resembles.

        What still fits is taken.
        """
        refusals: dict[int, str] = {}
        before = len(self.taken)
        for at in places:
            refusal = self.refusal(at)
            if refusal is None:
                self.add(at)
            else:
                refusals[at] = refusal
        if len(self.taken) > before:
            # What was refused before the last was taken may be refused for another reason now.
            refusals = {at: self.refusal(at) or "no-room" for at in refusals}
        return {at: self._told(at, refusal) for at, refusal in refusals.items()}

    def _told(self, at: int, refusal: str) -> str:
        return "diversity" if refusal == "no-room" and self._lost_to_likeness(at) else refusal

    def fits_alone(self, at: int) -> bool:
        """Whether an entry could be taken if no other were."""
        entry = self.entries[at]
        return (
            self._is_relevant(entry)
            and entry.cost_tokens <= self.limit(entry.knowledge_class)
            and entry.cost_tokens + self.envelope(entry.tier) <= self.room
        )

    def limit(self, name: KnowledgeClass) -> int:
        """The most tokens of a class; the whole budget as a share is no limit beside it."""
        return self._limits.get(name, _NO_LIMIT)

    def reserve(self, name: KnowledgeClass, room: int) -> int:
        """What other classes leave free for this one, in thousandths of tokens, of such a room."""
        able = min(self._available[name], self.limit(name))
        return min(self._share(name).min_permille * room, 1000 * able)

    def bounded_classes(self, room: int) -> list[KnowledgeClass]:
        """Those whose share makes a difference."""
        return [
            name
            for name in sorted(self._rules.class_shares)
            if self._available[name] > self.limit(name) or self.reserve(name, room)
        ]

    def binding_cap(self, places: Sequence[int]) -> int | None:
        """The cap, if there is a source with more entries among these."""
        cap = self._rules.max_chunks_per_source
        held = Counter(self.entries[at].cap_key for at in places)
        return cap if cap is not None and max(held.values(), default=0) > cap else None

    def kind(self, at: int) -> Hashable:
        """What entries have in common that can stand for each other."""
        entry = self.entries[at]
        source = None if self._rules.max_chunks_per_source is None else entry.source
        return entry.value, entry.cost_tokens, entry.tier, entry.knowledge_class, source

    def shortages(self, places: Sequence[int], first: int) -> dict[int, int]:
        """How many more tokens would admit an entry beside what is taken, by place.

        Of those that only the budget keeps out: the first ones, and those that need least.
        """
        cheapest: dict[Hashable, int] = {}
        for at in places:
            entry = self.entries[at]
            least = cheapest.setdefault((entry.tier, entry.knowledge_class), at)
            if entry.cost_tokens < self.entries[least].cost_tokens:
                cheapest[entry.tier, entry.knowledge_class] = at
        return {at: self._shortage(at) for at in sorted({*places[:first], *cheapest.values()})}

    def _shortage(self, at: int) -> int:
        entry = self.entries[at]
        free = self._capacity - self.used_tokens
        least = entry.cost_tokens + self.envelope(entry.tier) - free
        if not self._reserved:
            return least
        # With all that any class could claim there is room for certain.
        most = least + self._optional_tokens + sum(self._claimable.values())
        return bisect_left(
            range(most), True, lo=least, key=lambda more: self._leaves_reserves(entry, more)
        )

    def _leaves_reserves(self, entry: Entry, more: int) -> bool:
        """Whether the minimum shares stay free beside an entry, with so many more tokens."""
        room = self._capacity + more - self.used_tokens + self._optional_tokens
        room -= self.envelope(entry.tier)
        needed = 1000 * (self._optional_tokens + entry.cost_tokens)
        for name in self._reserved:
            own = self._class_tokens[name]
            own += entry.cost_tokens if entry.knowledge_class is name else 0
            if more:
                kept = min(self._share(name).min_permille * room, 1000 * self._claimable[name])
            else:
                kept = self.reserve(name, room)
            needed += max(kept - 1000 * own, 0)
        return needed <= 1000 * room

    def _lost_to_likeness(self, at: int) -> bool:
        """Whether something of less worth for its cost was taken, because this resembles others."""
        entry = self.entries[at]
        worth = entry.value + entry.discount
        return entry.discount > 0 and any(
            self.entries[one].value * entry.cost_tokens < worth * self.entries[one].cost_tokens
            for one in self.taken
        )

    def _is_relevant(self, entry: Entry) -> bool:
        """Whether it may be taken at all; required entries are in already."""
        return not entry.required and entry.relevance >= self._rules.min_relevance_permille

    def _share(self, name: KnowledgeClass) -> ClassShare:
        return self._rules.class_shares.get(name, _NO_SHARE)

    def _tokens_by_class(self, places: Iterable[int]) -> Counter[KnowledgeClass]:
        """What each class could take of these entries under the cap."""
        costs: dict[tuple[KnowledgeClass, Hashable], list[int]] = {}
        for at in places:
            entry = self.entries[at]
            costs.setdefault((entry.knowledge_class, entry.source), []).append(entry.cost_tokens)
        tokens: Counter[KnowledgeClass] = Counter()
        for (name, _), found in costs.items():
            tokens[name] += sum(sorted(found, reverse=True)[: self._rules.max_chunks_per_source])
        return tokens
