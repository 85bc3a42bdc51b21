"""From ranked material to a finished snapshot and its report. Pure: no I/O, no clock.

Guarantees: every candidate becomes an item or an exclusion; the items' tokens are exact
and add up to the rendering's; equal material gives equal bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.canonical import (
    Digest,
    JsonValue,
    canonical_bytes,
    digest_bytes,
    digest_text,
)
from app.errors import BudgetTooSmallError
from app.packing.packer import Entry, Packing, pack, required_tokens
from app.packing.rendering import (
    Block,
    envelope_tokens,
    fence_marker,
    footer_tokens,
    framed_body,
    header_tokens,
    render,
)
from app.retrieval.candidate import Chunk
from app.retrieval.freshness import StaleChunk, judge
from app.retrieval.fusion import Duplicate, FusedCandidate, drop_duplicates
from app.scope.vocabulary import TrustTier
from app.snapshot.material import Material
from app.snapshot.report import write_report
from app.snapshot.request import CreateSnapshot, InlineItem
from app.snapshot.snapshot import (
    Exclusion,
    Item,
    Provenance,
    Snapshot,
    build_snapshot,
)

PINNED = "pinned"
"""Stands for the retriever in the `indexVersion` of a pinned item."""

_NAMED_VALUE = 1_000_000_000
"""Worth more than any fused candidate: what the caller brought or named counts first."""


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


@dataclass(frozen=True, slots=True)
class _Piece:
    """Something that may be packed, before it is chosen."""

    block: Block
    content_hash: Digest
    index_version: str | None
    provenance: str | None
    required: bool
    value: int
    cost_tokens: int


def assemble(material: Material, count_tokens: Callable[[str], int]) -> Assembly:
    """Pack, render and hash. Blocking; the time grows with the number of candidates.

    Raises BudgetTooSmallError when the required items do not fit.
    """
    taken = (*(_as_chunk(material, item) for item in material.inline), *material.pinned)
    # Freshness first: of equal texts, a stale one must not keep a fresh one out.
    judged = judge(material.ranked, material.pinned, material.recipe.stale, material.evaluated_at)
    unique, duplicates = drop_duplicates(judged.ranked, taken, material.recipe.max_different_bits)
    pieces = _pieces(material, unique, count_tokens)
    envelopes = {
        tier: envelope_tokens(tier, material.budget.format, count_tokens) for tier in TrustTier
    }
    packing = _pack(pieces, material, envelopes)
    chosen = [pieces[at] for at in packing.chosen]
    items = _items(chosen, envelopes)
    exclusions = (
        *material.refused,
        *map(_stale, judged.excluded),
        *_left_out(pieces, packing),
        *map(_duplicate, duplicates),
    )
    blocks = tuple(piece.block for piece in chosen)
    marker = fence_marker(blocks, (piece.content_hash for piece in chosen))
    rendered = render(blocks, marker, material.budget.format)
    request = canonical_bytes(material.request.canonical())
    report = canonical_bytes(
        write_report(
            material,
            judged=judged,
            packing=packing,
            items=items,
            exclusions=exclusions,
            duplicates=duplicates,
            rendered=rendered,
        )
    )
    degraded = tuple(sorted(one.name for one in material.outcomes if one.retrieval is None))
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


def _as_chunk(material: Material, item: InlineItem) -> Chunk:
    return Chunk(
        tenant=material.scope.tenant,
        project=item.label.project,
        source_id=item.source_id,
        revision=item.revision,
        chunk_id=item.chunk_id,
        ordinal=0,
        label=item.label,
        content_hash=digest_text(item.text),
        text=item.text,
        provenance=item.provenance,
    )


def _pieces(
    material: Material, unique: Sequence[FusedCandidate], count_tokens: Callable[[str], int]
) -> list[_Piece]:
    """Inline items, then pins, then candidates: the order in which they count."""
    encoding = material.budget.encoding
    footer = footer_tokens(count_tokens)

    def piece(chunk: Chunk, index_version: str | None, *, required: bool, value: int) -> _Piece:
        block = Block(chunk.source_id, chunk.revision, chunk.chunk_id, chunk.label, chunk.text)
        body = chunk.body_tokens.get(encoding)
        if body is None:
            body = count_tokens(framed_body(chunk.text))
        return _Piece(
            block=block,
            content_hash=chunk.content_hash,
            index_version=index_version,
            provenance=chunk.provenance,
            required=required,
            value=value,
            cost_tokens=header_tokens(block, count_tokens) + body + footer,
        )

    pinned_version = f"{PINNED}:{material.visible_version}"
    return [
        *(
            piece(_as_chunk(material, item), None, required=item.required, value=_NAMED_VALUE)
            for item in material.inline
        ),
        *(
            piece(
                chunk,
                pinned_version,
                required=chunk.identity not in material.optional_pins,
                value=_NAMED_VALUE,
            )
            for chunk in material.pinned
        ),
        *(
            piece(
                one.chunk,
                f"{one.found_by}:{one.visible_version}",
                required=False,
                value=one.score,
            )
            for one in unique
        ),
    ]


def _pack(
    pieces: Sequence[_Piece], material: Material, envelopes: Mapping[TrustTier, int]
) -> Packing:
    entries = [
        Entry(
            cost_tokens=piece.cost_tokens,
            value=piece.value,
            tier=piece.block.label.trust_tier,
            knowledge_class=piece.block.label.knowledge_class,
            source=(piece.block.label.project, piece.block.source_id),
            required=piece.required,
        )
        for piece in pieces
    ]
    budget = material.budget
    needed = required_tokens(entries, envelopes)
    if needed > budget.capacity_tokens:
        raise BudgetTooSmallError(budget.sufficient_max_tokens(needed), budget.max_tokens)
    return pack(entries, budget.capacity_tokens, envelopes, material.recipe.rules)


def _items(chosen: Sequence[_Piece], envelopes: Mapping[TrustTier, int]) -> tuple[Item, ...]:
    items, open_tiers = [], set()
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
            )
        )
    return tuple(items)


def _left_out(pieces: Sequence[_Piece], packing: Packing) -> list[Exclusion]:
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
