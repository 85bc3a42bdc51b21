"""Judging candidates by age: what has expired, and what a newer revision is known of. Pure.

Guarantees: the time of evaluation is an argument; no candidate is lost, each goes on or is
excluded with the reason; scores stay as they are.
Not handled here: who said that there is a newer revision, and searching past what is stale
(a leg's limit counts it too).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from app.canonical import Digest
from app.retrieval.candidate import Chunk
from app.retrieval.fusion import FusedCandidate

StalePolicy = Literal["allow", "prefer-fresh", "exclude"]
_Key = tuple[tuple[str, str, str], Digest]


@dataclass(frozen=True, slots=True)
class StaleChunk:
    """A chunk that is not up to date; `detail` says why."""

    chunk: Chunk
    detail: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a ranking.

    `ranked` goes on, best first. `stale` holds every stale chunk once; those of `excluded`
    go no further, those of `pinned` stay although they are stale.
    """

    ranked: tuple[FusedCandidate, ...]
    stale: tuple[StaleChunk, ...] = ()
    excluded: tuple[StaleChunk, ...] = ()
    pinned: tuple[StaleChunk, ...] = ()


def staleness(
    revision: str, head_revision: str | None, expires_at: datetime | None, at: datetime
) -> str | None:
    """Why a revision of a source is stale at a time, as a sentence; None while it is fresh.

    A head of another revision makes it stale (there is no order among revisions), and so
    does its expiry, from that very instant on.
    """
    reasons = []
    if head_revision not in (None, revision):
        reasons.append(f"a newer revision {head_revision} is known")
    if expires_at is not None and expires_at <= at:
        # The zone in which a time came back is the database session's.
        moment = expires_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        reasons.append(f"expired at {moment}")
    return "; ".join(reasons) or None


def judge(
    ranked: Sequence[FusedCandidate],
    pinned: Sequence[Chunk],
    policy: StalePolicy,
    evaluated_at: datetime,
) -> Judgement:
    """Apply a strategy's policy to a ranking.

    `allow` leaves it as it is; `prefer-fresh` puts stale candidates behind all fresh ones,
    in the same order among themselves; `exclude` takes them out. A pinned chunk was asked
    for by name: it is never taken out, whatever the policy, but told as stale.
    """
    stale: dict[_Key, StaleChunk] = {}
    for chunk in (*(one.chunk for one in ranked), *pinned):
        detail = staleness(chunk.revision, chunk.head_revision, chunk.expires_at, evaluated_at)
        if detail is not None:
            stale.setdefault(_key(chunk), StaleChunk(chunk, detail))
    named = {_key(chunk) for chunk in pinned} & stale.keys()
    fresh = tuple(one for one in ranked if _key(one.chunk) not in stale)
    behind = tuple(one for one in ranked if _key(one.chunk) in stale)
    kept: tuple[FusedCandidate, ...] = tuple(ranked)
    excluded: tuple[StaleChunk, ...] = ()
    if policy == "prefer-fresh":
        kept = fresh + behind
    elif policy == "exclude":
        kept = fresh + tuple(one for one in behind if _key(one.chunk) in named)
        excluded = tuple(stale[_key(one.chunk)] for one in behind if _key(one.chunk) not in named)
    return Judgement(
        ranked=kept,
        stale=tuple(stale.values()),
        excluded=excluded,
        pinned=tuple(one for key, one in stale.items() if key in named),
    )


def _key(chunk: Chunk) -> _Key:
    """Tells a pinned chunk from what a leg knows under the same name with another text."""
    return chunk.identity, chunk.content_hash
