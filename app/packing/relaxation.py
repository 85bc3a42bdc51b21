"""Prices for room: a fractional packing, and the bound that it proves. Pure.

The limits on classes form a polymatroid, in which filling by density, with the last entry of a
class cut where it no longer fits, is the best fractional packing (Edmonds, "Submodular
Functions, Matroids and Certain Polyhedra", 1970; for the room alone it is Dantzig, "Discrete
Variable Extremum Problems", 1957). The densities at which classes are cut are their prices, and
give a Lagrangian bound; a source that has too many entries gets a price of its own.

Guarantees: whole numbers only; no choice within the limits is worth more than the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST_VALUE = 1 << 60
"""The values of a problem sum to less."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Problem:
    """Arrays of one length: values above 0, costs of at most the room and the class's limit.

    `limits` (tokens) and `reserves` (thousandths of tokens) are by class; class 0 are those that
    have neither: its limit is the room and its reserve 0. Sources are numbers from 0 on, and
    each is of one class. `max_per_source` None: no cap.
    """

    values: Ints
    costs: Ints
    classes: Ints
    sources: Ints
    room: int
    limits: Sequence[int]
    reserves: Sequence[int]
    max_per_source: int | None = None


@dataclass(frozen=True, slots=True)
class Relaxation:
    """What prices make of a problem: no choice is worth more than `bound >> shift`.

    `reduced` is an entry's value less its price; the prices' own choice are those above 0,
    and a choice that differs from it in some entries is worth less by what they sum to.
    `prices` of a token and `filled` (thousandths of tokens) are by class.
    """

    shift: int
    prices: list[int]
    filled: list[int]
    reduced: Ints
    bound: int
    greedy: Bools

    @property
    def upper_bound(self) -> int:
        return self.bound >> self.shift


class _Room:
    """What has been taken, by class, in thousandths of tokens."""

    def __init__(self, problem: Problem) -> None:
        self._limits = [1000 * limit for limit in problem.limits]
        self._reserves = list(problem.reserves)
        self.taken = [0] * len(self._limits)
        self._shared = 1000 * problem.room - sum(self._reserves)

    def slack(self, at_class: int) -> int:
        """How much more the class may take."""
        taken = self.taken[at_class]
        reserved = max(self._reserves[at_class] - taken, 0)
        return min(self._limits[at_class] - taken, reserved + self._shared)

    def take(self, at_class: int, amount: int) -> None:
        reserved = max(self._reserves[at_class] - self.taken[at_class], 0)
        self._shared -= max(amount - reserved, 0)
        self.taken[at_class] += amount


def relax(problem: Problem) -> Relaxation:
    """Prices by filling with the densest entries first; ties in the order of the entries."""
    shift = max(min(20, 60 - int(problem.values.sum()).bit_length()), 0)
    scaled = problem.values << shift
    density = scaled // np.maximum(problem.costs, 1)
    order = np.argsort(-density, kind="stable")
    prices, filled, greedy = _fill(problem, order, density)
    price = np.array(prices, np.int64)
    reduced = scaled - price[problem.classes] * problem.costs
    # What the fractional filling pays at these prices; no other choice pays more.
    paid = sum(one * amount for one, amount in zip(prices, filled, strict=True))
    bound = -(-paid // 1000)
    if problem.max_per_source is not None:
        surplus = _source_prices(reduced, problem.sources, problem.max_per_source)
        reduced = reduced - surplus[problem.sources]
        bound += problem.max_per_source * int(surplus.sum())
    bound += int(np.maximum(reduced, 0).sum())
    return Relaxation(shift, prices, filled, reduced, bound, greedy)


def _fill(problem: Problem, order: Ints, density: Ints) -> tuple[list[int], list[int], Bools]:
    """Each class's price (0 where nothing of it is cut), its filling, and what was taken whole."""
    room, whole = _Room(problem), _Room(problem)
    prices: list[int | None] = [None] * len(problem.limits)
    taken = np.zeros(len(order), np.bool_)
    costs, classes = problem.costs.tolist(), problem.classes.tolist()
    sources, cap = problem.sources.tolist(), problem.max_per_source or len(order)
    cheapest = np.minimum.accumulate(problem.costs[order][::-1])[::-1].tolist()
    held: dict[int, int] = {}
    is_open = len(prices)
    for place, at in enumerate(order.tolist()):
        own, cost = classes[at], 1000 * costs[at]
        if not is_open and 1000 * cheapest[place] > max(map(whole.slack, range(len(prices)))):
            break
        if held.get(sources[at], 0) >= cap:
            continue
        if prices[own] is None:
            room.take(own, min(cost, room.slack(own)))
            for one, price in enumerate(prices):
                if price is None and room.slack(one) == 0:
                    prices[one] = int(density[at])
                    is_open -= 1
        if cost <= whole.slack(own):
            whole.take(own, cost)
            taken[at] = True
            held[sources[at]] = held.get(sources[at], 0) + 1
    return [price or 0 for price in prices], room.taken, taken


def _source_prices(reduced: Ints, sources: Ints, cap: int) -> Ints:
    """By source: what the best entry beyond the cap would be worth."""
    order = np.lexsort((-reduced, sources))
    by_source = sources[order]
    first = np.searchsorted(by_source, by_source)
    beyond = order[np.arange(len(order)) - first == cap]
    prices = np.zeros(int(sources.max()) + 1, np.int64)
    prices[sources[beyond]] = np.maximum(reduced[beyond], 0)
    return prices
