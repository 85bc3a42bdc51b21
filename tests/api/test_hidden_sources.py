"""A source that the caller may not know is answered, in every call, like one that is not there."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.api.service import Api, Json, assert_problem, question, source, without_request

CALLER: Json = {
    "projects": ["booking"],
    "groups": ["eng"],
    "max_classification": "internal",
    "scope": "snapshots:assemble snapshots:read index:read index:write",
}
AUDITOR = {**CALLER, "scope": f"{CALLER['scope']} audit:read"}

HIDDEN = "secret.md"
UNKNOWN = "absent.md"

WHERE: dict[str, tuple[str, Json]] = {
    "another project": ("booking", {"project": "billing"}),
    "a project outside of the grant": ("billing", {"project": "billing"}),
    "a higher classification": ("booking", {"classification": "restricted"}),
    "a list that denies": ("booking", {"acl": {"deny": ["group:eng"]}}),
    "a list that allows nobody": ("booking", {"acl": {"allow": []}}),
    "another tenant": ("booking", {}),
}

Ask = Callable[[Api, str, str], Awaitable[Any]]


def _told(answer: httpx.Response, source_id: str) -> tuple[int, Any]:
    """Status and document, without the request's own id and the name that was asked for."""
    assert answer.status_code < 500, answer.text
    document = httpx.Response(200, text=answer.text.replace(source_id, "…")).json()
    return answer.status_code, without_request(document)


async def _listed(api: Api, project: str, source_id: str) -> Any:
    parameters = {"project": project, "sourceId": source_id}
    return _told(await api.get("/sources", parameters, **CALLER), source_id)


async def _prefixed(api: Api, project: str, source_id: str) -> Any:
    return _told(await api.get("/sources", {"prefix": source_id[:4]}, **CALLER), source_id)


async def _deleted(api: Api, project: str, source_id: str) -> Any:
    # Access lists do not bind writers: here it is a ceiling that keeps the source away.
    claims = {**CALLER, "max_classification": "public"}
    return _told(await api.delete(project, source_id, **claims), source_id)


async def _pinned(api: Api, project: str, source_id: str) -> Any:
    pin = {"project": project, "sourceId": source_id}
    return _told(await api.post(question("cancel", pins=[pin]), **CALLER), source_id)


async def _named(api: Api, project: str, source_id: str) -> Any:
    pin = {"project": project, "sourceId": source_id, "required": False}
    snapshot = await api.assemble(question("cancel", pins=[pin]), **CALLER)
    [exclusion] = snapshot["exclusions"]
    assert (exclusion.pop("sourceId"), exclusion["reason"]) == (source_id, "denied")
    items = [(item["sourceId"], item["tokens"], item["indexVersion"]) for item in snapshot["items"]]
    return exclusion, items, snapshot["budget"]["usedTokens"]


async def _patterned(api: Api, project: str, source_id: str) -> Any:
    scope = {"sources": {"allow": [source_id]}}
    snapshot = await api.assemble(question("cancel", scope=scope), **CALLER)
    return snapshot["items"], snapshot["exclusions"]


async def _explained(api: Api, project: str, source_id: str) -> Any:
    snapshot = await api.assemble(question("cancel"), **CALLER)
    path = f"/snapshots/{snapshot['hash']}/explain"
    parameters = {"project": project, "sourceId": source_id}
    return _told(await api.get(path, parameters, **AUDITOR), source_id)


CALLS: dict[str, Ask] = {
    "list": _listed,
    "list by prefix": _prefixed,
    "delete": _deleted,
    "pin": _pinned,
    "optional pin": _named,
    "pattern": _patterned,
    "explain": _explained,
}


@pytest.mark.parametrize("where", WHERE)
async def test_asking_for_a_hidden_source_is_answered_like_asking_for_an_unknown_one(
    api: Api, where: str
) -> None:
    project, members = WHERE[where]
    holder = api.elsewhere() if where == "another tenant" else api
    await api.index(source("shown.md", "cancel a booking"))
    await holder.index(source(HIDDEN, "cancel everything at once", **members))
    for name, call in CALLS.items():
        hidden, unknown = [await call(api, project, one) for one in (HIDDEN, UNKNOWN)]
        assert hidden == unknown, name
    kept = await holder.index(source(HIDDEN, "cancel everything at once", **members))
    assert kept["sources"][0]["unchanged"]


async def test_the_same_source_is_told_of_to_who_may_know_it(api: Api) -> None:
    """Without this, equal answers would say nothing."""
    known = source(HIDDEN, "cancel everything", classification="public")
    await api.index(source("shown.md", "cancel a booking"))
    # Where it may be known, the pin that need not be there is no exclusion at all.
    for name in CALLS.keys() - {"optional pin"}:
        await api.index(known)
        told = [await CALLS[name](api, "booking", one) for one in (HIDDEN, UNKNOWN)]
        assert told[0] != told[1], name


async def test_a_writer_of_one_project_learns_nothing_of_the_same_id_in_another(api: Api) -> None:
    """Two tenants with as many sources each; only in the first one is the id the same."""
    twin = api.elsewhere()
    await api.index(source("a.md", "cancel their booking", project="billing"))
    await twin.index(source("other.md", "cancel their booking", project="billing"))

    async def story(tenant: Api) -> list[Any]:
        first = await tenant.put(source("a.md", "cancel my booking"), **CALLER)
        again = await tenant.put(source("a.md", "cancel my booking"), **CALLER)
        listed = await tenant.get("/sources", {"sourceId": "a.md"}, **CALLER)
        index = await tenant.get("/index", **CALLER)
        asked = await tenant.assemble(question("cancel their booking"), **CALLER)
        gone = await tenant.delete("booking", "a.md", **CALLER)
        twice = await tenant.delete("booking", "a.md", **CALLER)
        answers = [first, again, listed, index, gone, twice]
        told = [(answer.status_code, without_request(answer.json())) for answer in answers]
        return [told, asked["items"], asked["exclusions"], asked["budget"]["usedTokens"]]

    assert await story(api) == await story(twin)
    [theirs] = (await api.read("/sources", {"sourceId": "a.md"}))["sources"]
    assert theirs["project"] == "billing"
    beyond = await api.put(source("a.md", "x", project="billing"), **CALLER)
    absent = await api.put(source("b.md", "x", project="billing"), **CALLER)
    assert_problem(beyond, 403, "scope-exceeds-grant", "/sources/0/project")
    assert without_request(beyond.json()) == without_request(absent.json())
