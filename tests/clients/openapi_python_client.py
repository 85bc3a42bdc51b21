"""Drives what openapi-python-client generates; run with the generated package at hand."""

import json
import sys
import uuid

from ctxsnap_client import AuthenticatedClient
from ctxsnap_client.api.index import put_sources
from ctxsnap_client.api.snapshots import create_snapshot, diff_snapshots, get_snapshot
from ctxsnap_client.models import (
    ContextSnapshot,
    CreateSnapshotBody,
    KnowledgeClass,
    PinBody,
    PutSourcesBody,
    ScopeBody,
    SourceBody,
)


def main(url: str, token: str, project: str) -> dict[str, object]:
    client = AuthenticatedClient(base_url=url, token=token)

    def index(text: str, revision: str) -> None:
        source = SourceBody(
            source_id="a.md",
            source_revision=revision,
            class_=KnowledgeClass.DOCUMENTS,
            project=project,
            text=text,
        )
        put_sources.sync(client=client, body=PutSourcesBody(sources=[source]))

    def request(*pins: PinBody) -> CreateSnapshotBody:
        return CreateSnapshotBody(
            run_id=uuid.uuid4(),
            attempt_id=uuid.uuid4(),
            query="cancel",
            scope=ScopeBody(projects=[project]),
            pins=list(pins),
        )

    def assemble() -> ContextSnapshot:
        made = create_snapshot.sync(client=client, body=request())
        assert isinstance(made, ContextSnapshot)
        return made

    index("How to cancel.", "1")
    first = assemble()
    index("How to cancel a booking.", "2")
    second = assemble()
    again = get_snapshot.sync(first.hash_, client=client)
    difference = diff_snapshots.sync(first.hash_, second.hash_, client=client)
    refused = create_snapshot.sync(client=client, body=request(PinBody(source_id="gone.md")))
    return {
        "hash": first.hash_,
        "readBack": again.hash_,
        "items": [item.source_id for item in first.items],
        "causes": [one.cause for one in difference.causes],
        "problem": refused.code,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
