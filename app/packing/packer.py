"""Choosing what fits: required entries first, then the subset of the rest with the most value.

Guarantees: the chosen entries and their envelopes never cost more than the budget, no class
takes more than its share, no source gives more chunks than its cap, and nothing that would
still fit is left out; the result depends on the entries' order and numbers alone. Numbers are
integers. `upper_bound` is proven: no packing under the same rules is worth more.

A larger budget never has less value where the larger one's packing is proven the best (a gap
of 0), and by at most its gap otherwise. For what fits stays allowed as the budget grows: shares
grow with it. There is one exception: an entry of a class with a minimum share that was too
large for the smaller budget may claim that share in the larger one.

Not handled here: counting tokens and rendering; what an entry is worth (`value`); how the
subset is found (`knapsack`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

import numpy as np

from app.packing.filling import Entry, Filling, PackingRules
from app.packing.knapsack import solve
from app.packing.relaxation import Ints, Problem, relax
from app.scope.vocabulary import TrustTier

_FOR_ROOM = ("no-room", "diversity")
METHOD = "expanding-core"
NEXT = 5
"""So many of the best entries that the budget left out are told with what they need."""
OFFERED = 20
"""So many of the best entries without room may be shortened."""

Shorten = Callable[[int, int], int | None]
"""What an entry costs when it is shortened to at most so many tokens; None: it cannot be."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The chosen entries (positions, ascending) and why each other one was left out.

    `value` sums what optional entries are worth. `next` are the first entries that only the
    budget left out, with how many more tokens would admit each beside those chosen;
    `next_tokens` is the least that would admit any, None when there is none. `shortened` are
    those of the chosen that were, with their costs: their worth counts neither in `value` nor in
    `upper_bound`.
    """

    chosen: tuple[int, ...]
    left_out: Mapping[int, str]
    used_tokens: int
    value: int
    upper_bound: int
    next_tokens: int | None
    next: tuple[tuple[int, int], ...] = ()
    shortened: Mapping[int, int] = field(default_factory=dict)


def required_tokens(entries: Sequence[Entry], envelopes: Mapping[TrustTier, int]) -> int:
    """What the required entries cost together, envelopes included."""
    required = [entry for entry in entries if entry.required]
    return sum(entry.cost_tokens for entry in required) + sum(
        envelopes[tier] for tier in {entry.tier for entry in required}
    )


def pack(
    entries: Sequence[Entry],
    capacity_tokens: int,
    envelopes: Mapping[TrustTier, int],
    rules: PackingRules,
    shorten: Shorten | None = None,
) -> Packing:
    """Required entries, then the best subset of the others; of equal ones the first.

    The rest of the room is offered to the best of those that it is too small for.
    The caller has seen to it that the required entries fit. Values sum to less than
    `relaxation.MOST_VALUE`; the time grows about linearly with the number of entries, and
    doubles with each tier that has an envelope and no required entry.
    """
    filling = Filling(entries, capacity_tokens, envelopes, rules)
    optional = [at for at, entry in enumerate(entries) if not entry.required]
    chosen, bound = _best(filling, optional)
    for at in _first_of_equals(filling, optional, chosen):
        filling.add(at)
    # That takes what is worth nothing, and what a search that was cut short has missed.
    left_out = filling.reasons([at for at in optional if at not in filling.taken])
    value = sum(entries[at].value for at in filling.taken)
    shortened = {} if shorten is None else _shortened(filling, left_out, shorten)
    if shortened:
        left_out = filling.reasons([at for at in left_out if at not in shortened])
    needs = filling.shortages([at for at, why in left_out.items() if why in _FOR_ROOM], NEXT)
    required = (at for at, entry in enumerate(entries) if entry.required)
    return Packing(
        chosen=tuple(sorted(chain(required, filling.taken))),
        left_out=left_out,
        used_tokens=filling.used_tokens,
        value=value,
        upper_bound=max(bound, value),
        next_tokens=min(needs.values(), default=None),
        next=tuple(sorted(needs.items())[:NEXT]),
        shortened=shortened,
    )


def _shortened(filling: Filling, left_out: Mapping[int, str], shorten: Shorten) -> dict[int, int]:
    """Take what can be shortened to what is left of the room, the best first."""
    shortened = {}
    for at in [at for at in sorted(left_out) if left_out[at] == "no-room"][:OFFERED]:
        room = filling.room_for(at)
        cost = shorten(at, room) if room > 0 else None
        if cost is not None:
            filling.shrink(at, cost)
            filling.add(at)
            shortened[at] = cost
    return shortened


def _best(filling: Filling, optional: Sequence[int]) -> tuple[list[int], int]:
    """The most valuable choice over all sets of tiers that may be opened, and its bound."""
    able = [at for at in optional if filling.entries[at].value > 0 and filling.fits_alone(at)]
    if not able:
        return [], 0
    best: list[int] = []
    value, bound = 0, 0
    cases = [(relax(problem), places, problem) for places, problem in _cases(filling, able)]
    for relaxation, places, problem in sorted(cases, key=lambda case: -case[0].upper_bound):
        choice = solve(problem, relaxation, at_least=value)
        bound = max(bound, choice.upper_bound)
        if choice.value > value:
            best, value = [able[at] for at in places[choice.chosen].tolist()], choice.value
    return best, bound


def _cases(filling: Filling, able: Sequence[int]) -> Iterator[tuple[Ints, Problem]]:
    """What is left to solve when the envelopes of some tiers are paid, for each set of tiers.

    Places are among the `able`.
    """
    entries = [filling.entries[at] for at in able]
    values = np.array([one.value for one in entries], np.int64)
    costs = np.array([one.cost_tokens for one in entries], np.int64)
    tiers = np.array([one.tier.rank for one in entries], np.int64)
    numbers: dict[Hashable, int] = {}
    sources = np.array([numbers.setdefault(one.cap_key, len(numbers)) for one in entries])
    names = [one.knowledge_class for one in entries]
    for opened, envelopes in _sets_of_tiers(filling, {one.tier for one in entries}):
        room = filling.room - envelopes
        bounded = filling.bounded_classes(room)
        limits = [room, *(min(filling.limit(name), room) for name in bounded)]
        number = {name: at for at, name in enumerate(bounded, start=1)}
        classes = np.array([number.get(name, 0) for name in names], np.int64)
        is_in = np.isin(tiers, [tier.rank for tier in opened])
        places = np.flatnonzero(is_in & (costs <= np.array(limits, np.int64)[classes]))
        if len(places):
            yield (
                places,
                Problem(
                    values=values[places],
                    costs=costs[places],
                    classes=classes[places],
                    sources=sources[places],
                    room=room,
                    limits=limits,
                    reserves=[0, *(filling.reserve(name, room) for name in bounded)],
                    max_per_source=filling.binding_cap([able[at] for at in places.tolist()]),
                ),
            )


def _sets_of_tiers(
    filling: Filling, tiers: set[TrustTier]
) -> Iterator[tuple[frozenset[TrustTier], int]]:
    """Each set of tiers that may be opened, and what that costs."""
    closed = sorted(tier for tier in tiers if filling.envelope(tier))
    for count in range(len(closed) + 1):
        for some in combinations(closed, count):
            cost = sum(filling.envelope(tier) for tier in some)
            if cost <= filling.room:
                yield frozenset(tiers - set(closed)) | frozenset(some), cost


def _first_of_equals(filling: Filling, optional: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """The same choice with the earlier of entries that differ in nothing that counts."""
    wanted = Counter(map(filling.kind, chosen))
    values = {filling.entries[at].value for at in chosen}
    taken = []
    for at in optional:
        # Most values stand once.
        if filling.entries[at].value not in values:
            continue
        kind = filling.kind(at)
        if wanted[kind] and filling.fits_alone(at):
            wanted[kind] -= 1
            taken.append(at)
    return taken
