"""The codes of problem documents, by status: what the OpenAPI document tells, held to the code.

Not handled: statuses that only the framework knows, whose code is `http-` and the status.
"""

from collections.abc import Mapping

PROBLEM_CODES: Mapping[int, tuple[str, ...]] = {
    400: ("malformed-request",),
    401: ("authentication-failed",),
    403: ("permission-missing", "scope-exceeds-grant"),
    404: ("content-erased", "not-found"),
    405: ("method-not-allowed",),
    409: ("conflict", "idempotency-key-reused"),
    413: ("too-large",),
    415: ("unsupported-media-type",),
    422: (
        "as-of-unavailable",
        "budget-too-small",
        "invalid-cursor",
        "invalid-request",
        "pin-unavailable",
        "source-repeated",
        "unknown-strategy",
        "version-not-kept",
    ),
    429: ("rate-limited",),
    500: ("internal",),
    503: (
        "audit-unavailable",
        "embedding-unavailable",
        "overloaded",
        "reranking-unavailable",
        "retriever-unavailable",
        "unavailable",
    ),
    504: ("deadline-exceeded",),
}
