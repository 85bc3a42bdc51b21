"""What may be packed: texts that the request brought or named, and candidates. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.canonical import Digest, digest_text
from app.packing.compression import Span
from app.packing.filling import PackingRules
from app.packing.rendering import Block, footer_tokens, framed_body, header_tokens
from app.packing.value import NAMED, likeness, values_of
from app.retrieval.candidate import Chunk
from app.retrieval.fusion import FusedCandidate
from app.snapshot.compression import Shortener
from app.snapshot.material import Material
from app.snapshot.request import InlineItem

PINNED = "pinned"
"""Stands for the retriever in the `indexVersion` of a pinned item."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that may be packed, before it is chosen."""

    block: Block
    content_hash: Digest
    index_version: str | None
    provenance: str | None
    required: bool
    cost_tokens: int
    ordinal: int
    signature: int | None
    value: int
    relevance: int = 1000
    discount: int = 0
    body_tokens: int = 0
    candidate: Chunk | None = None
    """What may be shortened: neither what the request brought nor what it named."""
    original_tokens: int | None = None
    spans: tuple[Span, ...] = ()


def as_chunk(material: Material, item: InlineItem) -> Chunk:
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


def pieces_of(
    material: Material, unique: Sequence[FusedCandidate], count_tokens: Callable[[str], int]
) -> list[Piece]:
    """Inline items, then pins, then candidates: the order in which they count."""
    encoding = material.budget.encoding
    footer = footer_tokens(count_tokens)

    def piece(
        chunk: Chunk,
        index_version: str | None,
        *,
        required: bool,
        value: int,
        relevance: int = 1000,
        candidate: Chunk | None = None,
    ) -> Piece:
        block = Block(chunk.source_id, chunk.revision, chunk.chunk_id, chunk.label, chunk.text)
        body = chunk.body_tokens.get(encoding)
        if body is None:
            body = count_tokens(framed_body(chunk.text))
        return Piece(
            block=block,
            content_hash=chunk.content_hash,
            index_version=index_version,
            provenance=chunk.provenance,
            required=required,
            cost_tokens=header_tokens(block, count_tokens) + body + footer,
            ordinal=chunk.ordinal,
            signature=chunk.signature,
            value=value,
            relevance=relevance,
            body_tokens=body,
            candidate=candidate,
        )

    pinned_version = f"{PINNED}:{material.visible_version}"
    named = [
        *(
            piece(as_chunk(material, item), None, required=item.required, value=NAMED)
            for item in material.inline
        ),
        *(
            piece(
                chunk,
                pinned_version,
                required=chunk.identity not in material.optional_pins,
                value=NAMED,
            )
            for chunk in material.pinned
        ),
    ]
    scores = [one.score for one in unique]
    best = max([*scores, 1])
    values = values_of(scores, material.recipe.rules.value)
    found = [
        piece(
            one.chunk,
            f"{one.found_by}:{one.visible_version}",
            required=False,
            value=value,
            relevance=one.score * 1000 // best,
            candidate=one.chunk,
        )
        for one, value in zip(unique, values, strict=True)
    ]
    return _weighed([*named, *found], len(named), material.recipe.rules)


def _weighed(pieces: list[Piece], named: int, rules: PackingRules) -> list[Piece]:
    """Candidates, which stand behind what was named, by their classes and by what is like them."""
    if not rules.class_shares and not rules.diversity_permille:
        return pieces
    like = [0] * len(pieces)
    if rules.diversity_permille:
        like = likeness([piece.signature for piece in pieces])
    weighed = pieces[:named]
    for at in range(named, len(pieces)):
        share = rules.class_shares.get(pieces[at].block.label.knowledge_class)
        value = pieces[at].value * (share.priority if share else 1)
        discount = value * like[at] * rules.diversity_permille // 1_000_000
        weighed.append(replace(pieces[at], value=value - discount, discount=discount))
    return weighed


def shortened(piece: Piece, shortener: Shortener, room_tokens: int) -> Piece | None:
    """A candidate at a cost of at most so many tokens, its block around it included."""
    if piece.candidate is None:
        return None
    wrapper_tokens = piece.cost_tokens - piece.body_tokens
    found = shortener.shorten(piece.candidate, piece.body_tokens, room_tokens - wrapper_tokens)
    if found is None:
        return None
    return replace(
        piece,
        block=replace(piece.block, text=found.text),
        content_hash=digest_text(found.text),
        cost_tokens=wrapper_tokens + found.body_tokens,
        original_tokens=piece.cost_tokens,
        spans=found.spans,
    )
