"""The access rules once more, written to be read: what the service must agree with.

It shares no code with the service and takes the wire's JSON. A label is what decides the
access to a text: its project, class, classification, trust tier and access list.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.property.worlds import CLASSIFICATIONS, TIERS, Caller

Json = dict[str, Any]


# What a token grants.


def grants_project(caller: Caller, project: str) -> bool:
    """No claim, no project."""
    return caller.projects == ["*"] or project in (caller.projects or [])


def grants_group(caller: Caller, group: str) -> bool:
    """No claim, no group."""
    return group in (caller.groups or [])


def grants_class(caller: Caller, name: str) -> bool:
    """No claim, every class."""
    return caller.classes is None or name in caller.classes


def grants_classification(caller: Caller, classification: str) -> bool:
    """No claim, nothing but what is public."""
    return _level(classification) <= _level(caller.max_classification or "public")


def grants_tier(caller: Caller, tier: str) -> bool:
    """What the caller writes gets no more trust than this; no claim, that of a user."""
    return TIERS.index(tier) >= TIERS.index(caller.max_trust_tier or "user")


def permits(caller: Caller, permission: str) -> bool:
    return permission in caller.permissions.split()


# What a request, narrowed by its scope, may know.


def may_know(source: Json, caller: Caller, scope: Json) -> bool:
    """Whether a source may influence what this caller gets under this narrowing."""
    return admits(source, caller, scope) and _is_selected(source, scope)


def admits(label: Json, caller: Caller, scope: Json) -> bool:
    """The same for a label alone; an empty scope leaves the whole grant."""
    return (
        _in_projects(label, caller, scope)
        and _in_classes(label, caller, scope)
        and below_ceiling(label, caller, scope)
        and _above_floor(label, scope)
        and not _is_denied(label, caller)
        and _is_allowed(label, caller, scope)
    )


def _in_projects(label: Json, caller: Caller, scope: Json) -> bool:
    asked = scope.get("projects", ["*"])
    return grants_project(caller, label["project"]) and (
        asked == ["*"] or label["project"] in asked
    )


def _in_classes(label: Json, caller: Caller, scope: Json) -> bool:
    asked = scope.get("classes")
    return grants_class(caller, label["class"]) and (asked is None or label["class"] in asked)


def below_ceiling(label: Json, caller: Caller, scope: Json) -> bool:
    asked = scope.get("maxClassification", "restricted")
    level = label["classification"]
    return grants_classification(caller, level) and _level(level) <= _level(asked)


def _above_floor(label: Json, scope: Json) -> bool:
    floor = scope.get("minTrustTier", TIERS[-1])
    return TIERS.index(label["trustTier"]) <= TIERS.index(floor)


def _is_denied(label: Json, caller: Caller) -> bool:
    """Deny lists count for everybody the caller is, whatever the request leaves out."""
    return bool(_names(caller, caller.groups) & set(label["acl"].get("deny", [])))


def _is_allowed(label: Json, caller: Caller, scope: Json) -> bool:
    """No list allows everyone, an empty one nobody; it counts the groups that are kept."""
    if "allow" not in label["acl"]:
        return True
    kept = scope.get("groups", caller.groups)
    return bool(_names(caller, kept) & set(label["acl"]["allow"]))


def _is_selected(source: Json, scope: Json) -> bool:
    patterns = scope.get("sources", {})

    def matches(pattern: str) -> bool:
        expression = ".*".join(re.escape(part) for part in pattern.split("*"))
        return re.fullmatch(expression, source["sourceId"], re.DOTALL) is not None

    if any(matches(pattern) for pattern in patterns.get("deny", [])):
        return False
    return "allow" not in patterns or any(matches(pattern) for pattern in patterns["allow"])


def _level(classification: str) -> int:
    return CLASSIFICATIONS.index(classification)


def _names(caller: Caller, groups: list[str] | None) -> set[str]:
    """As access lists know the caller."""
    return {f"user:{caller.subject}"} | {f"group:{name}" for name in groups or []}


# What asks for more than it may have.


class Refusal(NamedTuple):
    """A problem document: its status, code, and every member of the body that it blames."""

    status: int
    code: str
    pointers: frozenset[str] = frozenset()


def refused_scope(scope: Json, caller: Caller) -> Refusal | None:
    """A request only narrows: each name and bound that its token does not grant is blamed."""
    lists = {"projects": grants_project, "groups": grants_group, "classes": grants_class}
    beyond = {
        f"/scope/{member}/{at}"
        for member, grants in lists.items()
        for at, name in enumerate(scope.get(member, []))
        if not grants(caller, name)
    }
    if not grants_classification(caller, scope.get("maxClassification", "public")):
        beyond.add("/scope/maxClassification")
    return Refusal(403, "scope-exceeds-grant", frozenset(beyond)) if beyond else None


def refused_labels(labels: Iterable[Json], caller: Caller, pointer: str) -> Refusal | None:
    """Nobody writes a label beyond the grant; a policy is of the tier of policies."""
    beyond, misplaced = set(), set()
    for at, label in enumerate(labels):
        beyond |= {f"{pointer}/{at}/{member}" for member in beyond_grant(label, caller)}
        if label["class"] == "policy" and label["trustTier"] != "system-policy":
            misplaced.add(f"{pointer}/{at}/trustTier")
    if beyond:
        return Refusal(403, "scope-exceeds-grant", frozenset(beyond))
    return Refusal(422, "invalid-request", frozenset(misplaced)) if misplaced else None


def beyond_grant(label: Json, caller: Caller) -> set[str]:
    """The members of a label that lie above what this caller may write or replace."""
    members = {
        "project": grants_project,
        "class": grants_class,
        "classification": grants_classification,
        "trustTier": grants_tier,
    }
    return {member for member, grants in members.items() if not grants(caller, label[member])}


def with_defaults(text: Json, writer: Caller, usual_tier: str) -> Json:
    """A text's whole label: internal and of the usual tier, or what of it the writer may."""
    level = min("internal", writer.max_classification or "public", key=_level)
    tier = max(usual_tier, writer.max_trust_tier or "user", key=TIERS.index)
    return {"classification": level, "trustTier": tier, "acl": {}, **text}
