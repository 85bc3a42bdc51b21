"""Links of the OpenAPI document: which value of an answer names what in another call."""

from collections.abc import Mapping
from typing import Any

_HASH = "$response.body#/hash"
_LISTED = "$response.body#/snapshots/0/hash"
_SOURCE = {
    "project": "$response.body#/sources/0/project",
    "sourceId": "$response.body#/sources/0/sourceId",
}
_NEXT_PAGE = {"cursor": "$response.body#/nextCursor"}
_READS = (
    "getSnapshot",
    "getSnapshotContents",
    "getSnapshotPrompt",
    "getSnapshotReport",
    "verifySnapshot",
    "replaySnapshot",
)

_LINKS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "createSnapshot": {
        **{read: {"ref": _HASH} for read in _READS},
        "diffSnapshots": {"ref": _HASH, "other": _HASH},
        "explainSnapshot": {
            "ref": _HASH,
            "project": "$response.body#/items/0/project",
            "sourceId": "$response.body#/items/0/sourceId",
        },
    },
    "listSnapshots": {"listSnapshots": _NEXT_PAGE, "getSnapshot": {"ref": _LISTED}},
    "putSources": {"listSources": _SOURCE, "deleteSource": _SOURCE},
    "listSources": {"listSources": _NEXT_PAGE, "deleteSource": _SOURCE},
    "listStrategies": {"getStrategy": {"id": "$response.body#/strategies/0/id"}},
    "listAuditEvents": {"listAuditEvents": _NEXT_PAGE},
    "listAuditSeals": {"listAuditSeals": _NEXT_PAGE},
}
"""By operationId, the operations that its answer leads to, with their parameters."""


def describe_links(operation: dict[str, Any]) -> None:
    """Add the links of an operation to each of its answers that went well."""
    targets = _LINKS.get(operation["operationId"], {})
    links = {
        target: {"operationId": target, "parameters": dict(parameters)}
        for target, parameters in targets.items()
    }
    for status, answer in operation["responses"].items():
        if links and status.startswith("2"):
            answer["links"] = links
