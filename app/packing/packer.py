"""Choosing what fits: required entries first, then the best of the rest.

Guarantees: the chosen entries and their envelopes never cost more than the budget; an
entry that does not fit is passed over, never the end; the result depends on the entries'
order and numbers alone. Values are integers.
Not handled here: counting tokens and rendering.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from app.scope.vocabulary import KnowledgeClass, TrustTier


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that may be packed: its cost without envelope, in tokens, and its value."""

    cost_tokens: int
    value: int
    tier: TrustTier
    knowledge_class: KnowledgeClass
    source: Hashable
    required: bool = False


@dataclass(frozen=True, slots=True)
class ClassShare:
    """Bounds for one class, in per mille of the budget that required entries leave.

    They count entries without envelopes, which belong to tiers: else a bound would depend
    on which class opens a tier.
    """

    min_permille: int = 0
    max_permille: int = 1000


@dataclass(frozen=True, slots=True)
class PackingRules:
    """What a strategy says about packing; entries below the floor are never taken."""

    class_shares: Mapping[KnowledgeClass, ClassShare] = field(default_factory=dict)
    max_chunks_per_source: int | None = None
    min_value: int = 0


@dataclass(frozen=True, slots=True)
class Packing:
    """The chosen entries (positions, ascending) and why each other one was left out.

    `value` sums what optional entries are worth; no packing within the budget is worth
    more than `upper_bound`. `next_tokens` is how many more tokens would admit the next
    entry that the budget left out; None when there is none.
    """

    chosen: tuple[int, ...]
    left_out: Mapping[int, str]
    used_tokens: int
    value: int
    upper_bound: int
    next_tokens: int | None


class _Bin:
    """Tokens used so far, with each tier's envelope paid by its first entry."""

    def __init__(self, capacity: int, envelopes: Mapping[TrustTier, int]) -> None:
        self.capacity = capacity
        self.used = 0
        self._envelopes = envelopes
        self._open: set[TrustTier] = set()

    def cost(self, entry: Entry) -> int:
        return entry.cost_tokens + (0 if entry.tier in self._open else self._envelopes[entry.tier])

    def add(self, entry: Entry) -> None:
        self.used += self.cost(entry)
        self._open.add(entry.tier)

    @property
    def free(self) -> int:
        return self.capacity - self.used


def required_tokens(entries: Sequence[Entry], envelopes: Mapping[TrustTier, int]) -> int:
    """What the required entries cost together, envelopes included."""
    needed = _Bin(0, envelopes)
    for entry in entries:
        if entry.required:
            needed.add(entry)
    return needed.used


def pack(
    entries: Sequence[Entry],
    capacity_tokens: int,
    envelopes: Mapping[TrustTier, int],
    rules: PackingRules,
) -> Packing:
    """Fill the budget in the order of the entries, best first.

    The caller has seen to it that the required entries fit. Optional ones are taken in
    two passes: first up to each class's minimum, then up to its maximum.
    """
    filled = _Bin(capacity_tokens, envelopes)
    chosen = {at for at, entry in enumerate(entries) if entry.required}
    for at in sorted(chosen):
        filled.add(entries[at])
    optional = [at for at in range(len(entries)) if at not in chosen]
    state = _Optional(entries, filled, rules)
    for minimum in (True, False):
        for at in optional:
            if at not in chosen and state.take(at, up_to_minimum=minimum):
                chosen.add(at)
    left_out = {at: state.reason(at) for at in optional if at not in chosen}
    missing = [
        filled.cost(entries[at]) - filled.free
        for at, reason in left_out.items()
        if reason == "no-room"
    ]
    return Packing(
        chosen=tuple(sorted(chosen)),
        left_out=left_out,
        used_tokens=filled.used,
        value=sum(entries[at].value for at in chosen if not entries[at].required),
        upper_bound=_upper_bound([entries[at] for at in optional], state.room),
        next_tokens=min(missing, default=None),
    )


class _Optional:
    """The bounds that optional entries meet beside the budget."""

    def __init__(self, entries: Sequence[Entry], filled: _Bin, rules: PackingRules) -> None:
        self._entries, self._filled, self._rules = entries, filled, rules
        self.room = filled.free
        self._class_tokens: Counter[KnowledgeClass] = Counter()
        self._per_source: Counter[Hashable] = Counter()

    def take(self, at: int, *, up_to_minimum: bool) -> bool:
        entry = self._entries[at]
        share = self._rules.class_shares.get(entry.knowledge_class, ClassShare())
        cost = self._filled.cost(entry)
        reached = self._class_tokens[entry.knowledge_class] * 1000
        if up_to_minimum and reached >= share.min_permille * self.room:
            return False
        if self.reason(at) != "no-room" or cost > self._filled.free:
            return False
        self._class_tokens[entry.knowledge_class] += entry.cost_tokens
        self._per_source[entry.source] += 1
        self._filled.add(entry)
        return True

    def reason(self, at: int) -> str:
        """Why an entry is out; `no-room` when only the budget stands against it."""
        entry, rules = self._entries[at], self._rules
        share = rules.class_shares.get(entry.knowledge_class, ClassShare())
        if entry.value < rules.min_value:
            return "relevance-floor"
        if (
            rules.max_chunks_per_source is not None
            and self._per_source[entry.source] >= rules.max_chunks_per_source
        ):
            return "source-cap"
        tokens = self._class_tokens[entry.knowledge_class] + entry.cost_tokens
        # The whole budget as a share is no bound beside the budget.
        if share.max_permille < 1000 and tokens * 1000 > share.max_permille * self.room:
            return "class-share"
        return "no-room"


def _upper_bound(entries: Sequence[Entry], room_tokens: int) -> int:
    """The value of a fractional packing, rounded up: Dantzig's bound (1957).

    Envelopes, shares and caps only lower what can be reached, so leaving them out keeps
    it a bound.
    """
    bound = 0
    by_density = sorted(entries, key=lambda entry: -entry.value / max(entry.cost_tokens, 1))
    for entry in by_density:
        if entry.cost_tokens > room_tokens:
            return bound + -(-entry.value * room_tokens // entry.cost_tokens)
        bound += entry.value
        room_tokens -= entry.cost_tokens
    return bound
