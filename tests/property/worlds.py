"""Generated worlds: sources under all kinds of labels, callers, and requests.

The words are few, so that queries hit, scores tie and texts repeat.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

WORDS = ("cancel", "refund", "booking", "order", "invoice", "ledger")
PROJECTS = ("alpha", "beta", "gamma")
GROUPS = ("eng", "ops", "hr")
USERS = ("ana", "bob")
CLASSES = ("code", "documents", "schema", "memory", "policy", "task")
CLASSIFICATIONS = ("public", "internal", "confidential", "restricted")
TIERS = (
    "system-policy",
    "agent",
    "skill",
    "user",
    "trusted-knowledge",
    "tool-result",
    "untrusted-external",
)
SOURCE_IDS = ("a.md", "b.md", "drafts/a.md", "drafts/%_.md", "z")
PATTERNS = ("*", "drafts/*", "*.md", "a*", "z", "%", "_.md")
PRINCIPALS = tuple(f"group:{name}" for name in GROUPS) + tuple(f"user:{name}" for name in USERS)


def _some(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, max_size=len(names))


texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
STRATEGIES = ("default", "documents")
"""Without and with texts that are shortened."""


@st.composite
def sources(draw: st.DrawFn) -> Json:
    """One source as PUT /sources takes it."""
    knowledge_class = draw(st.sampled_from(CLASSES))
    tier = "system-policy" if knowledge_class == "policy" else draw(st.sampled_from(TIERS))
    acl: Json = {"deny": draw(st.one_of(st.just([]), _some(PRINCIPALS)))}
    if draw(st.booleans()):
        acl["allow"] = draw(_some(PRINCIPALS))
    chunks = draw(st.lists(texts, min_size=1, max_size=3))
    return {
        "project": draw(st.sampled_from(PROJECTS)),
        "sourceId": draw(st.sampled_from(SOURCE_IDS)),
        "sourceRevision": draw(st.sampled_from(("1", "2"))),
        "class": knowledge_class,
        "classification": draw(st.sampled_from(CLASSIFICATIONS)),
        "trustTier": tier,
        "acl": acl,
        "chunks": [{"chunkId": str(at), "text": text} for at, text in enumerate(chunks)],
    }


def source_lists(max_size: int = 12) -> st.SearchStrategy[list[Json]]:
    return st.lists(
        sources(),
        min_size=1,
        max_size=max_size,
        unique_by=lambda source: (source["project"], source["sourceId"]),
    )


PERMISSIONS = "snapshots:assemble snapshots:read index:read"


@dataclass(frozen=True)
class Caller:
    """The claims of a token, None where there is none.

    Usually it may not read the audit log: who may is told more.
    """

    subject: str
    projects: list[str] | None
    groups: list[str] | None
    classes: list[str] | None
    max_classification: str | None
    max_trust_tier: str | None = "system-policy"
    permissions: str = PERMISSIONS

    def claims(self) -> Json:
        return {
            "sub": self.subject,
            "projects": self.projects,
            "groups": self.groups,
            "classes": self.classes,
            "max_classification": self.max_classification,
            "max_trust_tier": self.max_trust_tier,
            "scope": self.permissions,
        }


@st.composite
def callers(draw: st.DrawFn) -> Caller:
    everywhere = st.just(["*"])
    return Caller(
        subject=draw(st.sampled_from(USERS)),
        projects=draw(st.one_of(everywhere, everywhere, _some(PROJECTS))),
        groups=draw(_some(GROUPS)),
        classes=draw(st.one_of(st.none(), st.none(), _some(CLASSES))),
        max_classification=draw(st.sampled_from(CLASSIFICATIONS)),
    )


@st.composite
def narrowings(draw: st.DrawFn, caller: Caller) -> Json:
    """A scope that takes away from the caller's grant."""
    scope: Json = {}
    if draw(st.booleans()):
        held = PROJECTS if caller.projects == ["*"] else tuple(caller.projects or ())
        scope["projects"] = draw(_some(held)) if held else []
    if draw(st.booleans()):
        scope["groups"] = draw(_some(tuple(caller.groups))) if caller.groups else []
    if draw(st.booleans()):
        held_classes = CLASSES if caller.classes is None else tuple(caller.classes)
        scope["classes"] = draw(_some(held_classes)) if held_classes else []
    if draw(st.booleans()):
        top = CLASSIFICATIONS.index(caller.max_classification or "public")
        scope["maxClassification"] = draw(st.sampled_from(CLASSIFICATIONS[: top + 1]))
    if draw(st.booleans()):
        scope["minTrustTier"] = draw(st.sampled_from(TIERS))
    if draw(st.booleans()):
        scope["sources"] = {}
        if draw(st.booleans()):
            scope["sources"]["allow"] = draw(_some(PATTERNS))
        if draw(st.booleans()):
            scope["sources"]["deny"] = draw(_some(PATTERNS))
    return scope


@st.composite
def requests(draw: st.DrawFn, caller: Caller) -> Json:
    """A request of this caller, as POST /snapshots takes it."""
    return {
        "runId": str(uuid.UUID(int=draw(st.integers(0, 2**128 - 1)))),
        "attemptId": str(uuid.UUID(int=draw(st.integers(0, 2**128 - 1)))),
        "query": draw(texts),
        "strategy": draw(st.sampled_from(STRATEGIES)),
        "scope": draw(narrowings(caller)),
        "budget": {
            "maxTokens": draw(st.sampled_from((200, 1000, 8000))),
            "reservedForOutput": draw(st.sampled_from((0, 100))),
            "encoding": draw(st.sampled_from(("o200k_base", "cl100k_base"))),
            "format": draw(st.sampled_from(("text", "messages"))),
        },
    }


@st.composite
def situations(draw: st.DrawFn, max_sources: int = 12) -> tuple[list[Json], Caller, Json]:
    """Sources, a caller, and one of its requests."""
    caller = draw(callers())
    return draw(source_lists(max_sources)), caller, draw(requests(caller))
