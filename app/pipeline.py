"""Assembling one snapshot: the whole story on one page.

A request is narrowed to a scope, answered from its first snapshot where it has one, and
otherwise retrieved, ranked, packed, hashed and stored, in that order. Nothing is written
before the last step, which is one transaction.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from app.audit.event import AuditEvent
from app.canonical import Digest, digest_text, digest_to_bytes, digest_value
from app.errors import InvalidRequestError, PinUnavailableError
from app.packing.rendering import FORMATS
from app.packing.tokens import TokenCounter
from app.retrieval.candidate import Chunk
from app.retrieval.fan_out import Leg, LegOutcome, admits, fan_out
from app.retrieval.fusion import FusedCandidate, LegAnswer, fuse
from app.retrieval.retriever import IndexView, IndexViews, Pin, Retriever, ScopedQuery
from app.scope.access import AccessScope, narrow, whole_grant
from app.scope.grant import Grant
from app.scope.writing import refuse_beyond_grant
from app.snapshot.assembly import Assembly, assemble
from app.snapshot.material import Material, Recipe
from app.snapshot.request import CreateSnapshot, InlineItem, RequestedBudget
from app.snapshot.snapshot import Budget, Exclusion
from app.storage.snapshots import (
    InlineBounds,
    PutOutcome,
    SnapshotRecord,
    SnapshotStore,
    StoredSnapshot,
)
from app.strategy.strategy import Strategy, StrategyCatalog

NOT_AVAILABLE = "not available"
"""Said of every named source that is not in scope, whether it exists or not."""


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that assembling needs; `clock` gives seconds for timings and nothing else."""

    strategies: StrategyCatalog
    views: IndexViews
    retrievers: Mapping[str, Retriever]
    snapshots: SnapshotStore
    tokens: TokenCounter
    engine: str
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Call:
    """One request with who sent it and when; `dry_run` stores nothing.

    When a new snapshot is stored, so is `event`, told the hash, in the same transaction.
    """

    grant: Grant
    request: CreateSnapshot
    evaluated_at: datetime
    refresh: bool = False
    dry_run: bool = False
    event: AuditEvent | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A snapshot's bytes and hash; `created` is False for one that was there already."""

    canonical: bytes
    hash: Digest
    created: bool
    outcomes: tuple[LegOutcome, ...] = ()

    @property
    def degraded(self) -> tuple[LegOutcome, ...]:
        """The legs that gave no answer."""
        return tuple(outcome for outcome in self.outcomes if outcome.retrieval is None)


async def create_snapshot(services: Services, call: Call) -> Answer:
    """Assemble and store the snapshot of one request, or return the one it has.

    Raises RequestError for what the caller can mend, UnavailableError when a part that
    the strategy requires gives no answer.
    """
    request, timings = call.request, _Timings(services.clock)
    scope = narrow(call.grant, request.scope)
    strategy = services.strategies.resolve(request.strategy)
    budget = resolve_budget(request.budget, strategy, services.tokens)
    inline, refused = admit_inline(call.grant, scope, request.items)
    repeat_key = _repeat_key(scope, request)
    if not (call.refresh or call.dry_run):
        repeat = await _find_repeat(services, call, repeat_key)
        if repeat is not None:
            return repeat
    timings.mark("scope")

    view = await services.views.open(scope)
    pinned, unavailable = await _pinned(services, scope, view, request)
    outcomes = await _retrieve(services, strategy, scope, view, request)
    ranked = _fuse(outcomes, strategy)
    timings.mark("retrieval")

    material = Material(
        request=request,
        scope=scope,
        recipe=Recipe(
            name=strategy.name,
            digest=strategy.digest(),
            document=strategy.canonical(),
            rules=strategy.packing.rules(),
            fusion_k=strategy.fusion.k,
        ),
        budget=budget,
        engine=services.engine,
        visible_version=view.visible_version,
        inline=inline,
        pinned=pinned,
        optional_pins=_optional(request.pins, pinned),
        outcomes=outcomes,
        ranked=ranked,
        refused=(*refused, *unavailable),
    )
    count = partial(services.tokens.count, encoding=budget.encoding)
    assembly = await asyncio.to_thread(assemble, material, count)
    timings.mark("assembly")
    if call.dry_run:
        return Answer(assembly.snapshot.canonical, assembly.snapshot.hash, False, outcomes)
    record = _record(call, material, assembly, view, timings.milliseconds)
    return await _store(services, call, record, repeat_key, outcomes)


def resolve_budget(asked: RequestedBudget, strategy: Strategy, tokens: TokenCounter) -> Budget:
    """The request's bounds, with the strategy's where it names none.

    A reserve that is not named never takes more than a quarter of the budget.
    """
    defaults = strategy.budget
    encoding = asked.encoding or defaults.encoding
    if asked.model is not None:
        encoding = tokens.encoding_for_model(asked.model)
        if asked.encoding not in (None, encoding):
            raise InvalidRequestError(
                f"budget.model uses {encoding}, which is not the encoding that is named: "
                f"leave one of the two out.",
                pointers=("/budget/encoding",),
            )
    if encoding not in tokens.encodings:
        raise InvalidRequestError(
            f"Unknown encoding; known are: {', '.join(tokens.encodings)}.",
            pointers=("/budget/encoding",),
        )
    format_ = asked.format or defaults.format
    if format_ not in FORMATS:
        raise InvalidRequestError(
            f"Unknown format; known are: {', '.join(FORMATS)}.", pointers=("/budget/format",)
        )
    max_tokens = defaults.max_tokens if asked.max_tokens is None else asked.max_tokens
    reserved, usual = asked.reserved_for_output, None
    if reserved is None:
        usual = defaults.reserved_for_output
        reserved = min(usual, max_tokens // 4)
    if reserved >= max_tokens:
        raise InvalidRequestError(
            f"budget.reservedForOutput ({reserved}) leaves nothing of budget.maxTokens "
            f"({max_tokens}): it must be below it.",
            pointers=("/budget/reservedForOutput",),
        )
    return Budget(max_tokens, reserved, encoding, format_, usual)


def admit_inline(
    grant: Grant, scope: AccessScope, items: tuple[InlineItem, ...]
) -> tuple[tuple[InlineItem, ...], tuple[Exclusion, ...]]:
    """Split inline items into those the scope admits and exclusions for the others.

    Raises ScopeExceedsGrantError for an item that claims more than the grant holds.
    """
    refuse_beyond_grant(grant, tuple(item.label for item in items), "/items")
    admitted = tuple(item for item in items if scope.predicate.admits_label(item.label))
    ceiling = scope.predicate.max_classification
    refused = tuple(
        Exclusion(
            project=item.label.project,
            source_id=item.source_id,
            chunk_id=item.chunk_id,
            reason="classification" if item.label.classification.rank > ceiling.rank else "denied",
            detail="the item is outside of the request's own scope",
        )
        for item in items
        if not scope.predicate.admits_label(item.label)
    )
    return admitted, refused


def _repeat_key(scope: AccessScope, request: CreateSnapshot) -> bytes:
    return digest_to_bytes(
        digest_value(
            {
                "request": request.canonical(),
                "scope": scope.to_contract(),
                "predicate": scope.predicate.canonical(),
            }
        )
    )


async def _find_repeat(services: Services, call: Call, repeat_key: bytes) -> Answer | None:
    stored = await services.snapshots.find_repeat(whole_grant(call.grant).predicate, repeat_key)
    return None if stored is None else _known(stored)


def _known(stored: StoredSnapshot) -> Answer:
    return Answer(stored.canonical, stored.hash, created=False)


async def _pinned(
    services: Services, scope: AccessScope, view: IndexView, request: CreateSnapshot
) -> tuple[tuple[Chunk, ...], tuple[Exclusion, ...]]:
    if not request.pins:
        return (), ()
    chunks = await services.views.pinned(scope, view, request.pins)
    # Checked once more here, as every answer of a backend is.
    admitted = tuple(chunk for chunk in chunks if admits(scope.predicate, chunk))
    found = {(chunk.project, chunk.source_id) for chunk in admitted}
    found_chunks = {chunk.identity for chunk in admitted}
    missing = [
        (at, pin)
        for at, pin in enumerate(request.pins)
        if (
            (pin.project, pin.source_id) not in found
            if pin.chunk_id is None
            else (pin.project, pin.source_id, pin.chunk_id) not in found_chunks
        )
    ]
    pointers = tuple(f"/pins/{at}" for at, pin in missing if pin.required)
    if pointers:
        raise PinUnavailableError(
            "These pins are not available: " + ", ".join(pointers), pointers=pointers
        )
    return admitted, tuple(
        Exclusion(pin.project, pin.source_id, "denied", NOT_AVAILABLE, pin.chunk_id)
        for _, pin in missing
    )


def _optional(pins: Sequence[Pin], chunks: Sequence[Chunk]) -> frozenset[tuple[str, str, str]]:
    """The pinned chunks that no required pin names."""
    required = [pin for pin in pins if pin.required]
    return frozenset(
        chunk.identity
        for chunk in chunks
        if not any(
            (pin.project, pin.source_id) == (chunk.project, chunk.source_id)
            and pin.chunk_id in (None, chunk.chunk_id)
            for pin in required
        )
    )


async def _retrieve(
    services: Services,
    strategy: Strategy,
    scope: AccessScope,
    view: IndexView,
    request: CreateSnapshot,
) -> tuple[LegOutcome, ...]:
    if request.query is None:
        return ()
    legs = [
        Leg(
            retriever=services.retrievers[step.name],
            limit=step.limit,
            weight=step.weight,
            deadline_s=step.deadline_ms / 1000,
            may_fail=step.on_failure == "degrade",
        )
        for step in strategy.retrievers
    ]
    limit = max(leg.limit for leg in legs)
    query = ScopedQuery(scope, view, request.query, request.language, limit)
    return await fan_out(legs, query, services.clock)


def _fuse(outcomes: tuple[LegOutcome, ...], strategy: Strategy) -> tuple[FusedCandidate, ...]:
    answers = [
        LegAnswer(outcome.name, outcome.weight, outcome.retrieval)
        for outcome in outcomes
        if outcome.retrieval is not None
    ]
    return fuse(answers, strategy.fusion.k)


def _record(
    call: Call,
    material: Material,
    assembly: Assembly,
    view: IndexView,
    timings_ms: Mapping[str, int],
) -> SnapshotRecord:
    request = call.request
    # Refused ones too: the exclusions name them.
    inline = request.items
    held = {
        (chunk.project, chunk.source_id)
        for chunk in (*material.pinned, *(one.chunk for one in material.ranked))
    }
    ceiling = max(
        (item.label.classification for item in inline), key=lambda c: c.rank, default=None
    )
    return SnapshotRecord(
        hash=assembly.snapshot.hash,
        snapshot_id=assembly.snapshot.snapshot_id,
        run_id=request.run_id,
        step_id=request.step_id,
        attempt_id=request.attempt_id,
        canonical=assembly.snapshot.canonical,
        request=assembly.request,
        report=assembly.report,
        timings_ms=timings_ms,
        index_version=view.index_version,
        evaluated_at=call.evaluated_at,
        engine=material.engine,
        used_tokens=sum(item.tokens for item in assembly.items),
        degraded=assembly.degraded,
        sources=tuple(sorted(held)),
        inline=InlineBounds(
            projects=tuple(sorted({item.label.project for item in inline})),
            classes=tuple(sorted({item.label.knowledge_class for item in inline})),
            classification=ceiling,
        ),
        texts=tuple(sorted({digest_text(text): text for text in request.texts()}.items())),
    )


async def _store(
    services: Services,
    call: Call,
    record: SnapshotRecord,
    repeat_key: bytes,
    outcomes: tuple[LegOutcome, ...],
) -> Answer:
    tenant = call.grant.tenant
    event = call.event and call.event.about(snapshot=record.hash)
    if call.refresh:
        outcome = await services.snapshots.put(tenant, record, event)
    else:
        outcome = await services.snapshots.put_if_absent(tenant, record, repeat_key, event)
        if outcome is PutOutcome.REPEAT_TAKEN:
            # Another call was first. What it stored may have become unreadable since.
            known = await _find_repeat(services, call, repeat_key)
            if known is not None:
                return known
            outcome = await services.snapshots.put(tenant, record, event)
    created = outcome is PutOutcome.STORED
    return Answer(record.canonical, record.hash, created, outcomes)


class _Timings:
    """Milliseconds per stage; they stay outside of everything that is hashed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last = clock, clock()
        self.milliseconds: dict[str, int] = {}

    def mark(self, stage: str) -> None:
        now = self._clock()
        self.milliseconds[stage] = round((now - self._last) * 1000)
        self._last = now
