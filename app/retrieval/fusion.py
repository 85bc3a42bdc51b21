"""Fusing the answers of several retrievers into one ranking, in whole numbers.

Guarantees: the result depends on the answers alone, not on their order; each leg's part of a
score is rounded down to units of 10^-9 by itself.

By rank: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and
individual Rank Learning Methods" (2009): a chunk's score is the sum of weight / (k + rank)
over the legs that found it.

By score: a convex combination of scores that are made comparable leg by leg: how far a score is
above the least that the leg found, in standard deviations over all candidates, of which those that
the leg did not find have 0 (after Montague and Aslam, "Relevance Score Normalization for
Metasearch", 2001, and for the combination Bruch, Gai and Ingber, "An Analysis of Fusion Functions
for Hybrid Retrieval", 2023). So what a leg says of few candidates among many, such as the only text
with a rare word, counts more than what it says of all. Of a leg whose scores are all equal each
chunk is 1 above: it told what belongs to the answer, and nothing else.
Weights are relative to their sum over the legs that answered.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Literal

from app.canonical import Digest
from app.retrieval.candidate import Chunk, Retrieval
from app.retrieval.near_duplicates import NearDuplicates

FusionMethod = Literal["reciprocal-rank", "normalised-scores"]

UNIT = 1_000_000_000
"""What a fused score is counted in: 1 is 10^-9."""
_ROOT_BITS = 20


@dataclass(frozen=True, slots=True)
class LegAnswer:
    """What one leg found and how much it counts."""

    retriever: str
    weight: int
    retrieval: Retrieval


@dataclass(frozen=True, slots=True)
class FusedCandidate:
    """A chunk with its fused score; `found_by` names the leg that ranked it best.

    A chunk that the index holds is that of a leg that searches the index, if there is one.
    """

    chunk: Chunk
    score: int
    found_by: str
    visible_version: str


def fuse(
    answers: Sequence[LegAnswer], k: int, method: FusionMethod = "reciprocal-rank"
) -> tuple[FusedCandidate, ...]:
    """Best first; ties in the chunks' own order. Each chunk stands once.

    `k` levels the ranks, where they count.
    """
    scores: dict[tuple[str, str, str], int] = {}
    best: dict[tuple[str, str, str], tuple[tuple[bool, int], str, str, Chunk]] = {}
    parts_of = partial(_by_rank, k=k)
    if method == "normalised-scores":
        names = {one.chunk.identity for each in answers for one in each.retrieval.candidates}
        total = sum(answer.weight for answer in answers)
        parts_of = partial(_by_score, total_weight=total, candidates=len(names))
    for answer in sorted(answers, key=lambda one: one.retriever):
        for candidate, part in zip(answer.retrieval.candidates, parts_of(answer), strict=True):
            key = candidate.chunk.identity
            scores[key] = scores.get(key, 0) + part
            # What the index holds under a name is believed before what others say of it.
            preference = candidate.chunk.external, candidate.rank
            found = (
                preference,
                answer.retriever,
                answer.retrieval.visible_version,
                candidate.chunk,
            )
            if key not in best or preference < best[key][0]:
                best[key] = found
    return ranked(
        FusedCandidate(chunk, scores[key], retriever, version)
        for key, (_, retriever, version, chunk) in best.items()
    )


def ranked(candidates: Iterable[FusedCandidate]) -> tuple[FusedCandidate, ...]:
    """Best first; ties in the chunks' own order."""
    return tuple(sorted(candidates, key=lambda one: (-one.score, one.chunk.tie_break)))


def _by_rank(answer: LegAnswer, k: int) -> Iterator[int]:
    for candidate in answer.retrieval.candidates:
        yield answer.weight * UNIT // (k + candidate.rank)


def _by_score(answer: LegAnswer, total_weight: int, candidates: int) -> Iterator[int]:
    scores = [candidate.score for candidate in answer.retrieval.candidates]
    least = min(scores, default=0)
    above = [score - least for score in scores]
    if not any(above):
        above = [1] * len(scores)
    # The square of `candidates`, times the variance; the root has 20 bits after the point.
    spread = candidates * sum(one * one for one in above) - sum(above) ** 2
    deviations = isqrt(spread << 2 * _ROOT_BITS) if spread else candidates << _ROOT_BITS
    for one in above:
        parts = (one * candidates << _ROOT_BITS) * answer.weight * UNIT
        yield parts // (deviations * total_weight)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A candidate left out because a better one has the same text, or nearly the same.

    `different_bits` is None for the same text, else by how many of 64 bits the signatures
    differ.
    """

    candidate: FusedCandidate
    kept: Chunk
    different_bits: int | None = None


def drop_duplicates(
    candidates: Sequence[FusedCandidate],
    taken: Sequence[Chunk],
    max_different_bits: int | None = None,
) -> tuple[tuple[FusedCandidate, ...], tuple[Duplicate, ...]]:
    """Keep one candidate of each text; a text that is `taken` already is kept there.

    Of several the one of the highest trust is kept, and of those the best: a copy must not
    displace the text that it copies. A candidate that is itself among the taken ones is
    neither: it stands there. With `max_different_bits` texts that are near to a kept one are
    left out too (`near_duplicates`), in the same order of preference.
    """
    present = {(chunk.identity, chunk.content_hash) for chunk in taken}
    left = [
        one for one in candidates if (one.chunk.identity, one.chunk.content_hash) not in present
    ]
    holders = _holders(left, taken, max_different_bits)
    unique, duplicates = [], []
    for candidate in left:
        kept, different_bits = holders[candidate.chunk.content_hash]
        if kept is candidate.chunk:
            unique.append(candidate)
        else:
            duplicates.append(Duplicate(candidate, kept, different_bits))
    return tuple(unique), tuple(duplicates)


def _holders(
    left: Sequence[FusedCandidate], taken: Sequence[Chunk], max_different_bits: int | None
) -> dict[Digest, tuple[Chunk, int | None]]:
    """Which chunk stands for each text, and how many bits it differs by if it is another."""
    holders: dict[Digest, tuple[Chunk, int | None]] = {
        chunk.content_hash: (chunk, None) for chunk in reversed(taken)
    }
    near = None
    if max_different_bits is not None:
        near = NearDuplicates(len(holders) + len(left), max_different_bits)
        for chunk, _ in reversed(holders.values()):
            near.keep(chunk)
    for candidate in sorted(left, key=lambda one: one.chunk.label.trust_tier.rank):
        chunk = candidate.chunk
        if chunk.content_hash in holders:
            continue
        found = near.find(chunk) if near else None
        holders[chunk.content_hash] = found or (chunk, None)
        if near and found is None:
            near.keep(chunk)
    return holders
