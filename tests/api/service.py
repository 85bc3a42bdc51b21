"""The whole service as a caller meets it: over HTTP, each test in a tenant of its own."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from tests.tokens import TokenFactory

Json = dict[str, Any]

PROBLEM = "application/problem+json"


def source(source_id: str, text: str | None = None, **members: Any) -> Json:
    """A source as PUT /sources takes it; of project `booking` unless told otherwise."""
    usual: Json = {
        "sourceId": source_id,
        "sourceRevision": "1",
        "class": "documents",
        "project": "booking",
    }
    if text is not None:
        usual["text"] = text
    return {**usual, **{name.rstrip("_"): value for name, value in members.items()}}


def chunks(*texts: str) -> list[Json]:
    return [{"chunkId": str(at), "text": text} for at, text in enumerate(texts)]


def item(source_id: str, text: str, **members: Any) -> Json:
    """An inline item as POST /snapshots takes it."""
    usual: Json = {
        "class": "task",
        "sourceId": source_id,
        "sourceRevision": "1",
        "chunkId": "0",
        "project": "booking",
        "text": text,
    }
    return {**usual, **{name.rstrip("_"): value for name, value in members.items()}}


def question(query: str | None, **members: Any) -> Json:
    """A request of a run and an attempt of its own."""
    usual: Json = {"runId": str(uuid.uuid4()), "attemptId": str(uuid.uuid4())}
    if query is not None:
        usual["query"] = query
    return {**usual, **members}


def assert_problem(
    answer: httpx.Response, status: int, code: str, *pointers: str, path: str | None = None
) -> Json:
    """The answer is a problem document of this status and code, blaming these members."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    document: Json = answer.json()
    assert document["status"] == status
    assert document["code"] == code, document
    assert document["type"].endswith(f":{code}")
    assert document["title"]
    assert document["detail"]
    assert document["requestId"] == answer.headers["x-request-id"]
    if path is not None:
        assert document["instance"] == path
    if pointers:
        blamed = [error.get("pointer") for error in document["errors"]]
        assert blamed == list(pointers), document
    return document


def without_request(document: Mapping[str, Any]) -> Json:
    """A problem document without what names the single request."""
    return {
        name: value for name, value in document.items() if name not in ("requestId", "instance")
    }


@dataclass(frozen=True)
class Api:
    """Calls of one tenant; claims that are not named are generous."""

    client: httpx.AsyncClient
    token: TokenFactory
    make_tenant: Callable[[], str]
    tenant: str

    def elsewhere(self) -> "Api":
        """The same service for another tenant."""
        return replace(self, tenant=self.make_tenant())

    def headers(self, **claims: Any) -> dict[str, str]:
        return self.token.headers(self.tenant, **claims)

    async def put(self, *sources: Json, **claims: Any) -> httpx.Response:
        return await self.client.put(
            "/sources", json={"sources": list(sources)}, headers=self.headers(**claims)
        )

    async def index(self, *sources: Json, **claims: Any) -> Json:
        answer = await self.put(*sources, **claims)
        assert answer.status_code == 200, answer.text
        change: Json = answer.json()
        return change

    async def delete(self, project: str, source_id: str, **claims: Any) -> httpx.Response:
        return await self.client.delete(
            "/sources",
            params={"project": project, "sourceId": source_id},
            headers=self.headers(**claims),
        )

    async def get(
        self, path: str, params: Mapping[str, str | int] | None = None, **claims: Any
    ) -> httpx.Response:
        return await self.client.get(path, params=params, headers=self.headers(**claims))

    async def read(
        self, path: str, params: Mapping[str, str | int] | None = None, **claims: Any
    ) -> Json:
        answer = await self.get(path, params, **claims)
        assert answer.status_code == 200, answer.text
        document: Json = answer.json()
        return document

    async def post(
        self, request: Json, params: Mapping[str, str] | None = None, **claims: Any
    ) -> httpx.Response:
        return await self.client.post(
            "/snapshots", json=request, params=params, headers=self.headers(**claims)
        )

    async def assemble(self, request: Json, **claims: Any) -> Json:
        """A new snapshot."""
        answer = await self.post(request, **claims)
        assert answer.status_code == 201, answer.text
        snapshot: Json = answer.json()
        return snapshot

    async def index_version(self) -> int:
        return int((await self.read("/index"))["indexVersion"])

    async def visible_version(self, **claims: Any) -> str:
        return str((await self.read("/index", **claims))["visibleVersion"])


def source_ids(snapshot: Json, part: str = "items") -> list[str]:
    return [entry["sourceId"] for entry in snapshot[part]]
