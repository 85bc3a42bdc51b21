"""Material for assemblies; what is not named is ordinary."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from app.adapters.tokens import TiktokenCounter
from app.canonical import JsonObject, digest_text, digest_value
from app.packing.filling import PackingRules
from app.packing.rendering import framed_body
from app.retrieval.candidate import Candidate, Chunk, Retrieval
from app.retrieval.fan_out import LegOutcome
from app.retrieval.fusion import LegAnswer, fuse
from app.scope.access import RequestedScope, narrow
from app.scope.grant import Grant
from app.scope.label import Label
from app.scope.vocabulary import EVERY_CLASS, Classification, KnowledgeClass, TrustTier
from app.snapshot.assembly import Assembly, assemble
from app.snapshot.material import Material, Recipe
from app.snapshot.request import CreateSnapshot, InlineItem, RequestedBudget
from app.snapshot.snapshot import Budget

COUNTER = TiktokenCounter()
ENCODING = "o200k_base"
EVALUATED_AT = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
count_tokens = partial(COUNTER.count, encoding=ENCODING)

LABEL = Label(
    "booking", KnowledgeClass.DOCUMENTS, Classification.INTERNAL, TrustTier.TRUSTED_KNOWLEDGE
)
GRANT = Grant(
    tenant="acme",
    subject="ana",
    agent="planner",
    projects=("billing", "booking"),
    groups=("eng",),
    classes=EVERY_CLASS,
    max_classification=Classification.CONFIDENTIAL,
    max_trust_tier=TrustTier.USER,
    permissions=frozenset(),
)
REQUEST = CreateSnapshot(
    run_id="6f1c0000-0000-4000-8000-000000000001",
    step_id=None,
    attempt_id="6f1c0000-0000-4000-8000-000000000002",
    strategy="default",
    query="How are reservations cancelled?",
    language="en",
    scope=RequestedScope(),
    budget=RequestedBudget(),
    items=(),
    pins=(),
)


def chunk(source_id: str, ordinal: int = 0, **members: Any) -> Chunk:
    text = members.pop("text", f"Chapter {ordinal} of {source_id}.")
    label = members.pop("label", LABEL)
    usual = Chunk(
        tenant="acme",
        project=label.project,
        source_id=source_id,
        revision="r1",
        chunk_id=str(ordinal),
        ordinal=ordinal,
        label=label,
        content_hash=digest_text(text),
        text=text,
        body_tokens={ENCODING: count_tokens(framed_body(text))},
    )
    return replace(usual, **members)


def inline(number: int = 41, **members: Any) -> InlineItem:
    usual = InlineItem(
        source_id=f"task:{number}",
        revision="1",
        chunk_id="0",
        label=replace(LABEL, knowledge_class=KnowledgeClass.TASK, trust_tier=TrustTier.USER),
        text=f"Task {number}: add a cancel endpoint.",
    )
    return replace(usual, **members)


def outcome(*chunks: Chunk, name: str = "lexical") -> LegOutcome:
    """An answer that ranks the chunks as they are given."""
    candidates = tuple(
        Candidate(one, 1000 - rank, rank) for rank, one in enumerate(chunks, start=1)
    )
    return LegOutcome(name, 1, "ok", Retrieval(candidates, f"seen-by-{name}"))


def material(
    *outcomes: LegOutcome,
    max_tokens: int = 8000,
    reserved: int = 1000,
    format_: str = "text",
    rules: PackingRules | None = None,
    requested: RequestedScope | None = None,
    **members: Any,
) -> Material:
    document: JsonObject = {"id": "default", "version": 1}
    answers = [
        LegAnswer(one.name, one.weight, one.retrieval)
        for one in outcomes
        if one.retrieval is not None
    ]
    usual = Material(
        request=REQUEST,
        scope=narrow(GRANT, requested or RequestedScope()),
        recipe=Recipe("default@1", digest_value(document), document, rules or PackingRules(), 60),
        budget=Budget(max_tokens, reserved, ENCODING, format_),
        engine="analyzer 1, chunker 1",
        visible_version="0123456789abcdef0123456789abcdef",
        inline=(),
        pinned=(),
        outcomes=outcomes,
        ranked=fuse(answers, 60),
        refused=(),
        evaluated_at=EVALUATED_AT,
    )
    return replace(usual, **members)


def assembled(given: Material) -> Assembly:
    return assemble(given, count_tokens)


def texts_of(assembly: Assembly) -> dict[str, str]:
    return {digest_text(block.text): block.text for block in assembly.blocks}
