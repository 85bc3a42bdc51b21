"""Gathering what goes into one assembly: pins and retrievers under one view of the index.

Everything that is asked of the outside happens here. What was answered can be given back as
`Plan.recorded`, and is then taken from there: a replay asks nobody but the index.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from app.canonical import JsonObject, JsonValue
from app.errors import RetrieverUnavailableError
from app.packing.tokens import TokenCounter
from app.pins import PinResolver
from app.retrieval.candidate import Chunk
from app.retrieval.expansion import (
    GRAPH,
    ExpansionRules,
    GraphRetriever,
    SourceGraph,
    choose_seeds,
    with_neighbours,
)
from app.retrieval.external import RecordedRetriever, is_external
from app.retrieval.fan_out import Leg, LegOutcome, fan_out
from app.retrieval.fusion import FusedCandidate, LegAnswer, fuse
from app.retrieval.reranking import RERANK, Reranker, Reranking, ask, failure, recall, reorder
from app.retrieval.retriever import IndexView, IndexViews, Retriever, ScopedQuery
from app.scope.access import AccessScope
from app.snapshot.material import Material, Recipe
from app.snapshot.request import CreateSnapshot, InlineItem
from app.snapshot.snapshot import Budget, Exclusion
from app.storage.labels import SourceName
from app.storage.snapshots import SnapshotStore
from app.strategy.strategy import Strategy, StrategyCatalog


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that assembling needs; `clock` gives seconds for timings and nothing else."""

    strategies: StrategyCatalog
    views: IndexViews
    pins: PinResolver
    retrievers: Mapping[str, Retriever]
    graph: SourceGraph
    snapshots: SnapshotStore
    tokens: TokenCounter
    engine: str
    clock: Callable[[], float]
    reranker: Reranker | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an earlier assembly was answered from outside.

    `answers` holds each retriever's `Retrieval.inputs`; `failed` the status of those that
    gave no answer; `rerank` what the re-ranker answered. `not_configured` are optional steps
    that the service did not have then. `texts` are those of answers from outside of the index,
    by digest.
    """

    answers: Mapping[str, JsonObject] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    rerank: JsonObject | None = None
    not_configured: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """What one assembly is made from, before anything is looked up.

    `refused` are exclusions that stand already. `recorded` is empty where the outside
    is to be asked.
    """

    request: CreateSnapshot
    scope: AccessScope
    strategy: Strategy
    budget: Budget
    inline: tuple[InlineItem, ...]
    refused: tuple[Exclusion, ...]
    view: IndexView
    evaluated_at: datetime
    told_of_classification: bool
    recorded: Recorded = Recorded()


@dataclass(frozen=True, slots=True)
class Gathered:
    """Material for an assembly, and sources that are out of scope but told of."""

    material: Material
    disclosed: frozenset[SourceName]


async def gather(services: Services, plan: Plan) -> Gathered:
    """Ask the index, the retrievers and the re-ranker.

    Raises PinUnavailableError for a required pin, RetrieverUnavailableError when a leg, or a
    re-ranking, that the strategy requires gives no answer.
    """
    request, strategy, view = plan.request, plan.strategy, plan.view
    pinned = await services.pins.resolve(
        plan.scope, view, request.pins, told_of_classification=plan.told_of_classification
    )
    outcomes = await _retrieve(services, plan)
    ranked = _fuse(outcomes, strategy)
    reranking = await _rerank(services, plan, ranked)
    if reranking is not None:
        ranked = reorder(ranked, reranking.relevance)
    neighbours = await _expand(services, plan, ranked, pinned.chunks)
    for outcome in neighbours:
        if outcome.retrieval is not None:
            ranked = with_neighbours(ranked, outcome.retrieval)
    outcomes += neighbours
    material = Material(
        request=request,
        scope=plan.scope,
        recipe=Recipe(
            name=strategy.name,
            digest=strategy.digest(),
            document=strategy.canonical(),
            rules=strategy.packing.rules(),
            fusion_k=strategy.fusion.k,
            fusion_method=strategy.fusion.method,
            max_different_bits=strategy.dedupe.max_different_bits,
            stale=strategy.freshness.stale,
        ),
        budget=plan.budget,
        engine=services.engine,
        visible_version=view.visible_version,
        inline=plan.inline,
        pinned=pinned.chunks,
        optional_pins=pinned.optional,
        outcomes=outcomes,
        ranked=ranked,
        refused=(*plan.refused, *pinned.exclusions),
        evaluated_at=plan.evaluated_at,
        inputs=_inputs(plan, outcomes, reranking),
        not_configured=tuple(
            step.name for step in strategy.retrievers if not _has(services, plan, step.name)
        ),
        reranking=reranking,
    )
    return Gathered(material, pinned.disclosed)


def _has(services: Services, plan: Plan, name: str) -> bool:
    """Whether this retriever is to be asked: in a replay, only if there was one then."""
    recorded = plan.recorded
    asked = name in recorded.failed or is_external(recorded.answers.get(name))
    return (asked or name in services.retrievers) and name not in recorded.not_configured


def _retriever(services: Services, recorded: Recorded, name: str) -> Retriever:
    answer = recorded.answers.get(name)
    if name not in services.retrievers or is_external(answer):
        return RecordedRetriever(name, answer or {}, recorded.texts)
    return services.retrievers[name]


async def _retrieve(services: Services, plan: Plan) -> tuple[LegOutcome, ...]:
    request = plan.request
    if request.query is None:
        return ()
    legs = [
        Leg(
            retriever=_retriever(services, plan.recorded, step.name),
            limit=step.limit,
            weight=step.weight,
            deadline_s=step.deadline_ms / 1000,
            may_fail=step.on_failure == "degrade",
            recorded=plan.recorded.answers.get(step.name),
            failed=plan.recorded.failed.get(step.name),
        )
        for step in plan.strategy.retrievers
        if _has(services, plan, step.name)
    ]
    limit = max((leg.limit for leg in legs), default=1)
    query = ScopedQuery(plan.scope, plan.view, request.query, request.language, limit)
    return await fan_out(legs, query, services.clock)


def _fuse(outcomes: Sequence[LegOutcome], strategy: Strategy) -> tuple[FusedCandidate, ...]:
    answers = [
        LegAnswer(outcome.name, outcome.weight, outcome.retrieval)
        for outcome in outcomes
        if outcome.retrieval is not None
    ]
    return fuse(answers, strategy.fusion.k, strategy.fusion.method)


async def _rerank(
    services: Services, plan: Plan, ranked: Sequence[FusedCandidate]
) -> Reranking | None:
    """The relevance of the best candidates; None where nothing is to be re-ranked."""
    step, recorded, query = plan.strategy.rerank, plan.recorded, plan.request.query
    if step is None or query is None:
        return None
    if RERANK in recorded.failed:
        return failure(recorded.failed[RERANK])
    if recorded.rerank is not None:
        return recall(recorded.rerank)
    if services.reranker is None or RERANK in recorded.not_configured:
        return Reranking()
    best = ranked[: step.limit]
    found = await ask(services.reranker, query, best, step.deadline_ms / 1000, services.clock)
    if found.failed is not None and step.on_failure == "fail":
        raise RetrieverUnavailableError(
            f"The re-ranking, which the strategy requires, gave no answer ({found.status}); "
            f"try again shortly."
        ) from found.failed.failure
    return found


async def _expand(
    services: Services,
    plan: Plan,
    ranked: Sequence[FusedCandidate],
    pinned: Sequence[Chunk],
) -> tuple[LegOutcome, ...]:
    """The graph leg, from the ranking and the pins; none where the strategy has no expansion."""
    expansion = plan.strategy.expansion
    if expansion is None:
        return ()
    leg = Leg(
        retriever=GraphRetriever(
            services.graph,
            choose_seeds(ranked, pinned, expansion.seeds),
            ExpansionRules(expansion.hops, expansion.damping_permille),
        ),
        limit=expansion.limit,
        weight=1,
        deadline_s=expansion.deadline_ms / 1000,
        may_fail=True,
        failed=plan.recorded.failed.get(GRAPH),
    )
    request = plan.request
    query = ScopedQuery(
        plan.scope, plan.view, request.query or "", request.language, expansion.limit
    )
    return await fan_out([leg], query, services.clock)


def _inputs(plan: Plan, outcomes: Sequence[LegOutcome], reranking: Reranking | None) -> JsonObject:
    """What a replay cannot find out by itself; members that would be empty are left out."""
    answers: JsonObject = {
        one.name: one.retrieval.inputs
        for one in outcomes
        if one.retrieval is not None and one.retrieval.inputs is not None
    }
    failed: JsonObject = {
        **{one.name: one.status for one in outcomes if one.retrieval is None},
        **({RERANK: reranking.status} if reranking and reranking.failed else {}),
    }
    members: dict[str, JsonValue] = {
        "retrievers": answers,
        "failed": failed,
        "rerank": reranking.recorded() if reranking and reranking.model else {},
        "toldOfClassification": plan.told_of_classification,
    }
    return {name: value for name, value in members.items() if value}
