"""Assembling a stored snapshot again, from what was stored with it.

The request, its texts, the scope, the strategy, the evaluation time and the answers from
outside are taken from the record; the index is read at the snapshot's version. The answer is
the same hash, or the first stage that differs and why.
"""

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.canonical import Digest
from app.errors import (
    BudgetTooSmallError,
    CorruptRecordError,
    InvalidRequestError,
    PinUnavailableError,
    RetrieverUnavailableError,
    UnavailableError,
    VersionNotKeptError,
)
from app.gathering import Plan, Recorded, Services, gather
from app.pipeline import resolve_budget, split_inline
from app.retrieval.external import recorded_digests
from app.scope.access import AccessScope
from app.snapshot.assembly import Assembly, assemble
from app.snapshot.material import Material
from app.snapshot.request import CreateSnapshot, request_from
from app.snapshot.verify import predicate_of
from app.storage.labels import IndexVersion
from app.storage.snapshots import StoredSnapshot, TextKey
from app.strategy.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Replay:
    """`hash` is what came out, None where it did not get so far.

    `stage` is the first one that differs and `reason` a sentence; both are None for a match.
    """

    hash: Digest | None
    stage: str | None = None
    reason: str | None = None

    @property
    def match(self) -> bool:
        return self.stage is None


class _NoFurtherError(Exception):
    """A stage that cannot be gone through again, and why."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage, self.reason = stage, reason


async def replay(services: Services, stored: StoredSnapshot) -> Replay:
    """Stores nothing.

    Raises CorruptRecordError when the record cannot be read, RetrieverUnavailableError when a
    leg that answered the first time gives no answer now.
    """
    try:
        report, inputs = json.loads(stored.report), json.loads(stored.inputs)
    except ValueError as error:
        raise _unreadable() from error
    try:
        plan = await _plan(services, stored, report, inputs)
        assembly = await _assemble(services, stored, plan)
    except _NoFurtherError as end:
        return Replay(None, end.stage, end.reason)
    found = assembly.snapshot.hash
    if found == stored.hash:
        return Replay(found)
    stage = _first_difference(report, json.loads(assembly.report))
    absent = sorted(inputs.get("retrievers", {}).keys() - services.retrievers.keys())
    if absent:
        return Replay(found, stage, f"retriever not configured: {', '.join(absent)}")
    return Replay(found, stage, await _reason(services, stored, plan))


async def _plan(
    services: Services, stored: StoredSnapshot, report: Mapping[str, Any], inputs: Mapping[str, Any]
) -> Plan:
    """As it was the first time, but for what is recorded of the answers from outside."""
    try:
        scope, recipe = _scope_of(report["scope"]), report["strategy"]
        request = await _request(services, scope.tenant, stored)
        texts = await _external_texts(services, scope.tenant, stored, inputs.get("retrievers", {}))
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable() from error
    if request is None or texts is None:
        stage, whose = ("request", "the request") if request is None else ("retrieval", "an answer")
        raise _NoFurtherError(stage, f"content erased: a text of {whose} is gone")
    version, hidden = IndexVersion(stored.index_version), tuple(inputs.get("hidden", ()))
    try:
        view = await services.views.open(scope, version, hidden=hidden)
    except VersionNotKeptError as error:
        reason = "index compacted: its version is not kept any more"
        raise _NoFurtherError("index", reason) from error
    try:
        strategy = Strategy.model_validate(recipe)
        budget = resolve_budget(request.budget, strategy, services.tokens)
    except (ValueError, InvalidRequestError) as error:
        reason = "engine upgraded: it does not take the strategy any more"
        raise _NoFurtherError("strategy", reason) from error
    inline, refused = split_inline(scope, request.items)
    return Plan(
        request=request,
        scope=scope,
        strategy=strategy,
        budget=budget,
        inline=inline,
        refused=refused,
        view=view,
        evaluated_at=stored.evaluated_at,
        told_of_classification=inputs.get("toldOfClassification", False),
        recorded=_recorded(report, inputs, texts),
    )


def _unreadable() -> CorruptRecordError:
    return CorruptRecordError("The snapshot's record cannot be read.")


async def _assemble(services: Services, stored: StoredSnapshot, plan: Plan) -> Assembly:
    try:
        material = (await gather(services, plan)).material
    except PinUnavailableError as error:
        raise _NoFurtherError("pins", await _reason(services, stored, plan)) from error
    _refuse_silence(material, plan.recorded)
    count = partial(services.tokens.count, encoding=plan.budget.encoding)
    try:
        return await asyncio.to_thread(assemble, material, count)
    except BudgetTooSmallError as error:
        raise _NoFurtherError("packing", await _reason(services, stored, plan)) from error


def _refuse_silence(material: Material, recorded: Recorded) -> None:
    """No answer is not another answer."""
    for one in material.outcomes:
        silent = isinstance(one.failure, TimeoutError | UnavailableError)
        if silent and one.name not in recorded.failed:
            raise RetrieverUnavailableError(
                f"The retriever {one.name} gave no answer ({one.status}); try again shortly."
            ) from one.failure


def _recorded(
    report: Mapping[str, Any], inputs: Mapping[str, Any], texts: Mapping[str, str]
) -> Recorded:
    legs = {one["name"]: one["status"] for one in report["retrievers"]}
    legs["rerank"] = report.get("rerank", {}).get("status")
    return Recorded(
        answers=inputs.get("retrievers", {}),
        texts=texts,
        failed=inputs.get("failed", {}),
        rerank=inputs.get("rerank"),
        not_configured=frozenset(name for name, one in legs.items() if one == "not-configured"),
    )


def _scope_of(document: Mapping[str, Any]) -> AccessScope:
    return AccessScope(
        subject=document["subject"],
        agent=document.get("agentId"),
        groups=tuple(document["groups"]),
        predicate=predicate_of(document["predicate"]),
    )


async def _request(
    services: Services, tenant: str, stored: StoredSnapshot
) -> CreateSnapshot | None:
    """The request with its texts; None when one of them is gone."""
    document = json.loads(stored.request)
    digests = {item["text"] for item in document["items"]} | {document["query"]} - {None}
    texts = await _texts(services, tenant, stored, digests)
    return None if texts is None else request_from(document, texts)


async def _external_texts(
    services: Services, tenant: str, stored: StoredSnapshot, answers: Mapping[str, Any]
) -> Mapping[str, str] | None:
    """The texts of recorded answers; None when one of them is gone."""
    digests = recorded_digests(answers)
    return await _texts(services, tenant, stored, digests) if digests else {}


async def _texts(
    services: Services, tenant: str, stored: StoredSnapshot, digests: Collection[str]
) -> Mapping[str, str] | None:
    keys = [TextKey(Digest(digest), None) for digest in sorted(digests)]
    found = await services.snapshots.texts(tenant, stored.hash, keys)
    if len(found) < len(keys):
        return None
    return {key.digest: text for key, text in found.items()}


def _first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The first stage of two reports whose digests differ, in the order of the first."""
    found = {stage["name"]: stage["digest"] for stage in after["stages"]}
    for stage in before["stages"]:
        if found.get(stage["name"]) != stage["digest"]:
            return str(stage["name"])
    return "report" if before != after else "snapshot"


async def _reason(services: Services, stored: StoredSnapshot, plan: Plan) -> str:
    if stored.engine != services.engine:
        return f"engine upgraded: it was {stored.engine}, and is {services.engine}"
    if await services.views.has_erased(plan.scope, plan.view):
        return "content erased: a source that was in scope is gone for good"
    return "unknown: the same inputs gave another result"
