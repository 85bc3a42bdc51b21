"""Fusing the answers of several retrievers into one ranking, in whole numbers.

Source: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and
individual Rank Learning Methods" (2009): a chunk's score is the sum of weight / (k + rank)
over the legs that found it, here in units of 10^-9, rounded down leg by leg.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.retrieval.candidate import Chunk, Retrieval

_UNIT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LegAnswer:
    """What one leg found and how much it counts."""

    retriever: str
    weight: int
    retrieval: Retrieval


@dataclass(frozen=True, slots=True)
class FusedCandidate:
    """A chunk with its fused score; `found_by` names the leg that ranked it best."""

    chunk: Chunk
    score: int
    found_by: str
    visible_version: str


def fuse(answers: Sequence[LegAnswer], k: int) -> tuple[FusedCandidate, ...]:
    """Best first; ties in the chunks' own order. Each chunk stands once."""
    scores: dict[tuple[str, str, str], int] = {}
    best: dict[tuple[str, str, str], tuple[int, str, str, Chunk]] = {}
    for answer in sorted(answers, key=lambda one: one.retriever):
        for candidate in answer.retrieval.candidates:
            key = candidate.chunk.identity
            scores[key] = scores.get(key, 0) + answer.weight * _UNIT // (k + candidate.rank)
            found = (
                candidate.rank,
                answer.retriever,
                answer.retrieval.visible_version,
                candidate.chunk,
            )
            if key not in best or candidate.rank < best[key][0]:
                best[key] = found
    fused = (
        FusedCandidate(chunk, scores[key], retriever, version)
        for key, (_, retriever, version, chunk) in best.items()
    )
    return tuple(sorted(fused, key=lambda one: (-one.score, one.chunk.tie_break)))


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A candidate left out because a better one has the same text."""

    candidate: FusedCandidate
    kept: Chunk


def drop_same_text(
    ranked: Sequence[FusedCandidate], taken: Sequence[Chunk]
) -> tuple[tuple[FusedCandidate, ...], tuple[Duplicate, ...]]:
    """Keep one candidate of each text; a text that is `taken` already is kept there.

    Of several the one of the highest trust is kept, and of those the best: a copy must not
    displace the text that it copies. A candidate that is itself among the taken ones is
    neither: it stands there.
    """
    holders = {chunk.content_hash: chunk for chunk in reversed(taken)}
    present = {(chunk.identity, chunk.content_hash) for chunk in taken}
    left = [one for one in ranked if (one.chunk.identity, one.chunk.content_hash) not in present]
    for candidate in sorted(left, key=lambda one: one.chunk.label.trust_tier.rank):
        holders.setdefault(candidate.chunk.content_hash, candidate.chunk)
    unique = tuple(one for one in left if holders[one.chunk.content_hash] is one.chunk)
    duplicates = tuple(
        Duplicate(one, holders[one.chunk.content_hash])
        for one in left
        if holders[one.chunk.content_hash] is not one.chunk
    )
    return unique, duplicates
