"""Drives what openapi-generator makes for Python; run with the generated package at hand."""

import json
import sys
import uuid

from ctxsnap_generated import ApiClient, Configuration, IndexApi, SnapshotsApi
from ctxsnap_generated.exceptions import UnprocessableEntityException
from ctxsnap_generated.models import (
    ContextSnapshot,
    CreateSnapshotBody,
    KnowledgeClass,
    PinBody,
    PutSourcesBody,
    ScopeBody,
    SourceBody,
)


def main(url: str, token: str, project: str) -> dict[str, object]:
    client = ApiClient(Configuration(host=url, access_token=token))
    sources, snapshots = IndexApi(client), SnapshotsApi(client)

    def index(text: str, revision: str) -> None:
        source = SourceBody(
            source_id="a.md",
            source_revision=revision,
            var_class=KnowledgeClass.DOCUMENTS,
            project=project,
            text=text,
        )
        sources.put_sources(PutSourcesBody(sources=[source]))

    def request(*pins: PinBody) -> CreateSnapshotBody:
        return CreateSnapshotBody(
            run_id=str(uuid.uuid4()),
            attempt_id=str(uuid.uuid4()),
            query="cancel",
            scope=ScopeBody(projects=[project]),
            pins=list(pins),
        )

    def assemble() -> ContextSnapshot:
        made = snapshots.create_snapshot(request()).actual_instance
        assert isinstance(made, ContextSnapshot)
        return made

    index("How to cancel.", "1")
    first = assemble()
    index("How to cancel a booking.", "2")
    second = assemble()
    difference = snapshots.diff_snapshots(first.hash, second.hash)
    try:
        snapshots.create_snapshot(request(PinBody(source_id="gone.md")))
        code = None
    except UnprocessableEntityException as refused:
        code = refused.data.code
    return {
        "hash": first.hash,
        "readBack": snapshots.get_snapshot(first.hash).hash,
        "items": [item.source_id for item in first.items],
        "causes": [one.cause for one in difference.causes],
        "problem": code,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
