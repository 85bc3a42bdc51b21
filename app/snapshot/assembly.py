"""From ranked material to a finished snapshot and its report. Pure: no I/O, no clock.

Guarantees: every candidate becomes an item or an exclusion; the items' tokens are exact
and add up to the rendering's; equal material gives equal bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.canonical import (
    JsonValue,
    canonical_bytes,
    digest_bytes,
)
from app.errors import BudgetTooSmallError
from app.packing.filling import Entry, PromptOrder
from app.packing.packer import Packing, pack, required_tokens
from app.packing.rendering import (
    Block,
    envelope_tokens,
    fence_marker,
    render,
)
from app.retrieval.freshness import StaleChunk, judge
from app.retrieval.fusion import Duplicate, drop_duplicates
from app.scope.vocabulary import TrustTier
from app.snapshot.compression import Compression, Shortener
from app.snapshot.material import Material
from app.snapshot.pieces import Piece, as_chunk, pieces_of, shortened
from app.snapshot.report import write_report
from app.snapshot.request import CreateSnapshot
from app.snapshot.snapshot import (
    Exclusion,
    Item,
    Provenance,
    Snapshot,
    build_snapshot,
)

ASSEMBLY_VERSION = "1"
"""To be raised with every change of what fusion, packing, rendering or the report make of equal
material: it is part of the engine that is stored with a snapshot, and a replay tells of it.
"""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A finished snapshot with what is stored beside it."""

    snapshot: Snapshot
    items: tuple[Item, ...]
    exclusions: tuple[Exclusion, ...]
    blocks: tuple[Block, ...]
    rendered: JsonValue
    request: bytes
    report: bytes
    degraded: tuple[str, ...]


def assemble(material: Material, count_tokens: Callable[[str], int]) -> Assembly:
    """Pack, render and hash. Blocking; the time grows with the number of candidates.

    Raises BudgetTooSmallError when the required items do not fit.
    """
    taken = (*(as_chunk(material, item) for item in material.inline), *material.pinned)
    # Freshness first: of equal texts, a stale one must not keep a fresh one out.
    judged = judge(material.ranked, material.pinned, material.recipe.stale, material.evaluated_at)
    unique, duplicates = drop_duplicates(judged.ranked, taken, material.recipe.max_different_bits)
    pieces = pieces_of(material, unique, count_tokens)
    envelopes = {
        tier: envelope_tokens(tier, material.budget.format, count_tokens) for tier in TrustTier
    }
    packing, pieces = _pack(pieces, material, envelopes, count_tokens)
    chosen = [pieces[at] for at in packing.chosen]
    places = _prompt_places(chosen, material.recipe.rules.order)
    items = _items(chosen, envelopes, places)
    exclusions = (
        *material.refused,
        *map(_stale, judged.excluded),
        *_left_out(pieces, packing),
        *map(_duplicate, duplicates),
    )
    blocks = tuple(piece.block for piece in chosen)
    marker = fence_marker(blocks, (piece.content_hash for piece in chosen))
    in_order = blocks if places is None else [blocks[at] for at in places]
    rendered = render(in_order, marker, material.budget.format)
    request = canonical_bytes(material.request.canonical())
    report = canonical_bytes(
        write_report(
            material,
            judged=judged,
            packing=packing,
            missing=_missing(pieces, packing),
            items=items,
            shortened=_compressions(chosen),
            exclusions=exclusions,
            duplicates=duplicates,
            rendered=rendered,
        )
    )
    degraded = tuple(sorted(one.name for one in material.all_outcomes if one.retrieval is None))
    snapshot = build_snapshot(
        ids=_ids(material.request),
        scope=material.scope.to_contract(),
        strategy=material.recipe.name,
        budget=material.budget,
        provenance=Provenance(
            digest_bytes(request), material.recipe.digest, digest_bytes(report), degraded
        ),
        items=items,
        exclusions=exclusions,
    )
    return Assembly(snapshot, items, exclusions, blocks, rendered, request, report, degraded)


def _ids(request: CreateSnapshot) -> dict[str, str]:
    ids = {"runId": request.run_id, "attemptId": request.attempt_id}
    return ids | ({"stepId": request.step_id} if request.step_id else {})


def _prompt_places(chosen: Sequence[Piece], order: PromptOrder) -> list[int] | None:
    """Places among the chosen in the order of the prompt; None: as they are.

    By source, its best one first; within a source as the document has it.
    """
    if order == "rank":
        return None
    first: dict[tuple[str, str], int] = {}
    for at, piece in enumerate(chosen):
        first.setdefault((piece.block.label.project, piece.block.source_id), at)

    def key(at: int) -> tuple[int, int, int]:
        block = chosen[at].block
        return first[block.label.project, block.source_id], chosen[at].ordinal, at

    return sorted(range(len(chosen)), key=key)


def _pack(
    pieces: Sequence[Piece],
    material: Material,
    envelopes: Mapping[TrustTier, int],
    count_tokens: Callable[[str], int],
) -> tuple[Packing, list[Piece]]:
    """The packing, and the pieces as it has them: some are shortened."""
    entries = [
        Entry(
            cost_tokens=piece.cost_tokens,
            value=piece.value,
            tier=piece.block.label.trust_tier,
            knowledge_class=piece.block.label.knowledge_class,
            source=(piece.block.label.project, piece.block.source_id),
            required=piece.required,
            relevance=piece.relevance,
            discount=piece.discount,
        )
        for piece in pieces
    ]
    budget = material.budget
    needed = required_tokens(entries, envelopes)
    if needed > budget.capacity_tokens:
        raise BudgetTooSmallError(budget.sufficient_max_tokens(needed), budget.max_tokens)
    shortener, present = Shortener(material, count_tokens), list(pieces)

    def shorten(at: int, room_tokens: int) -> int | None:
        found = shortened(pieces[at], shortener, room_tokens)
        if found is None:
            return None
        present[at] = found
        return found.cost_tokens

    rules = material.recipe.rules
    allowed = None if rules.min_compressed_permille is None else shorten
    return pack(entries, budget.capacity_tokens, envelopes, rules, allowed), present


def _compressions(chosen: Sequence[Piece]) -> list[Compression]:
    return [
        Compression(rank, piece.candidate.content_hash, piece.spans)
        for rank, piece in enumerate(chosen, start=1)
        if piece.candidate is not None and piece.original_tokens is not None
    ]


def _items(
    chosen: Sequence[Piece],
    envelopes: Mapping[TrustTier, int],
    places: Sequence[int] | None,
) -> tuple[Item, ...]:
    items, open_tiers = [], set()
    position = {at: place for place, at in enumerate(places or (), start=1)}
    for rank, piece in enumerate(chosen, start=1):
        tier = piece.block.label.trust_tier
        envelope = 0 if tier in open_tiers else envelopes[tier]
        open_tiers.add(tier)
        items.append(
            Item(
                source_id=piece.block.source_id,
                revision=piece.block.revision,
                chunk_id=piece.block.chunk_id,
                label=piece.block.label,
                content_hash=piece.content_hash,
                tokens=piece.cost_tokens + envelope,
                rank=rank,
                index_version=piece.index_version,
                provenance=piece.provenance,
                position=position.get(rank - 1),
                original_tokens=None
                if piece.original_tokens is None
                else piece.original_tokens + envelope,
            )
        )
    return tuple(items)


def _missing(pieces: Sequence[Piece], packing: Packing) -> list[JsonValue]:
    """The first chunks that only the budget left out, with the tokens that would admit each."""
    return [
        {
            "project": pieces[at].block.label.project,
            "sourceId": pieces[at].block.source_id,
            "chunkId": pieces[at].block.chunk_id,
            "tokens": tokens,
        }
        for at, tokens in packing.next
    ]


def _left_out(pieces: Sequence[Piece], packing: Packing) -> list[Exclusion]:
    return [
        Exclusion(
            project=pieces[at].block.label.project,
            source_id=pieces[at].block.source_id,
            chunk_id=pieces[at].block.chunk_id,
            reason="budget",
            detail=f"{reason}; costs {pieces[at].cost_tokens} tokens",
        )
        for at, reason in sorted(packing.left_out.items())
    ]


def _stale(stale: StaleChunk) -> Exclusion:
    chunk = stale.chunk
    return Exclusion(chunk.project, chunk.source_id, "stale", stale.detail, chunk.chunk_id)


def _duplicate(duplicate: Duplicate) -> Exclusion:
    chunk, kept, bits = duplicate.candidate.chunk, duplicate.kept, duplicate.different_bits
    place = f"chunk {kept.chunk_id} of {kept.source_id} in {kept.project}"
    near = f"nearly the same text as {place}: {bits} of 64 bits of the signatures differ"
    return Exclusion(
        project=chunk.project,
        source_id=chunk.source_id,
        chunk_id=chunk.chunk_id,
        reason="duplicate",
        detail=f"same text as {place}" if bits is None else near,
    )
