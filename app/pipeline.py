"""Assembling one snapshot: the whole story on one page.

A request is narrowed to a scope, answered from its first snapshot where it has one, and
otherwise retrieved, ranked, packed, hashed and stored, in that order. Nothing is written
before the last step, which is one transaction.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from app.audit.event import AuditEvent
from app.canonical import Digest, JsonObject, canonical_bytes, digest_text
from app.errors import AsOfUnavailableError, InvalidRequestError, PermissionMissingError
from app.gathering import Gathered, Plan, Services, gather
from app.packing.rendering import FORMATS
from app.packing.tokens import TokenCounter
from app.pins import told_of_classification
from app.repeats import RepeatKeys, find_first, repeat_keys
from app.retrieval.external import external_chunks
from app.retrieval.fan_out import LegOutcome
from app.retrieval.retriever import IndexView
from app.scope.access import AccessScope, narrow, whole_grant
from app.scope.grant import Grant
from app.scope.vocabulary import Permission
from app.scope.writing import refuse_beyond_grant
from app.snapshot.assembly import Assembly, assemble
from app.snapshot.material import Material
from app.snapshot.request import AsOf, CreateSnapshot, InlineItem, RequestedBudget
from app.snapshot.snapshot import Budget, Exclusion
from app.storage.labels import IndexVersion
from app.storage.snapshots import InlineBounds, PutOutcome, SnapshotRecord, StoredSnapshot
from app.strategy.strategy import Strategy
from app.tracing import span


@dataclass(frozen=True, slots=True)
class Call:
    """One request with who sent it and when.

    A `dry_run` stores nothing, and always assembles. When a new snapshot is stored, so is
    `event`, told the hash, in the same transaction.
    """

    grant: Grant
    request: CreateSnapshot
    evaluated_at: datetime
    refresh: bool = False
    dry_run: bool = False
    idempotency_key: str | None = None
    event: AuditEvent | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A snapshot's bytes and hash; `created` is False for one that was there already.

    `source` is what else there is to tell of it: how it was assembled, or what is stored.
    What follows is of an assembly alone; `timings_ms` has its stages, storing included.
    """

    canonical: bytes
    hash: Digest
    created: bool
    source: Assembly | StoredSnapshot
    outcomes: tuple[LegOutcome, ...] = ()
    timings_ms: Mapping[str, int] = field(default_factory=dict)
    capacity_tokens: int = 0

    @property
    def degraded(self) -> tuple[LegOutcome, ...]:
        """The legs that gave no answer."""
        return tuple(outcome for outcome in self.outcomes if outcome.retrieval is None)


async def create_snapshot(services: Services, call: Call) -> Answer:
    """Assemble and store the snapshot of one request, or return the one it has.

    Raises RequestError for what the caller can mend, ConflictError among them for an
    idempotency key of another request, and UnavailableError when a part that the strategy
    requires gives no answer.
    """
    request, timings = call.request, _Timings(services.clock)
    scope = narrow(call.grant, request.scope)
    strategy = services.strategies.resolve(request.strategy)
    budget = resolve_budget(request.budget, strategy, services.tokens)
    inline, refused = admit_inline(call.grant, scope, request.items)
    # Before a repeat is looked for: who lost the permission is not answered by it either.
    _check_index_version(call.grant, request.as_of)
    keys = repeat_keys(call.grant, scope, request, call.idempotency_key)
    if not call.dry_run:
        first = await find_first(services.snapshots, call.grant, keys, refresh=call.refresh)
        if first is not None:
            return _known(first)
    timings.mark("scope")

    told = bool(request.pins) and told_of_classification(call.grant)
    plan = Plan(
        request=request,
        scope=scope,
        strategy=strategy,
        budget=budget,
        inline=inline,
        refused=refused,
        view=await open_view(services, call.grant, scope, request.as_of),
        evaluated_at=call.evaluated_at,
        told_of_classification=told,
    )
    with span("retrieval"):
        gathered = await gather(services, plan)
    timings.mark("retrieval")

    material = gathered.material
    count = partial(services.tokens.count, encoding=budget.encoding)
    with span("assembly"):
        assembly = await asyncio.to_thread(assemble, material, count)
    timings.mark("assembly")
    if call.dry_run:
        return _assembled(assembly, material, timings, created=False)
    record = _record(call, gathered, assembly, plan.view, dict(timings.milliseconds))
    with span("storage"):
        known = await _store(services, call, record, keys)
    if isinstance(known, StoredSnapshot):
        return _known(known)
    timings.mark("storage")
    return _assembled(assembly, material, timings, created=known is PutOutcome.STORED)


async def open_view(
    services: Services, grant: Grant, scope: AccessScope, as_of: AsOf | None
) -> IndexView:
    """The present view of the scope, or what it shows of the index as it was.

    What was visible then has to be admitted by the label that it has now, too.
    """
    if as_of is None:
        return await services.views.open(scope)
    if as_of.index_version is not None:
        version = IndexVersion(as_of.index_version)
    else:
        ref = (as_of.snapshot or "").lower()
        stored = await services.snapshots.get(whole_grant(grant).predicate, ref)
        if stored is None:
            raise AsOfUnavailableError(
                "The snapshot that asOf names is not available.", pointers=("/asOf/snapshot",)
            )
        version = IndexVersion(stored.index_version)
    return await services.views.open(scope, version, admitted_now=scope)


def _check_index_version(grant: Grant, as_of: AsOf | None) -> None:
    is_named = as_of is not None and as_of.index_version is not None
    if is_named and Permission.INDEX_WRITE not in grant.permissions:
        raise PermissionMissingError(
            "asOf.indexVersion needs the permission index:write; asOf.snapshot does not.",
            pointers=("/asOf/indexVersion",),
        )


def stored_inputs(inputs: JsonObject, view: IndexView) -> bytes:
    """What a replay is given.

    Which sources a view of the past left out stands beside what the report binds: bytes
    that they had a part in would tell of them.
    """
    hidden = {"hidden": list(view.hidden_source_keys)} if view.hidden_source_keys else {}
    return canonical_bytes({**inputs, **hidden})


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
    return split_inline(scope, items)


def split_inline(
    scope: AccessScope, items: tuple[InlineItem, ...]
) -> tuple[tuple[InlineItem, ...], tuple[Exclusion, ...]]:
    """The inline items that the scope admits, and exclusions for the others."""
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


def _known(stored: StoredSnapshot) -> Answer:
    return Answer(stored.canonical, stored.hash, created=False, source=stored)


def _assembled(
    assembly: Assembly, material: Material, timings: "_Timings", *, created: bool
) -> Answer:
    found = assembly.snapshot
    return Answer(
        found.canonical,
        found.hash,
        created,
        assembly,
        material.all_outcomes,
        dict(timings.milliseconds),
        material.budget.capacity_tokens,
    )


def _record(
    call: Call,
    gathered: Gathered,
    assembly: Assembly,
    view: IndexView,
    timings_ms: Mapping[str, int],
) -> SnapshotRecord:
    request, material = call.request, gathered.material
    # Refused ones too: the exclusions name them.
    inline = request.items
    held = {
        (chunk.project, chunk.source_id)
        for chunk in (*material.pinned, *(one.chunk for one in material.ranked))
        if not chunk.external
    } | gathered.disclosed
    external = external_chunks(outcome.retrieval for outcome in material.outcomes)
    texts = (*request.texts(), *(chunk.text for chunk in external))
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
            projects=_projects_to_hold(material, (*held, *external)),
            classes=tuple(sorted({item.label.knowledge_class for item in inline})),
            classification=ceiling,
        ),
        external_labels=tuple({chunk.label: None for chunk in external}),
        texts=tuple(sorted({digest_text(text): text for text in texts}.items())),
        inputs=stored_inputs(material.inputs, view),
    )


def _projects_to_hold(material: Material, held: Collection[object]) -> tuple[str, ...]:
    """Projects that a reader must hold, beside those of the sources and external chunks.

    A snapshot that nothing was found for still tells whom and what it was for: it is for
    readers of the projects that were asked.
    """
    projects = {item.label.project for item in material.request.items}
    if not (projects or held):
        projects.update(material.scope.predicate.projects)
    return tuple(sorted(projects))


async def _store(
    services: Services, call: Call, record: SnapshotRecord, keys: RepeatKeys
) -> PutOutcome | StoredSnapshot:
    """What came of storing, or the snapshot that another call stored first for the request."""
    tenant, snapshots = call.grant.tenant, services.snapshots
    event = call.event and call.event.about(snapshot=record.hash)
    repeat_key = keys.refreshed if call.refresh else keys.request
    if repeat_key is not None:
        outcome = await snapshots.put_if_absent(tenant, record, repeat_key, event, keys.idempotency)
        if outcome not in (PutOutcome.REPEAT_TAKEN, PutOutcome.KEY_TAKEN):
            return outcome
        # What the other call stored may have become unreadable since.
        first = await find_first(snapshots, call.grant, keys, refresh=call.refresh)
        if first is not None:
            return first
    return await snapshots.put(tenant, record, event)


class _Timings:
    """Milliseconds per stage; they stay outside of everything that is hashed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last = clock, clock()
        self.milliseconds: dict[str, int] = {}

    def mark(self, stage: str) -> None:
        now = self._clock()
        self.milliseconds[stage] = round((now - self._last) * 1000)
        self._last = now
