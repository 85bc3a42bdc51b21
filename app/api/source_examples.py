"""Examples of sources to index; the tests send each of them."""

import json
from typing import Any

_DOCUMENT: dict[str, Any] = {
    "project": "booking",
    "sourceId": "docs/cancelling.md",
    "sourceRevision": "4f1d2c9",
    "class": "documents",
    "mediaType": "text/markdown",
    "text": "# Cancelling\n\nA reservation is cancelled by its guest up to a day before.",
}
_CHUNKED: dict[str, Any] = {
    "project": "booking",
    "sourceId": "schemas/reservation.sql",
    "sourceRevision": "12",
    "class": "schema",
    "classification": "internal",
    "acl": {"allow": ["group:eng"], "deny": ["user:temp"]},
    "links": ["docs/cancelling.md"],
    "chunks": [
        {"chunkId": "table", "text": "CREATE TABLE reservation (id bigint, guest text)"},
        {"chunkId": "index", "text": "CREATE INDEX ON reservation (guest)"},
    ],
}
PUT_SOURCES_EXAMPLES: dict[str, Any] = {
    "document": {"summary": "A text, cut by the service", "value": {"sources": [_DOCUMENT]}},
    "chunks": {
        "summary": "Chunks that the writer cut, for one group",
        "value": {"sources": [_CHUNKED]},
    },
}
PUT_SOURCES_LINES_EXAMPLES: dict[str, Any] = {
    "lines": {
        "summary": "A load, one source a line",
        "value": "".join(json.dumps(one) + "\n" for one in (_DOCUMENT, _CHUNKED)),
    }
}
