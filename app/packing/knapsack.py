"""The subset of the greatest value within nested limits, with a proven bound. Pure.

What deviates from the choice of the relaxation's prices is searched with lists of states in an
expanding core, the entries of the least reduced value first (Pisinger, "A Minimal Algorithm for
the 0-1 Knapsack Problem", 1997; Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital
Allocation", 1969, for the lists): an entry whose reduced value exceeds the gap is never touched.
Each class that has a limit or a reserve has a list of its own; they are combined in the end.

Guarantees: whole numbers only, no clock, bounded work; the same problem gives the same answer
on every machine; the choice is within all limits; no choice within them is worth more than the
bound, which equals the value where the search came to its end.
Not handled here: what entries stand for, envelopes, and why one is left out (`packer`).
"""

from dataclasses import dataclass, replace

import numpy as np

from app.packing.relaxation import Bools, Ints, Problem, Relaxation

MOST_STATES = 4096
"""States that are kept after each entry."""
MOST_WORK = 1 << 18
"""States that are looked at in all."""
MOST_COMBINED = 1024
"""States of a class that are combined with those of others."""
FIRST_CORE = 12
"""Entries of each class that are tried first where there are several classes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Places of the chosen entries, ascending, what they are worth, and the bound."""

    chosen: Ints
    value: int
    upper_bound: int


def solve(problem: Problem, relaxation: Relaxation, at_least: int = -1) -> Choice:
    """The best choice that the search comes to; empty where none is worth more than `at_least`.

    The bound is of all choices, or `at_least` where that is more.
    """
    greedy = int(problem.values[relaxation.greedy].sum())
    search = _Search(problem, relaxation, max(greedy, at_least))
    search.run()
    if search.found is not None:
        chosen = np.flatnonzero(search.found)
    else:
        chosen = np.flatnonzero(relaxation.greedy) if greedy > at_least else np.array([], np.int64)
    return Choice(chosen, int(problem.values[chosen].sum()), search.upper_bound)


@dataclass(frozen=True, slots=True)
class _States:
    """Choices within one class, by what they sum to; `ours` counts the source in hand.

    `parents` are places among the states before, `changed` whether the entry was put in or out.
    """

    costs: Ints
    values: Ints
    losses: Ints
    ours: Ints
    parents: Ints
    changed: Bools

    def __len__(self) -> int:
        return len(self.costs)

    def at(self, places: Ints | Bools) -> "_States":
        return _States(
            self.costs[places],
            self.values[places],
            self.losses[places],
            self.ours[places],
            self.parents[places],
            self.changed[places],
        )

    def with_change(self, sign: int, cost: int, value: int, loss: int) -> "_States":
        """Each of these states as it was, and then each with an entry put in or taken out."""
        count = len(self)
        return _States(
            np.concatenate((self.costs, self.costs + sign * cost)),
            np.concatenate((self.values, self.values + sign * value)),
            np.concatenate((self.losses, self.losses + loss)),
            np.concatenate((self.ours, self.ours + sign)),
            np.tile(np.arange(count), 2),
            np.repeat(np.array([False, True]), count),
        )


_History = list[tuple[int, _States]]


class _Search:
    """Looks for a choice that is worth more than `best`, from the prices' own choice on."""

    def __init__(self, problem: Problem, relaxation: Relaxation, best: int) -> None:
        self._problem, self._relaxation, self._best = problem, relaxation, best
        self._base = relaxation.reduced > 0
        self._losses = np.abs(relaxation.reduced)
        self._cap = problem.max_per_source
        self._unseen_loss: int | None = None
        self._work = 0
        self.found: Bools | None = None

    @property
    def upper_bound(self) -> int:
        """Of every choice: what was found, or what the search left unseen may be worth."""
        if self._unseen_loss is None:
            return self._best
        unseen = (self._relaxation.bound - self._unseen_loss) >> self._relaxation.shift
        return max(self._best, unseen)

    @property
    def _most_loss(self) -> int:
        """A choice that loses more is not worth more than the best one."""
        return self._relaxation.bound - ((self._best + 1) << self._relaxation.shift)

    def run(self) -> None:
        if len(self._problem.limits) == 1:
            self._expand(0, self._core(0), notes=True)
            return
        # With the first few of each class the gap closes enough for few to be left.
        for most in (FIRST_CORE, None):
            self._unseen_loss, self._work = None, 0
            self._combine(most)

    def _core(self, of_class: int) -> Ints:
        """What may differ from the prices' choice, the least loss first, sources together."""
        problem = self._problem
        core = np.flatnonzero((self._losses <= self._most_loss) & (problem.classes == of_class))
        losses = self._losses[core]
        if self._cap is None:
            return core[np.argsort(losses, kind="stable")]
        sources = problem.sources[core]
        least = np.full(int(problem.sources.max()) + 1, losses.max(initial=0))
        np.minimum.at(least, sources, losses)
        return core[np.lexsort((losses, sources, least[sources]))]

    def _expand(self, of_class: int, core: Ints, *, notes: bool) -> tuple[_States, _History]:
        """Choices of a class of which no other costs less and is worth more."""
        problem, history = self._problem, _History()
        base = self._base & (problem.classes == of_class)
        states, last = _start(problem, base), None
        if notes:
            self._note(states, history)
        removable = [*(problem.costs * base)[core][::-1].cumsum()[::-1].tolist(), 0]
        for place, at in enumerate(core.tolist()):
            loss = int(self._losses[at])
            if loss > self._most_loss or not len(states):
                continue
            if self._work > MOST_WORK:
                self._leave(int(self._losses[core[place:]].min()))
                break
            if last is not None and self._ends_source(last, at):
                states = self._without_excess(states, last)
                history.append((last, states))
            last = at
            states = self._changed(states, at)
            if notes:
                self._note(states, [*history, (at, states)], at)
            least = states.costs - removable[place + 1]
            states = states.at(
                (states.losses <= self._most_loss) & (least <= problem.limits[of_class])
            )
            states = states.at(_undominated(states.costs, states.values, states.ours))
            states = states.at(self._nearest(states, of_class, MOST_STATES))
            self._work += len(states)
            history.append((at, states))
        if last is not None and self._cap is not None:
            states = self._without_excess(states, last)
            history.append((last, states))
        return states, history

    def _changed(self, states: _States, at: int) -> _States:
        sign = -1 if self._base[at] else 1
        cost, value = int(self._problem.costs[at]), int(self._problem.values[at])
        return states.with_change(sign, cost, value, int(self._losses[at]))

    def _ends_source(self, last: int, at: int) -> bool:
        sources = self._problem.sources
        return self._cap is not None and bool(sources[last] != sources[at])

    def _without_excess(self, states: _States, last: int) -> _States:
        """When a source is done: the states that keep to its cap."""
        inside = np.flatnonzero(states.ours <= self._free_places(last))
        none = np.zeros(len(inside), np.int64)
        places = inside[_undominated(states.costs[inside], states.values[inside], none)]
        none = none[: len(places)]
        kept = states.at(places)
        return replace(kept, ours=none, parents=places, changed=none.astype(np.bool_))

    def _note(self, states: _States, history: _History, at: int | None = None) -> None:
        """Keeps the best of the states that are choices within the limits."""
        allowed = states.costs <= self._problem.room
        if at is not None and self._cap is not None:
            allowed &= states.ours <= self._free_places(at)
        worth = np.where(allowed, states.values, -1)
        place = int(worth.argmax()) if len(worth) else -1
        if place >= 0 and worth[place] > self._best:
            self._best = int(worth[place])
            self.found = self._base.copy()
            self._change(self.found, history, place)

    def _change(self, choice: Bools, history: _History, place: int) -> None:
        """Makes the prices' choice that of a state."""
        for entry, states in reversed(history):
            if states.changed[place]:
                choice[entry] = not choice[entry]
            place = int(states.parents[place])

    def _free_places(self, at: int) -> int:
        """How many more of the entry's source the prices' own choice could hold."""
        held = self._base[self._problem.sources == self._problem.sources[at]].sum()
        return (self._cap or 0) - int(held)

    def _nearest(self, states: _States, of_class: int, most: int) -> Ints:
        """Places of what is nearly as full as the best fractional packing and loses little."""
        if len(states) <= most:
            return np.arange(len(states))
        unfilled = np.abs(self._relaxation.filled[of_class] // 1000 - states.costs)
        distance = states.losses + self._relaxation.prices[of_class] * unfilled
        order = np.argsort(distance, kind="stable")
        self._leave(int(states.losses[order[most:]].min()))
        return np.sort(order[:most])

    def _combine(self, most: int | None) -> None:
        """Choices of all classes together; `most` entries of each may differ from the prices'."""
        problem = self._problem
        kept, values, losses = (np.zeros(1, np.int64) for _ in range(3))
        parts: list[tuple[_History, Ints, Ints]] = []
        for one, (limit, reserve) in enumerate(zip(problem.limits, problem.reserves, strict=True)):
            states, history = self._expand(one, self._core(one)[:most], notes=False)
            inside = np.flatnonzero(states.costs <= limit)
            places = inside[self._nearest(states.at(inside), one, MOST_COMBINED)]
            chosen = states.at(places)
            own = np.maximum(1000 * chosen.costs, reserve)
            sums = (kept[:, None] + own).ravel(), (losses[:, None] + chosen.losses).ravel()
            worth = (values[:, None] + chosen.values).ravel()
            fits = np.flatnonzero((sums[0] <= 1000 * problem.room) & (sums[1] <= self._most_loss))
            left = fits[_undominated(sums[0][fits], worth[fits], np.zeros(len(fits), np.int64))]
            if len(left) > MOST_COMBINED:
                order = np.argsort(sums[1][left], kind="stable")
                self._leave(int(sums[1][left[order[MOST_COMBINED]]]))
                left = np.sort(left[order[:MOST_COMBINED]])
            parts.append((history, left // max(len(own), 1), places[left % max(len(own), 1)]))
            kept, losses, values = sums[0][left], sums[1][left], worth[left]
        if len(values) and int(values.max()) > self._best:
            self._best = int(values.max())
            self.found = self._base.copy()
            place = int(values.argmax())
            for history, before, own_places in reversed(parts):
                self._change(self.found, history, int(own_places[place]))
                place = int(before[place])

    def _leave(self, loss: int) -> None:
        """What is not looked at loses at least so much."""
        self._unseen_loss = loss if self._unseen_loss is None else min(self._unseen_loss, loss)


def _start(problem: Problem, base: Bools) -> _States:
    none = np.zeros(1, np.int64)
    costs = problem.costs[base].sum(keepdims=True)
    return _States(
        costs, problem.values[base].sum(keepdims=True), none, none, none, none.astype(np.bool_)
    )


def _undominated(costs: Ints, values: Ints, kinds: Ints) -> Ints:
    """Places of what no other of its kind replaces: one that costs no more and is worth more.

    By kind, and by cost in each; of equal ones the first.
    """
    order = np.lexsort((-values, costs, kinds))
    values, kinds = values[order], kinds[order]
    group = np.zeros(len(order), np.int64)
    group[1:] = (kinds[1:] != kinds[:-1]).cumsum()
    # Each kind lies above the one before, so that one running maximum serves them all.
    least = int(values.min(initial=0))
    raised = values - least + group * (int(values.max(initial=0)) - least + 1)
    is_best = np.ones(len(order), np.bool_)
    is_best[1:] = raised[1:] > np.maximum.accumulate(raised)[:-1]
    return order[is_best]
