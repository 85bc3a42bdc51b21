"""Narrowing a grant to the scope of one request, and the predicate that enforces it.

Guarantees: a request can only take away; what is absent never widens; an empty list
admits nothing; deny wins over allow. Narrowing the groups never lifts a denial: deny
lists are matched against every principal of the grant, allow lists against the
principals that the request kept.
Not handled here: who verified the grant (middleware) and how a backend applies the
predicate (adapters).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from app.canonical import Digest, JsonValue, digest_value
from app.errors import ScopeExceedsGrantError
from app.scope.grant import Grant
from app.scope.label import Label, matches_pattern
from app.scope.vocabulary import (
    ALL_PROJECTS,
    Classification,
    KnowledgeClass,
    TrustTier,
)

_Name = TypeVar("_Name", bound=str)

POLICY_VERSION = "1"
"""The version of the enforcement rules in this module."""


@dataclass(frozen=True, slots=True)
class SourcePatterns:
    """A narrowing to source ids; `allow` None allows every id, an empty tuple none."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.allow is None and not self.deny

    def admit(self, source_id: str) -> bool:
        if any(matches_pattern(source_id, pattern) for pattern in self.deny):
            return False
        return self.allow is None or any(
            matches_pattern(source_id, pattern) for pattern in self.allow
        )


@dataclass(frozen=True, slots=True)
class RequestedScope:
    """What a request asks to narrow; None leaves the grant's own bound."""

    projects: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    classes: tuple[KnowledgeClass, ...] | None = None
    max_classification: Classification | None = None
    min_trust_tier: TrustTier | None = None
    sources: SourcePatterns = SourcePatterns()


@dataclass(frozen=True, slots=True)
class Predicate:
    """The one value that every retriever is given and that each backend applies.

    Arrays are sorted in code-point order. `allow_principals` are matched against allow
    lists, `deny_principals` (never fewer) against deny lists.
    """

    tenant: str
    projects: tuple[str, ...]
    allow_principals: tuple[str, ...]
    deny_principals: tuple[str, ...]
    classes: tuple[KnowledgeClass, ...]
    max_classification: Classification
    min_trust_tier: TrustTier | None
    sources: SourcePatterns

    def admits_label(self, label: Label) -> bool:
        """Whether a source with this label may be known to the caller (patterns aside)."""
        in_project = self.projects == (ALL_PROJECTS,) or label.project in self.projects
        in_bounds = (
            label.knowledge_class in self.classes
            and label.classification.rank <= self.max_classification.rank
            and (self.min_trust_tier is None or label.trust_tier.rank <= self.min_trust_tier.rank)
        )
        denied = any(name in self.deny_principals for name in label.deny)
        allowed = label.allow is None or any(name in self.allow_principals for name in label.allow)
        return in_project and in_bounds and allowed and not denied

    def admits(self, label: Label, source_id: str) -> bool:
        return self.admits_label(label) and self.sources.admit(source_id)

    def canonical(self) -> dict[str, JsonValue]:
        """JSON members whose RFC 8785 bytes `digest` covers."""
        return {
            "tenantId": self.tenant,
            "projects": list(self.projects),
            "allowPrincipals": list(self.allow_principals),
            "denyPrincipals": list(self.deny_principals),
            "classes": [name.value for name in self.classes],
            "maxClassification": self.max_classification.value,
            "minTrustTier": self.min_trust_tier.value if self.min_trust_tier else None,
            "sources": {
                "allow": None if self.sources.allow is None else list(self.sources.allow),
                "deny": list(self.sources.deny),
            },
        }

    @property
    def digest(self) -> Digest:
        return _digest_of(self)


@lru_cache(maxsize=1024)
def _digest_of(predicate: Predicate) -> Digest:
    """One request asks for it many times over."""
    return digest_value(predicate.canonical())


@dataclass(frozen=True, slots=True)
class AccessScope:
    """A grant narrowed by one request: what the snapshot records, and its predicate."""

    subject: str
    agent: str | None
    groups: tuple[str, ...]
    predicate: Predicate

    @property
    def tenant(self) -> str:
        return self.predicate.tenant

    def to_contract(self) -> dict[str, JsonValue]:
        """The scope as execution-scope.schema.json has it."""
        predicate = self.predicate
        document: dict[str, JsonValue] = {
            "tenantId": predicate.tenant,
            "subject": self.subject,
            "projects": list(predicate.projects),
            "groups": list(self.groups),
            "classes": [name.value for name in predicate.classes],
            "maxClassification": predicate.max_classification.value,
            "policy": {"version": POLICY_VERSION, "predicateHash": predicate.digest},
        }
        if self.agent is not None:
            document["agentId"] = self.agent
        if predicate.min_trust_tier is not None:
            document["minTrustTier"] = predicate.min_trust_tier.value
        if not predicate.sources.is_open:
            sources: dict[str, JsonValue] = {}
            if predicate.sources.allow is not None:
                sources["allow"] = list(predicate.sources.allow)
            if predicate.sources.deny:
                sources["deny"] = list(predicate.sources.deny)
            document["sources"] = sources
        return document


def narrow(grant: Grant, requested: RequestedScope) -> AccessScope:
    """Take away from the grant what the request does not ask for.

    Raises ScopeExceedsGrantError, with a pointer for every member that asks for more
    than the grant holds.
    """
    exceeding = [
        *_beyond("/scope/projects", requested.projects, grant.covers_project),
        *_beyond("/scope/groups", requested.groups, lambda name: name in grant.groups),
        *_beyond("/scope/classes", requested.classes, lambda name: name in grant.classes),
    ]
    ceiling = requested.max_classification or grant.max_classification
    if ceiling.rank > grant.max_classification.rank:
        exceeding.append("/scope/maxClassification")
    if exceeding:
        raise ScopeExceedsGrantError(
            "The request asks for more than its token grants: " + ", ".join(exceeding),
            pointers=tuple(exceeding),
        )
    groups = _sorted(requested.groups, grant.groups)
    kept = tuple(sorted({f"user:{grant.subject}", *(f"group:{name}" for name in groups)}))
    return AccessScope(
        subject=grant.subject,
        agent=grant.agent,
        groups=groups,
        predicate=Predicate(
            tenant=grant.tenant,
            projects=_sorted(requested.projects, grant.projects),
            allow_principals=kept,
            deny_principals=grant.principals,
            classes=_sorted(requested.classes, grant.classes),
            max_classification=ceiling,
            min_trust_tier=requested.min_trust_tier,
            sources=SourcePatterns(
                allow=None
                if requested.sources.allow is None
                else _sorted(requested.sources.allow, ()),
                deny=_sorted(requested.sources.deny, ()),
            ),
        ),
    )


def whole_grant(grant: Grant) -> AccessScope:
    """The scope of a request that narrows nothing."""
    return narrow(grant, RequestedScope())


def _sorted(asked: tuple[_Name, ...] | None, granted: tuple[_Name, ...]) -> tuple[_Name, ...]:
    return tuple(sorted(set(granted if asked is None else asked)))


def _beyond(
    pointer: str, asked: tuple[_Name, ...] | None, granted: Callable[[_Name], bool]
) -> list[str]:
    return [f"{pointer}/{at}" for at, name in enumerate(asked or ()) if not granted(name)]
