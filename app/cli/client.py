"""The service as the commands see it: one HTTP call per method, answers as bytes.

Guarantees: what goes wrong is a ServiceError with a sentence for people. A proxy of the
environment is never put before a service of this machine. Redirects are not followed, so
that a token goes to no other host.

Not handled: retries. Every call of the commands may simply be made again.
"""

import ipaddress
import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from app.errors import ConfigurationError, ServiceError, UnavailableError

_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 120.0
_PAGE = 1000


class RequestRefusedError(ServiceError):
    """The service's problem document (RFC 9457); `faults` are (place, what is wrong there)."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(
            str(problem.get("detail") or problem.get("title") or f"HTTP status {status}."),
            code=str(problem.get("code", "unknown")),
        )
        self.status = status
        self.request_id = str(problem.get("requestId", ""))
        errors = problem.get("errors")
        self.faults: tuple[tuple[str, str], ...] = tuple(
            (str(fault.get("pointer") or fault.get("parameter") or ""), str(fault.get("detail")))
            for fault in (errors if isinstance(errors, list) else [])
            if isinstance(fault, dict)
        )


class ServiceClient:
    """Calls one service under one token; raises ConfigurationError for a URL that is none."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=_checked(self.url),
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            trust_env=not is_local(self.url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def create_snapshot(self, request: Mapping[str, Any], *, refresh: bool = False) -> bytes:
        parameters = {"refresh": "true"} if refresh else {}
        return self._call("POST", "/snapshots", json.dumps(request).encode(), parameters)

    def snapshot(self, ref: str, part: str = "") -> bytes:
        """The snapshot, or one of its parts: contents, prompt, report, verify."""
        return self._call("GET", _path(ref) + (part and f"/{part}"))

    def diff(self, ref: str, other: str) -> bytes:
        return self.snapshot(ref, f"diff/{quote(other, safe=':')}")

    def explain(self, ref: str, project: str, source_id: str) -> bytes:
        parameters = {"project": project, "sourceId": source_id}
        return self._call("GET", f"{_path(ref)}/explain", None, parameters)

    def replay(self, ref: str) -> bytes:
        return self._call("POST", f"{_path(ref)}/replay")

    def put_sources(self, body: bytes) -> dict[str, Any]:
        return self._document(self._call("PUT", "/sources", body))

    def erase_source(self, project: str, source_id: str) -> dict[str, Any]:
        parameters = {"project": project, "sourceId": source_id, "erase": "true"}
        return self._document(self._call("DELETE", "/sources", None, parameters))

    def reindex(self, limit: int) -> dict[str, Any]:
        """One batch of sources that an earlier engine prepared."""
        parameters = {"limit": str(limit)}
        return self._document(self._call("POST", "/index/reindex", None, parameters))

    def sources(self, project: str, prefix: str) -> Iterator[dict[str, Any]]:
        """All live sources of a project whose ids begin with `prefix`, page by page."""
        parameters = {"project": project, "prefix": prefix, "limit": str(_PAGE)}
        while True:
            page = self._document(self._call("GET", "/sources", None, parameters))
            yield from page["sources"]
            if not page.get("nextCursor"):
                return
            parameters["cursor"] = page["nextCursor"]

    def audit_events(self, since: str | None = None) -> Iterator[dict[str, Any]]:
        """The tenant's audit log, newest first, page by page."""
        parameters = {"limit": str(_PAGE)} | ({} if since is None else {"since": since})
        while True:
            page = self._document(self._call("GET", "/audit", None, parameters))
            yield from page["events"]
            if not page.get("nextCursor"):
                return
            parameters["cursor"] = page["nextCursor"]

    def audit_seals(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The name of the tenant with each of its seals, in order; the first call seals."""
        parameters: dict[str, str] = {}
        while True:
            page = self._document(self._call("GET", "/audit/seals", None, parameters))
            for seal in page["seals"]:
                yield page["tenant"], seal
            if not page.get("nextCursor"):
                return
            parameters["cursor"] = page["nextCursor"]

    def is_ready(self) -> bool:
        try:
            self._call("GET", "/readyz")
        except (UnavailableError, RequestRefusedError):
            return False
        return True

    def _document(self, body: bytes) -> dict[str, Any]:
        try:
            document = json.loads(body)
        except ValueError as error:
            raise self._stranger("answered with something that is not JSON") from error
        if not isinstance(document, dict):
            raise self._stranger("answered with another document than was asked for")
        return document

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> bytes:
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            response = self._http.request(
                method, path, content=body, params=parameters, headers=headers
            )
        except httpx.TimeoutException as error:
            raise UnavailableError(f"The service at {self.url} did not answer in time.") from error
        except httpx.RequestError as error:
            raise UnavailableError(
                f"No service answers at {self.url} ({error}): start one with `ctxsnap serve`, "
                "or name another with --url."
            ) from error
        if response.is_success:
            return response.content
        raise self._refusal(response)

    def _refusal(self, response: httpx.Response) -> ServiceError:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip()
        if media_type == "application/problem+json":
            return RequestRefusedError(response.status_code, self._document(response.content))
        return RequestRefusedError(
            response.status_code,
            {
                "detail": f"{self.url} answered with status {response.status_code} and no "
                "problem document: check that --url names this service.",
            },
        )

    def _stranger(self, what: str) -> ServiceError:
        return ServiceError(f"{self.url} {what}: check that --url names this service.")


def is_local(url: str) -> bool:
    """Whether a URL names this machine by its loopback interface."""
    host = httpx.URL(url).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _path(ref: str) -> str:
    return f"/snapshots/{quote(ref, safe=':')}"


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"{url} is not a URL: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigurationError(
            f"{url} is not the URL of a service: give one such as http://127.0.0.1:8080."
        )
    return url
