"""What a candidate is worth to a packing, in whole numbers. Pure.

Guarantees: a better ranked candidate is worth no less than one behind it; all candidates of one
assembly together are worth less than one text that the caller brought or named.

Two rules, chosen on the first half of the queries of two collections by the share of relevant
texts that a packing holds at budgets of 500 to 4,000 tokens (`bench.packing`): by `scores`
relevance² / rank^½, where relevance is the score in parts of the best one, for scores that say
how good a text is; by `ranks` 1 / rank^1½, for those that only say which is better. The sum of
such values stands for how many of the chosen texts are relevant: of two texts that could fill
the same room, the shorter one leaves some of it to others.

Not handled here: which entries fit (`packer`).
"""

from collections.abc import Sequence
from math import isqrt
from typing import Literal

import numpy as np

ValueRule = Literal["ranks", "scores"]

UNIT = 10_000_000
"""What the best candidate is worth."""
NAMED = 1_000_000_000_000
"""What a text is worth that the caller brought or named."""
MOST_PRIORITY = 10

_BITS = 64
_BY_CHANCE = _BITS // 2
"""Bits in which the signatures of unlike texts agree."""
_MILLION = 1_000_000


def values_of(scores: Sequence[int], rule: ValueRule) -> list[int]:
    """Values of a ranking, best first; scores are 0 or more.

    The order counts, not the score alone: what was put behind others, because it is stale, is
    worth no more than they are.
    """
    best = max(scores[0], 1) if scores else 1
    least, values = best, []
    for rank, score in enumerate(scores, start=1):
        least = min(least, score)
        if rule == "scores":
            parts = UNIT * least * least // (best * best)
            values.append(parts * _MILLION // isqrt(rank * _MILLION**2))
        else:
            values.append(UNIT * _MILLION // isqrt(rank**3 * _MILLION**2))
    return values


def likeness(signatures: Sequence[int | None]) -> list[int]:
    """How like each text is to the likest one before it, in per mille; 0 where unknown.

    After maximal marginal relevance (Carbonell and Goldstein, "The Use of MMR, Diversity-Based
    Reranking", 1998), with the bits in which two signatures agree, beyond chance, as likeness.
    Unlike there, all better ranked texts count, whether they are chosen or not: so that what a
    text is worth does not depend on the budget.
    """
    known = [at for at, signature in enumerate(signatures) if signature is not None]
    bits = np.array([signatures[at] for at in known], np.int64).view(np.uint64)
    found = [0] * len(signatures)
    for place, at in enumerate(known[1:], start=1):
        different = int(np.bitwise_count(bits[:place] ^ bits[place]).min())
        found[at] = max(_BY_CHANCE - different, 0) * 1000 // _BY_CHANCE
    return found
