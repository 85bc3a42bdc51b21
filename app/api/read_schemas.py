"""The answers of the calls that read, as clients see them. Only described, never validated."""

from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.api.strict_model import Instant, StrictModel, Uuid

JsonObject = dict[str, Any]


class SnapshotLine(StrictModel):
    """A line of a listing."""

    hash: str
    snapshot_id: Uuid
    run_id: Uuid
    step_id: Uuid | None
    attempt_id: Uuid
    created_at: Instant
    used_tokens: int
    degraded: tuple[str, ...]


class SnapshotPage(StrictModel):
    snapshots: tuple[SnapshotLine, ...]
    next_cursor: str | None


class ItemContent(StrictModel):
    """The exact text of one item; null when it was erased."""

    rank: int
    content_hash: str
    text: str | None
    erased: bool


class Contents(StrictModel):
    contents: tuple[ItemContent, ...]


class Message(StrictModel):
    role: Literal["system", "user"]
    content: str


class Messages(StrictModel):
    """A prompt in the format `messages`."""

    messages: tuple[Message, ...]


class ReportAnswer(StrictModel):
    """How a snapshot came about; only `report` is bound by hash."""

    report: JsonObject
    timings: dict[str, int]


class SnapshotWithParts(StrictModel):
    """A snapshot with what `include` named; the prompt is null where a text was erased."""

    snapshot: JsonObject
    # The factories keep `"default": null` out of the schema: absent members are left out.
    contents: tuple[ItemContent, ...] | SkipJsonSchema[None] = Field(default_factory=lambda: None)
    report: JsonObject | SkipJsonSchema[None] = Field(default_factory=lambda: None)
    prompt: str | Messages | None = Field(default_factory=lambda: None)


class CheckLine(StrictModel):
    name: str
    ok: bool
    detail: str


class Verification(StrictModel):
    ok: bool
    checks: tuple[CheckLine, ...]


class ItemName(StrictModel):
    project: str
    source_id: str
    chunk_id: str


class ItemSide(StrictModel):
    """An item as one of two snapshots shows it."""

    rank: int
    source_revision: str
    content_hash: str


class ItemDifference(ItemName):
    """`before` is absent of what was added, `after` of what was removed."""

    before: ItemSide | SkipJsonSchema[None] = Field(default_factory=lambda: None)
    after: ItemSide | SkipJsonSchema[None] = Field(default_factory=lambda: None)


class ItemDifferences(StrictModel):
    added: tuple[ItemDifference, ...]
    removed: tuple[ItemDifference, ...]
    moved: tuple[ItemDifference, ...]
    changed: tuple[ItemDifference, ...]


class DifferenceCause(StrictModel):
    """Why an item was added, removed or changed; `detail` is a sentence."""

    item: ItemName
    cause: Literal["scope", "revision", "index", "budget", "strategy", "query", "degraded"]
    detail: str


class DiffAnswer(StrictModel):
    items: ItemDifferences
    causes: tuple[DifferenceCause, ...]


class ExplanationStage(StrictModel):
    stage: str
    outcome: str
    detail: str


class ReplayDifference(StrictModel):
    """The first stage whose result differs, and why."""

    stage: str
    reason: str


class ReplayAnswer(StrictModel):
    """Whether a snapshot came out again; `hash` is what did."""

    match: bool
    first_difference: ReplayDifference | None = None
    hash: str | None = None


class ExplanationAnswer(StrictModel):
    stages: tuple[ExplanationStage, ...]


class StrategyPage(StrictModel):
    strategies: tuple[JsonObject, ...]


class Health(StrictModel):
    status: Literal["ok"]


class ReadinessAnswer(StrictModel):
    ready: bool
    checks: tuple[CheckLine, ...]


class AuditEventLine(StrictModel):
    """One call; `action` is its operationId, `code` what it came to or why it was refused."""

    id: Uuid
    at: Instant
    subject: str
    # The factories keep `"default": null` out of the schema: absent members are left out.
    agent: str | SkipJsonSchema[None] = Field(default_factory=lambda: None)
    action: str
    outcome: Literal["allowed", "refused", "failed"]
    code: str | SkipJsonSchema[None] = Field(default_factory=lambda: None)
    request_id: str | SkipJsonSchema[None] = Field(default_factory=lambda: None)
    targets: JsonObject


class AuditPage(StrictModel):
    events: tuple[AuditEventLine, ...]
    next_cursor: str | None


class SealLine(StrictModel):
    """A batch of events, bound to the seal before by its hash; the first one has none."""

    sequence: int
    sealed_at: Instant
    previous: str | None
    hash: str
    count: int
    events: tuple[AuditEventLine, ...]


class SealPage(StrictModel):
    tenant: str
    seals: tuple[SealLine, ...]
    next_cursor: str | None
