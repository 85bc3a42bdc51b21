"""Sources under each kind of label, and callers and narrowings that tell them apart."""

from dataclasses import dataclass, field
from typing import Any

from app.api.snapshot_schemas import ScopeBody
from app.scope.access import AccessScope, narrow
from app.scope.claims import ClaimNames, grant_from_claims
from tests.property.access_rules import may_know
from tests.property.worlds import (
    CLASSES,
    CLASSIFICATIONS,
    GROUPS,
    PROJECTS,
    TIERS,
    Caller,
    Json,
)

QUERY = "cancel"
QUOTES = "x' OR '1'='1' -- \"] || true //"
"""What a filter that is put together from strings would take for a part of itself."""
BACKSLASH = 'a\\" or true or "\\'


def document(source_id: str, text: str = "cancel the booking", **members: Any) -> Json:
    """A source of project alpha, public and without an access list unless told otherwise."""
    usual: Json = {
        "project": "alpha",
        "sourceId": source_id,
        "sourceRevision": "1",
        "class": "documents",
        "classification": "public",
        "trustTier": "trusted-knowledge",
        "acl": {},
    }
    if "chunks" not in members:
        usual["text"] = f"{text} {source_id}"
    return {**usual, **{name.rstrip("_"): value for name, value in members.items()}}


def _of_class(name: str) -> Json:
    tier = "system-policy" if name == "policy" else "trusted-knowledge"
    return document(f"class/{name}", class_=name, trustTier=tier)


SOURCES: tuple[Json, ...] = (
    *(document("project", project=name) for name in PROJECTS),
    document("project", project=QUOTES[:40]),
    *(_of_class(name) for name in CLASSES),
    *(document(f"level/{name}", classification=name) for name in CLASSIFICATIONS),
    *(document(f"tier/{name}", trustTier=name) for name in TIERS),
    document("acl/eng", acl={"allow": ["group:eng"]}),
    document("acl/eng-or-ana", acl={"allow": ["group:eng", "user:ana"]}),
    document("acl/nobody", acl={"allow": []}),
    document("acl/not-eng", acl={"deny": ["group:eng"]}),
    document("acl/eng-not-ana", acl={"allow": ["group:eng"], "deny": ["user:ana"]}),
    document("acl/quotes", acl={"allow": [f"group:{QUOTES}"]}),
    document("acl/backslash", acl={"deny": [f"group:{BACKSLASH}"]}),
    *(
        document(name)
        for name in ("drafts/a.md", "drafts/%_.md", "drafts/[a]?.md", QUOTES, BACKSLASH, "Ünï/日本")
    ),
    document("a\nline", project="beta"),
)


@dataclass(frozen=True)
class Case:
    name: str
    scope: Json = field(default_factory=dict)
    claims: Json = field(default_factory=dict)

    @property
    def caller(self) -> Caller:
        usual: Json = {
            "subject": "ana",
            "projects": ["*"],
            "groups": ["eng"],
            "classes": None,
            "max_classification": "restricted",
        }
        return Caller(**{**usual, **self.claims})

    def access(self, tenant: str) -> AccessScope:
        return access(tenant, self.caller, self.scope)

    def expected(self) -> set[tuple[str, str]]:
        """By the rules that the property tests keep, which share no code with the service."""
        return {
            (one["project"], one["sourceId"])
            for one in SOURCES
            if may_know(one, self.caller, self.scope)
        }


def access(tenant: str, caller: Caller, scope: Json) -> AccessScope:
    claims = {name: value for name, value in caller.claims().items() if value is not None}
    grant = grant_from_claims({"tenant_id": tenant, **claims}, ClaimNames())
    return narrow(grant, ScopeBody.model_validate(scope).to_core())


def _patterns(allow: list[str] | None = None, deny: list[str] | None = None) -> Json:
    found: Json = {} if allow is None else {"allow": allow}
    return {"sources": found if deny is None else {**found, "deny": deny}}


CASES: tuple[Case, ...] = (
    Case("everything"),
    Case("one project", {"projects": ["alpha"]}),
    Case("two projects of the token", claims={"projects": ["beta", "gamma"]}),
    Case("a project with quotes", {"projects": [QUOTES[:40]]}),
    Case("no project", {"projects": []}),
    Case("a token without projects", claims={"projects": None}),
    Case("two classes", {"classes": ["code", "memory"]}),
    Case("no class", {"classes": []}),
    *(Case(f"up to {name}", {"maxClassification": name}) for name in CLASSIFICATIONS[:-1]),
    Case("a token's ceiling", claims={"max_classification": "internal"}),
    *(Case(f"trust from {name}", {"minTrustTier": name}) for name in TIERS),
    Case("another group", claims={"groups": ["hr"]}),
    Case("another user", claims={"subject": "bob"}),
    Case("no group kept", {"groups": []}),
    Case("groups with quotes", claims={"groups": [QUOTES, BACKSLASH, *GROUPS]}),
    Case("nobody", claims={"subject": "eve", "groups": None}),
    Case("patterns: one folder", _patterns(["drafts/*"])),
    Case("patterns: without a folder", _patterns(deny=["drafts/*"])),
    Case("patterns: deny wins", _patterns(["drafts/*", "acl/*"], ["*.md"])),
    Case("patterns: nothing allowed", _patterns([])),
    Case("patterns: none denied", _patterns(deny=[])),
    Case("patterns: signs of LIKE", _patterns(["drafts/%_.md"])),
    Case("patterns: signs of GLOB", _patterns(["drafts/[a]?.md", "drafts/?.md", "[d]*"])),
    Case("patterns: quotes", _patterns([QUOTES, f"*{BACKSLASH[1:]}"])),
    Case("patterns: a line and another script", _patterns(["a\nl*", "*日本", "ü*"])),
    Case("patterns: two stars", _patterns(["*/*a*"])),
    Case(
        "all parts at once",
        {
            "projects": ["alpha"],
            "classes": ["documents"],
            "maxClassification": "internal",
            "minTrustTier": "tool-result",
            **_patterns(["*"], ["tier/*"]),
        },
    ),
)
