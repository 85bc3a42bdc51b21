"""Where an issuer's verification keys come from: a secret, a file, or a key server.

Guarantees: key sets come over HTTPS, or HTTP from this machine only; redirects are not
followed and answers are limited in time and size. One request at a time goes to a key
server, and not more often than the policy says, whatever tokens arrive.

An answer or a file that cannot be read keeps the keys that were read before (a key
server's for at most `max_stale_s`). A readable one is taken as it is, also when it is
empty: that is how keys are withdrawn. A key server that has not answered yet says nothing
of its tokens: they are neither valid nor invalid, and the caller is to try again.
"""

import asyncio
import ipaddress
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import structlog

from app.adapters.jose_keys import VerificationKey, parse_jwks
from app.errors import AuthenticationError, ConfigurationError, ServiceError, UnavailableError

_log = structlog.get_logger(__name__)


class KeySource(Protocol):
    """Where an issuer's keys come from."""

    async def current(self) -> tuple[VerificationKey, ...]:
        """The keys known now.

        Raises UnavailableError while none could be had yet, AuthenticationError when those
        that were are too old.
        """
        ...

    async def refreshed(self) -> tuple[VerificationKey, ...]:
        """The keys after asking again, as far as that is allowed at this moment."""
        ...

    async def aclose(self) -> None: ...


class FixedKeys:
    def __init__(self, keys: tuple[VerificationKey, ...]) -> None:
        self._keys = keys

    async def current(self) -> tuple[VerificationKey, ...]:
        return self._keys

    async def refreshed(self) -> tuple[VerificationKey, ...]:
        return self._keys

    async def aclose(self) -> None:
        return None


class JwksFile:
    """A key set file that is read again when it has changed.

    Raises ConfigurationError when at construction it cannot be read or has no usable key.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._seen: tuple[int, int, int] | None = self._fingerprint()
            self._keys = parse_jwks(path.read_bytes())
        except OSError as error:
            raise ConfigurationError(f"The key set file {path} cannot be read.") from error
        if not self._keys:
            raise ConfigurationError(f"The key set file {path} has no key that can be used.")

    def _fingerprint(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read_if_changed(self) -> tuple[VerificationKey, ...]:
        try:
            fingerprint = self._fingerprint()
            if fingerprint == self._seen:
                return self._keys
            document = self._path.read_bytes()
        except OSError as error:
            if self._seen is not None:
                _log.warning("jwks_file_unreadable", path=str(self._path), errno=error.errno)
            self._seen = None
            return self._keys
        # Noted before parsing: a file that is still being written will change once more.
        self._seen = fingerprint
        try:
            self._keys = parse_jwks(document)
        except ConfigurationError as error:
            _log.warning("jwks_file_malformed", path=str(self._path), reason=error.detail)
        return self._keys

    async def current(self) -> tuple[VerificationKey, ...]:
        return self._read_if_changed()

    async def refreshed(self) -> tuple[VerificationKey, ...]:
        return self._read_if_changed()

    async def aclose(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class JwksUrlPolicy:
    """How often a key server is asked, and how long its answers hold."""

    fresh_s: float = 300
    max_stale_s: float = 86_400
    min_interval_s: float = 10
    timeout_s: float = 5
    max_bytes: int = 512 * 1024


def check_jwks_url(url: str) -> None:
    """Raise ConfigurationError unless the URL is https, or http to this machine."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigurationError("The key set's URL is not a URL.") from error
    if parsed.userinfo:
        raise ConfigurationError("The key set's URL must not hold credentials.")
    if not parsed.host or parsed.scheme not in ("http", "https"):
        raise ConfigurationError("The key set's URL must be an https URL.")
    if parsed.scheme == "http" and not _is_loopback(parsed.host):
        raise ConfigurationError("The key set's URL may be http only for a loopback address.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class JwksUrl:
    """A key server's key set, cached; keys that are stale are used while they are renewed."""

    def __init__(
        self,
        url: str,
        *,
        client: httpx.AsyncClient,
        monotonic: Callable[[], float],
        policy: JwksUrlPolicy,
    ) -> None:
        check_jwks_url(url)
        self._url = url
        self._client = client
        self._monotonic = monotonic
        self._policy = policy
        self._keys: tuple[VerificationKey, ...] = ()
        self._fetched_at_s = -math.inf
        self._asked_at_s = -math.inf
        self._failure: Exception | None = None
        self._refresh: asyncio.Task[None] | None = None

    async def current(self) -> tuple[VerificationKey, ...]:
        age_s = self._age_s()
        if age_s >= self._policy.fresh_s:
            refresh = self._begin_refresh()
            if refresh is not None and age_s >= self._policy.max_stale_s:
                await asyncio.shield(refresh)
        return self._usable()

    async def refreshed(self) -> tuple[VerificationKey, ...]:
        refresh = self._begin_refresh()
        if refresh is not None:
            await asyncio.shield(refresh)
        return self._usable()

    async def aclose(self) -> None:
        """End a request that is under way; the client stays open."""
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.gather(self._refresh, return_exceptions=True)

    def _age_s(self) -> float:
        return self._monotonic() - self._fetched_at_s

    def _usable(self) -> tuple[VerificationKey, ...]:
        if self._fetched_at_s == -math.inf:
            wait_s = self._asked_at_s + self._policy.min_interval_s - self._monotonic()
            raise UnavailableError(
                "The keys of the token's issuer could not be fetched yet; try again shortly.",
                retry_after_s=max(1, math.ceil(wait_s)),
            ) from self._failure
        if self._age_s() >= self._policy.max_stale_s:
            raise AuthenticationError(
                "The keys of the token's issuer are not available at the moment."
            ) from self._failure
        return self._keys

    def _begin_refresh(self) -> asyncio.Task[None] | None:
        """The request under way, or a new one; None when it is too early for another."""
        if self._refresh is not None and not self._refresh.done():
            return self._refresh
        now_s = self._monotonic()
        if now_s - self._asked_at_s < self._policy.min_interval_s:
            return None
        self._asked_at_s = now_s
        # A task of its own: the request of a caller who goes away still serves the others.
        self._refresh = asyncio.create_task(self._load())
        return self._refresh

    async def _load(self) -> None:
        try:
            async with asyncio.timeout(self._policy.timeout_s):
                keys = parse_jwks(await self._fetch())
        except (httpx.HTTPError, TimeoutError, ServiceError) as error:
            self._failure = error
            _log.warning("jwks_refresh_failed", url=self._url, error=type(error).__name__)
            return
        self._keys, self._failure, self._fetched_at_s = keys, None, self._monotonic()

    async def _fetch(self) -> bytes:
        # Identity: a compressed answer could grow beyond the limit while it is unpacked.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with self._client.stream(
            "GET", self._url, headers=headers, follow_redirects=False
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise UnavailableError(f"The key server answered {response.status_code}.")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise UnavailableError("The key server's answer is compressed.")
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > self._policy.max_bytes:
                    raise UnavailableError("The key server's answer is too large.")
            return bytes(body)
