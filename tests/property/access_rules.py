"""The access rules once more, written to be read: what the service must agree with.

It shares no code with the service and takes the wire's JSON.
"""

import re
from typing import Any

from tests.property.worlds import CLASSIFICATIONS, TIERS, Caller

Json = dict[str, Any]


def may_know(source: Json, caller: Caller, scope: Json) -> bool:
    """Whether a source may influence what this caller gets under this narrowing."""
    return (
        _in_projects(source, caller, scope)
        and _in_classes(source, caller, scope)
        and _below_ceiling(source, caller, scope)
        and _above_floor(source, scope)
        and not _is_denied(source, caller)
        and _is_allowed(source, caller, scope)
        and _is_selected(source, scope)
    )


def _in_projects(source: Json, caller: Caller, scope: Json) -> bool:
    granted = caller.projects == ["*"] or source["project"] in caller.projects
    asked = scope.get("projects")
    return granted and (asked is None or source["project"] in asked or asked == ["*"])


def _in_classes(source: Json, caller: Caller, scope: Json) -> bool:
    granted = caller.classes is None or source["class"] in caller.classes
    asked = scope.get("classes")
    return granted and (asked is None or source["class"] in asked)


def _below_ceiling(source: Json, caller: Caller, scope: Json) -> bool:
    level = CLASSIFICATIONS.index(source["classification"])
    asked = scope.get("maxClassification", caller.max_classification)
    return level <= CLASSIFICATIONS.index(caller.max_classification) and (
        level <= CLASSIFICATIONS.index(asked)
    )


def _above_floor(source: Json, scope: Json) -> bool:
    floor = scope.get("minTrustTier")
    return floor is None or TIERS.index(source["trustTier"]) <= TIERS.index(floor)


def _is_denied(source: Json, caller: Caller) -> bool:
    """Deny lists count for everybody the caller is, whatever the request leaves out."""
    everyone = {f"user:{caller.subject}"} | {f"group:{name}" for name in caller.groups}
    return bool(everyone & set(source["acl"].get("deny", [])))


def _is_allowed(source: Json, caller: Caller, scope: Json) -> bool:
    if "allow" not in source["acl"]:
        return True
    groups = scope.get("groups", caller.groups)
    kept = {f"user:{caller.subject}"} | {f"group:{name}" for name in groups}
    return bool(kept & set(source["acl"]["allow"]))


def _is_selected(source: Json, scope: Json) -> bool:
    patterns = scope.get("sources", {})

    def matches(pattern: str) -> bool:
        expression = ".*".join(re.escape(part) for part in pattern.split("*"))
        return re.fullmatch(expression, source["sourceId"], re.DOTALL) is not None

    if any(matches(pattern) for pattern in patterns.get("deny", [])):
        return False
    return "allow" not in patterns or any(matches(pattern) for pattern in patterns["allow"])
