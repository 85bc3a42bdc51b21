"""Asking an endpoint that takes JSON by POST: with a key, a deadline, retries and bounds.

Guarantees: the key is in no log and no error, nor is anything that the endpoint answered. An
answer is read up to a bound, and redirects are not followed. An endpoint that is busy, failing
or out of reach is asked again, a few times until the deadline: after growing and jittered
pauses, or after the one that it asks for.

Not handled: a `Retry-After` with a date, which would need a clock to agree on.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import httpx
import stamina

from app.errors import ConfigurationError, UnavailableError

_Answer = TypeVar("_Answer")

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_ATTEMPTS = 4
# The HTTP library tells in its error which value of a header it refuses.
_KEY = re.compile(r"[\x21-\x7e]+")


class _TryAgainError(Exception):
    """`after_s` is the pause that the endpoint asks for."""

    def __init__(self, what: str, after_s: int | None = None) -> None:
        super().__init__(what)
        self.after_s = after_s


class JsonEndpoint:
    """One operation, `path`, under a base URL.

    `name` stands in errors ("The … endpoint"), which are of the class `unavailable`, or of
    `refused` where asking again would not help;
    `deadline_s` bounds one request with all its retries, `attempts` how often it is made at
    most. Raises ConfigurationError for a URL or a key that no request can be made with.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        name: str,
        unavailable: type[UnavailableError],
        *,
        url: str,
        path: str,
        key: str | None,
        deadline_s: float,
        attempts: int = _ATTEMPTS,
        refused: type[UnavailableError] | None = None,
    ) -> None:
        self._client = client
        self._name = f"The {name} endpoint"
        self._unavailable = unavailable
        self._refused = refused or unavailable
        self._deadline_s = deadline_s
        self._retries = stamina.AsyncRetryingCaller(
            attempts=attempts, timeout=None, wait_initial=0.1, wait_max=2.0, wait_jitter=0.3
        )
        self._url = self._operation(url, path)
        refusal = f"{self._name}'s key is no token of a header."
        self._headers = {"Accept": "application/json", **bounded_headers(key, refusal)}

    async def post(self, content: Mapping[str, object], most_bytes: int) -> bytes:
        """The body of the answer; raises the endpoint's class of UnavailableError."""
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                pause_s = partial(_pause_s, deadline)
                return await self._retries(pause_s, self._post, content, most_bytes)
        except TimeoutError as error:
            raise self._unavailable(f"{self._name} did not answer in time.") from error
        except _TryAgainError as error:
            raise self._unavailable(
                f"{self._name} {error}.", retry_after_s=error.after_s or 1
            ) from error.__cause__

    def unusable(self, why: str) -> UnavailableError:
        """What to raise for an answer that cannot be right."""
        return self._refused(f"{self._name}'s answer is not usable: {why}.")

    def _operation(self, base: str, path: str) -> httpx.URL:
        try:
            url = httpx.URL(base)
        except httpx.InvalidURL as error:
            raise ConfigurationError(f"{self._name}'s URL is not a URL.") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigurationError(f"{self._name}'s URL must begin with http or https.")
        if not 0 <= (url.port or 0) < 1 << 16:
            raise ConfigurationError(f"{self._name}'s URL has no possible port.")
        if url.userinfo or url.query or url.fragment:
            raise ConfigurationError(
                f"{self._name}'s URL is a base that {path} is added to, without "
                "credentials, query and fragment."
            )
        return url.copy_with(path=url.path.rstrip("/") + path)

    async def _post(self, content: Mapping[str, object], most_bytes: int) -> bytes:
        try:
            async with self._client.stream(
                "POST",
                self._url,
                json=content,
                headers=self._headers,
                timeout=None,
                follow_redirects=False,
            ) as response:
                self._check(response)
                return await self._read(response, most_bytes)
        except httpx.TransportError as error:
            raise _TryAgainError("could not be reached") from error

    def _check(self, response: httpx.Response) -> None:
        if response.status_code in _RETRIED:
            value = response.headers.get("Retry-After", "")
            seconds = int(value) if re.fullmatch(r"[0-9]{1,5}", value) else None
            raise _TryAgainError(f"answered {response.status_code}", seconds)
        if response.status_code != httpx.codes.OK:
            raise self._refused(f"{self._name} answered {response.status_code}.")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise self.unusable("it is compressed")

    async def _read(self, response: httpx.Response, most_bytes: int) -> bytes:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > most_bytes:
                raise self.unusable(f"it is longer than {most_bytes} bytes")
        return bytes(body)


def bounded_headers(key: str | None, refusal: str) -> dict[str, str]:
    """Header fields of a request whose answer is read up to a bound, with the key if there is one.

    Raises ConfigurationError, which says `refusal`, for a key that no header can hold.
    """
    # Identity: a compressed answer could grow beyond the bound while it is unpacked.
    headers = {"Accept-Encoding": "identity"}
    if key is not None:
        if not _KEY.fullmatch(key):
            raise ConfigurationError(refusal)
        headers["Authorization"] = f"Bearer {key}"
    return headers


async def in_batches(
    texts: Sequence[str],
    size: int,
    slots: asyncio.Semaphore,
    ask: Callable[[Sequence[str]], Awaitable[list[_Answer]]],
) -> tuple[_Answer, ...]:
    """An answer for each text, in their order, asked for `size` at a time, some batches at once.

    Raises what the first batch that failed has raised; the others are given up.
    """

    async def in_turn(batch: Sequence[str]) -> list[_Answer]:
        async with slots:
            return await ask(batch)

    try:
        async with asyncio.TaskGroup() as group:
            batches = [
                group.create_task(in_turn(texts[start : start + size]))
                for start in range(0, len(texts), size)
            ]
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return tuple(answer for batch in batches for answer in batch.result())


def _pause_s(deadline: asyncio.Timeout, error: Exception) -> bool | float:
    """Whether to try again, and after which pause if the endpoint asks for one."""
    if not isinstance(error, _TryAgainError):
        return False
    if error.after_s is None:
        return True
    ends_at = deadline.when()
    within = ends_at is None or asyncio.get_running_loop().time() + error.after_s < ends_at
    return within and float(error.after_s)
