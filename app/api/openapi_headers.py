"""Headers of the OpenAPI document: those that answers have, and the one that asks for 304."""

from typing import Any

Json = dict[str, Any]

_PREFIX = "#/components/headers/"
HEADERS: Json = {
    "RequestId": {
        "description": "Names the call in the service's log; the caller's own if it sent one.",
        "required": True,
        "schema": {"type": "string"},
    },
    "EntityTag": {
        "description": "Of this representation, for If-None-Match; a snapshot's is its hash.",
        "required": True,
        "schema": {"type": "string", "pattern": '^"sha256:[0-9a-f]{64}"$'},
    },
    "Location": {
        "description": "The snapshot's path; absent in a dry run.",
        "schema": {"type": "string", "pattern": "^/snapshots/sha256:[0-9a-f]{64}$"},
    },
    "SnapshotDegraded": {
        "description": "The retrievers without an answer: `<name>; reason=<reason>`, …",
        "schema": {"type": "string"},
    },
    "RetryAfter": {
        "description": "Seconds after which another call may go through.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "Challenge": {
        "description": "How to authenticate.",
        "required": True,
        "schema": {"type": "string", "const": "Bearer"},
    },
}
_OF_STATUS = {
    "401": {"WWW-Authenticate": "Challenge"},
    "429": {"Retry-After": "RetryAfter"},
    "503": {"Retry-After": "RetryAfter"},
}
_OF_A_SNAPSHOT = {
    "ETag": "EntityTag",
    "Location": "Location",
    "Snapshot-Degraded": "SnapshotDegraded",
}
_IF_NONE_MATCH: Json = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "Entity tags that the caller holds: with one of them the answer is 304.",
    "schema": {"type": "string"},
}


def describe_conditional(operation: Json) -> None:
    """Let a call that reads tell of its entity tag, and of 304 for who holds that already."""
    operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
    operation["responses"]["304"] = {"description": "The caller holds this representation"}
    for status in ("200", "304"):
        _add(operation["responses"][status], {"ETag": "EntityTag"})


def describe_headers(operation: Json, *, public: bool) -> None:
    """Name the headers of each answer; to a public call none is a problem document."""
    for status, answer in operation["responses"].items():
        _add(answer, {"X-Request-Id": "RequestId"})
        if not public:
            _add(answer, _OF_STATUS.get(status, {}))
        if operation["operationId"] == "createSnapshot" and status.startswith("2"):
            _add(answer, _OF_A_SNAPSHOT)


def _add(answer: Json, names: dict[str, str]) -> None:
    headers = {name: {"$ref": _PREFIX + component} for name, component in names.items()}
    answer.setdefault("headers", {}).update(headers)
