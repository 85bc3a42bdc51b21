"""Lets a request in only with a grant: authentication at the door, before any route.

Guarantees: every HTTP request outside of the exact public paths carries a valid bearer
token, or is answered 401 before it reaches the application, whether its path exists or
not. The grant is at `scope["state"]["grant"]` (`request.state.grant`); public paths get
none. Nothing but HTTP and the server's own lifespan events passes.

Not handled: what the grant permits, which each operation checks; and tokens outside of
the Authorization header (RFC 6750, sections 2.2 and 2.3).
"""

import re
from collections.abc import Mapping
from typing import Protocol

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.problems import instance_of, problem_response, request_id_of
from app.errors import AuthenticationError
from app.scope.claims import ClaimNames, grant_from_claims
from app.scope.grant import Grant

_log = structlog.get_logger()

_CREDENTIALS = re.compile(rb"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_NOT_QUOTABLE = re.compile(r'[^\x20-\x7e]|["\\]')
_POLICY_VIOLATION = 1008


class TokenVerifier(Protocol):
    """Turns a bearer token into its claims."""

    async def verify(self, token: str) -> Mapping[str, object]:
        """The claims of a valid token; AuthenticationError for every other.

        UnavailableError while it cannot be told.
        """
        ...


class ScopeEnforcementMiddleware:
    """Pure ASGI; stands inside of the request id and outside of everything that reads data."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        verifier: TokenVerifier,
        claim_names: ClaimNames,
        public_paths: frozenset[str],
    ) -> None:
        self.app = app
        self._verifier = verifier
        self._claim_names = claim_names
        self._public_paths = public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._enforce(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Closing before accepting is answered as 403 by the server.
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            raise AuthenticationError("Only HTTP is served here.")

    async def _enforce(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._public_paths:
            credentials = _authorization(scope)
            try:
                grant = await self._grant(credentials)
            except AuthenticationError as error:
                _log.info("authentication_failed", code=error.code)
                response = problem_response(
                    error, instance=instance_of(scope), request_id=request_id_of(scope)
                )
                response.headers["WWW-Authenticate"] = _challenge(error, given=bool(credentials))
                await response(scope, receive, send)
                return
            scope.setdefault("state", {})["grant"] = grant
        await self.app(scope, receive, send)

    async def _grant(self, credentials: list[bytes]) -> Grant:
        if not credentials:
            raise AuthenticationError("Send a token: Authorization: Bearer <JWT>.")
        if len(credentials) > 1:
            raise AuthenticationError("Send the Authorization header once.")
        bearer = _CREDENTIALS.fullmatch(credentials[0].strip(b" \t"))
        if bearer is None:
            raise AuthenticationError("The Authorization header must be: Bearer <JWT>.")
        claims = await self._verifier.verify(bearer[1].decode("ascii"))
        return grant_from_claims(claims, self._claim_names)


def _authorization(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name.lower() == b"authorization"]


def _challenge(error: AuthenticationError, *, given: bool) -> str:
    """RFC 6750, section 3: no error code for a request that brings no credentials."""
    if not given:
        return "Bearer"
    description = _NOT_QUOTABLE.sub("'", error.detail)
    return f'Bearer error="invalid_token", error_description="{description}"'
