"""So many calls a minute for each subject and each tenant, whichever process they meet.

Guaranteed: a call beyond a limit is answered 429 `rate-limited` with Retry-After before its
body is read, and costs one round trip to the database, and one for its audit event. Every
answer carries RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-10), with
what is left to the subject; what is left to the tenant tells of other subjects, and is told
only where it refuses. Who cannot be counted is answered 503: the audit log needs the same
database anyway.

Not handled: calls without a valid token; they reach neither the database nor a body.
"""

from collections.abc import Iterable
from typing import Protocol

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import instance_of, problem_response, request_id_of
from app.api.routing import note_route
from app.errors import RateLimitedError
from app.rate_limits import WINDOW_S, Quota, RateLimiter, RateLimits
from app.scope.grant import Grant


class RateLimitParts(Protocol):
    """What of the running application's parts is needed here."""

    @property
    def rate_limiter(self) -> RateLimiter: ...


class RateLimitMiddleware:
    """Stands inside of the audit log, and outside of the queue: who is refused takes no place.

    It also stands outside of the deadline: what counts a call is not taken for its result.
    """

    def __init__(self, app: ASGIApp, *, limits: RateLimits) -> None:
        self.app = app
        self._limits = limits
        self._policy = ", ".join(
            f'"{name}";q={calls};w={WINDOW_S}'
            for name, calls in (("subject", limits.per_subject), ("tenant", limits.per_tenant))
            if calls
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        grant: Grant | None = scope.get("state", {}).get("grant")
        if scope["type"] != "http" or grant is None or not self._limits.exist:
            await self.app(scope, receive, send)
            return
        parts: RateLimitParts = scope["app"].state.parts
        usage = await parts.rate_limiter.count(grant.tenant, grant.subject, self._limits)
        refusal = usage.refusal
        told = [quota for quota in (usage.subject, refusal) if quota is not None]

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["RateLimit-Policy"] = self._policy
                if told:
                    headers["RateLimit"] = _current(dict.fromkeys(told))
            await send(message)

        if refusal is None:
            await self.app(scope, receive, send_with_limits)
            return
        note_route(scope)
        response = problem_response(
            _error(refusal), instance=instance_of(scope), request_id=request_id_of(scope)
        )
        await response(scope, receive, send_with_limits)


def _current(quotas: Iterable[Quota]) -> str:
    return ", ".join(f'"{quota.name}";r={quota.remaining};t={quota.full_in_s}' for quota in quotas)


def _error(refusal: Quota) -> RateLimitedError:
    return RateLimitedError(
        f"This {refusal.name} has made more than {refusal.calls} calls a minute: try again in "
        f"{refusal.retry_after_s} s.",
        retry_after_s=refusal.retry_after_s,
    )
