"""Real access lists: every principal sees what the data says, in every call, and no more.

83 files, mails and events with their owners and those they are shared with. What a principal
gets is compared with an index of another tenant that holds only what it may see, without
access lists: the snapshots' items, costs and fingerprints have to be the same.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import pytest

from tests.api.service import Api, Json, assert_problem, question
from tests.conftest import SHARED_DATA
from tests.tokens import TokenFactory

pytestmark = pytest.mark.shared_data

Name = tuple[str, str]
"""Project and source id."""

QUERIES = (
    "When is the meeting with the client?",
    "project update, budget and team",
    "password security link click here",
    "vacation hotel flight birthday lunch",
)


@cache
def _documents() -> tuple[Json, ...]:
    if not SHARED_DATA.is_dir():
        return ()
    lines = (SHARED_DATA / "acl" / "docs.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)


def _name(document: Json) -> Name:
    return document["kind"], document["_id"]


def _principals() -> tuple[str, ...]:
    return tuple(sorted({name for document in _documents() for name in document["acl"]}))


def _some_and_the_others_long() -> list[Any]:
    """The principals who see most, nearly most and least; the others with the mark `long`."""
    by_number = sorted(_principals(), key=lambda name: (-len(_visible(name)), name))
    some = {*by_number[:2], *by_number[-1:]}
    return [
        pytest.param(name, marks=() if name in some else pytest.mark.long) for name in by_number
    ]


def _visible(principal: str) -> set[Name]:
    return {_name(document) for document in _documents() if principal in document["acl"]}


def _source(document: Json, acl: Json) -> Json:
    project, source_id = _name(document)
    return {
        "project": project,
        "sourceId": source_id,
        "sourceRevision": document["modified"],
        "class": "documents",
        "text": f"{document['title']}\n\n{document['text']}",
        "acl": acl,
    }


@dataclass(frozen=True)
class Workspace:
    """The tenant with all documents under their access lists."""

    api: Api

    def claims(self, principal: str, **claims: Any) -> Json:
        return {"sub": principal, "max_classification": "internal", **claims}

    async def listed(self, principal: str, **claims: Any) -> list[Name]:
        page = await self.api.read("/sources", {"limit": 1000}, **self.claims(principal, **claims))
        return [(one["project"], one["sourceId"]) for one in page["sources"]]

    async def assemble(self, principal: str, request: Json, **claims: Any) -> Json:
        return await self.api.assemble(request, **self.claims(principal, **claims))

    async def alone(self, principal: str) -> "Workspace":
        """Another tenant, with what the principal may see and no access list."""
        other = Workspace(self.api.elsewhere())
        seen = _visible(principal)
        await other.api.index(*[_source(one, {}) for one in _documents() if _name(one) in seen])
        return other


@pytest.fixture(scope="module")
async def workspace(
    client: httpx.AsyncClient, token: TokenFactory, make_tenant: Callable[[], str]
) -> Workspace:
    api = Api(client, token, make_tenant, make_tenant())
    await api.index(
        *[_source(one, {"allow": [f"user:{name}" for name in one["acl"]]}) for one in _documents()]
    )
    return Workspace(api)


def _pins(*names: Name, required: bool = False) -> list[Json]:
    return [
        {"project": project, "sourceId": source_id, "required": required}
        for project, source_id in names
    ]


def _shown(snapshot: Json) -> Json:
    """What a snapshot tells of the index."""
    return {part: snapshot[part] for part in ("items", "exclusions")}


EVERY = [_name(document) for document in _documents()]
LARGE = {"maxTokens": 1_000_000}


def test_the_data_is_what_its_readme_says() -> None:
    assert (len(EVERY), len(set(EVERY)), len(_principals())) == (83, 83, 56)
    for document in _documents():
        named = {document["owner"], *document.get("shared_with", {}), *document.get("to", [])}
        assert named <= set(document["acl"])
    seen = {len(_visible(principal)) for principal in _principals()}
    assert min(seen) == 1
    assert max(seen) == 82


@pytest.mark.parametrize("principal", _principals())
async def test_a_principal_lists_what_the_data_says(workspace: Workspace, principal: str) -> None:
    assert sorted(await workspace.listed(principal)) == sorted(_visible(principal))


@pytest.mark.parametrize("principal", _some_and_the_others_long())
async def test_a_principal_pins_what_the_data_says(workspace: Workspace, principal: str) -> None:
    visible = _visible(principal)
    snapshot = await workspace.assemble(principal, question(None, pins=_pins(*EVERY), budget=LARGE))
    assert {(one["project"], one["sourceId"]) for one in snapshot["items"]} == visible
    denied = {(one["project"], one["sourceId"]): one for one in snapshot["exclusions"]}
    assert set(denied) == set(EVERY) - visible
    assert {(one["reason"], one["detail"]) for one in denied.values()} == {
        ("denied", "not available")
    }


@pytest.mark.parametrize("principal", _some_and_the_others_long())
async def test_a_principal_retrieves_what_it_would_from_an_index_of_its_own(
    workspace: Workspace, principal: str
) -> None:
    visible, alone = _visible(principal), await workspace.alone(principal)
    for query in QUERIES:
        request = question(query, budget=LARGE)
        snapshot = await workspace.assemble(principal, request)
        assert _shown(snapshot) == _shown(await alone.assemble(principal, request))
        assert {(one["project"], one["sourceId"]) for one in snapshot["items"]} <= visible


@pytest.mark.parametrize("principal", _some_and_the_others_long())
async def test_required_pins_are_refused_by_their_places_where_they_are_hidden(
    workspace: Workspace, principal: str
) -> None:
    visible = _visible(principal)
    hidden = [f"/pins/{at}" for at, name in enumerate(EVERY) if name not in visible]
    request = question(None, pins=_pins(*EVERY, required=True), budget=LARGE)
    answer = await workspace.api.post(request, **workspace.claims(principal))
    problem = assert_problem(answer, 422, "pin-unavailable")
    assert problem["detail"].split(": ")[1].split(", ") == hidden


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "mallory@example.com"},
        {"sub": "EMMA.JOHNSON@BLUESPARROWTECH.COM"},
        {"sub": "emma.johnson@bluesparrowtech.com "},
        {"sub": "emma.johnson@bluesparrowtech.cоm"},
        {"sub": "user:emma.johnson@bluesparrowtech.com"},
        {"sub": "*"},
        {"sub": "mallory", "groups": list(_principals())},
        {"sub": "mallory", "groups": ["*", *(f"user:{name}" for name in _principals())]},
        {"sub": "mallory", "act": {"sub": "emma.johnson@bluesparrowtech.com"}},
    ],
    ids=lambda claims: str(claims)[:60],
)
async def test_somebody_whom_no_list_names_sees_nothing(workspace: Workspace, claims: Json) -> None:
    principal, rest = claims["sub"], {name: claims[name] for name in claims if name != "sub"}
    assert await workspace.listed(principal, **rest) == []
    request = question(QUERIES[0], pins=_pins(*EVERY), budget=LARGE)
    snapshot = await workspace.assemble(principal, request, **rest)
    assert snapshot["items"] == []
    assert len(snapshot["exclusions"]) == 83
    assert {one["detail"] for one in snapshot["exclusions"]} == {"not available"}


async def test_the_queries_find_something(workspace: Workspace) -> None:
    """The comparison of snapshots would hold for empty ones as well."""
    for query in QUERIES:
        snapshot = await workspace.assemble(
            "emma.johnson@bluesparrowtech.com", question(query, budget=LARGE)
        )
        assert len(snapshot["items"]) > 5
