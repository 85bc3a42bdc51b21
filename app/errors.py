"""The service's errors, as one tree; it knows nothing of HTTP.

    ServiceError
    ├── RequestError                  the caller can mend it
    │   ├── MalformedRequestError     not the format it claims to be
    │   ├── InvalidRequestError       well-formed, but a field is not acceptable
    │   │   ├── BudgetTooSmallError   required items do not fit
    │   │   ├── PinUnavailableError   a pinned source is unknown or not in scope
    │   │   ├── AsOfUnavailableError  a snapshot to go back to is unknown or not readable
    │   │   └── VersionNotKeptError   the index no longer has, or not yet, that version
    │   ├── AuthenticationError       no valid token
    │   ├── PermissionMissingError    the token lacks a permission
    │   ├── ScopeExceedsGrantError    the request asks for more than the token allows
    │   ├── NotFoundError             unknown, or not for this caller: word for word the same
    │   ├── ConflictError             contradicts what is stored
    │   ├── TooLargeError             beyond a stated limit
    │   └── RateLimitedError          too many calls of a subject or a tenant
    ├── UnavailableError              a part is down or overloaded; try again
    │   ├── RetrieverUnavailableError a retriever that the strategy requires
    │   ├── EmbeddingUnavailableError no usable answer of the embedding endpoint
    │   │   └── EmbeddingRefusedError it answers, but asked again it would answer the same
    │   └── RerankingUnavailableError no usable answer of the re-ranking endpoint
    ├── DeadlineExceededError         the time allowed ran out
    ├── CorruptRecordError            what is stored contradicts itself
    └── ConfigurationError            the operator can mend it

Every error carries a stable `code`, a sentence for people and, where a field is to
blame, JSON pointers (RFC 6901). Adapters translate their vendors' errors into these.
"""

from collections.abc import Mapping


class ServiceError(Exception):
    """Root of the tree. `extra` holds further members of the problem document."""

    code = "internal"

    def __init__(
        self,
        detail: str,
        *,
        pointers: tuple[str, ...] = (),
        code: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointers = pointers
        self.code = code or type(self).code
        self.extra = dict(extra or {})


class RequestError(ServiceError):
    code = "invalid-request"


class MalformedRequestError(RequestError):
    code = "malformed-request"


class InvalidRequestError(RequestError):
    code = "invalid-request"


class BudgetTooSmallError(InvalidRequestError):
    """Required items do not fit; `required_tokens` is the smallest `maxTokens` that would do."""

    code = "budget-too-small"

    def __init__(self, required_tokens: int, max_tokens: int) -> None:
        super().__init__(
            f"The required items and the output reserve need {required_tokens} tokens, "
            f"but budget.maxTokens is {max_tokens}: raise it to at least {required_tokens}, "
            f"or mark items as not required.",
            pointers=("/budget/maxTokens",),
            extra={"requiredTokens": required_tokens},
        )
        self.required_tokens = required_tokens


class PinUnavailableError(InvalidRequestError):
    code = "pin-unavailable"


class AsOfUnavailableError(InvalidRequestError):
    code = "as-of-unavailable"


class VersionNotKeptError(InvalidRequestError):
    code = "version-not-kept"


class AuthenticationError(RequestError):
    code = "authentication-failed"


class PermissionMissingError(RequestError):
    code = "permission-missing"


class ScopeExceedsGrantError(RequestError):
    code = "scope-exceeds-grant"


class NotFoundError(RequestError):
    code = "not-found"


class ConflictError(RequestError):
    code = "conflict"


class TooLargeError(RequestError):
    code = "too-large"


class RateLimitedError(RequestError):
    """After `retry_after_s` seconds another call may go through."""

    code = "rate-limited"

    def __init__(self, detail: str, *, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class UnavailableError(ServiceError):
    """A part that is needed is down or overloaded; `retry_after_s` is a hint in seconds."""

    code = "unavailable"

    def __init__(self, detail: str, *, retry_after_s: int = 1, code: str | None = None) -> None:
        super().__init__(detail, code=code)
        self.retry_after_s = retry_after_s


class RetrieverUnavailableError(UnavailableError):
    code = "retriever-unavailable"


class EmbeddingUnavailableError(UnavailableError):
    code = "embedding-unavailable"


class EmbeddingRefusedError(EmbeddingUnavailableError):
    """The endpoint does not take what it was asked, or its answer cannot be right."""


class RerankingUnavailableError(UnavailableError):
    code = "reranking-unavailable"


class DeadlineExceededError(ServiceError):
    code = "deadline-exceeded"


class CorruptRecordError(ServiceError):
    code = "corrupt-record"


class ConfigurationError(ServiceError):
    code = "configuration"
