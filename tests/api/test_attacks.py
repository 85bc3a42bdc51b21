"""Attacks on names, patterns, claims and the door: nothing is folded, widened or guessed."""

import unicodedata
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from tests.api.service import Api, Json, assert_problem, question, source, source_ids

WILD = ("*", "%", "_", "\\", "a*c", "a%c", "a_c", "a\\%c", "abc")
"""Names in which something stands for more than itself, somewhere."""

LOOK_ALIKE = {
    "as it is": "café-admin",
    "decomposed": unicodedata.normalize("NFD", "café-admin"),
    "upper case": "CAFÉ-ADMIN",
    "a Cyrillic a": "cаfé-admin",
    "wide letters": "ｃafé-admin",
    "another hyphen": "café‐admin",
    "a zero-width space": "café\u200b-admin",
    "a soft hyphen": "café\u00ad-admin",
    "a space behind": "café-admin ",
    "a byte order mark": "\ufeffcafé-admin",
    "a dotless i": "café-admın",
    "a ligature": "café-adﬁn",
    "a line feed behind": "café-admin\n",
}
NAMES = list(LOOK_ALIKE.values())


def _names(snapshot: Json) -> list[str]:
    return sorted(source_ids(snapshot))


async def test_wildcards_in_names_stand_for_themselves(api: Api) -> None:
    names = list(WILD)
    await api.index(*[source(name, f"words {at}") for at, name in enumerate(names)])
    for name in names:
        for parameter, expected in {
            "sourceId": [name],
            "prefix": sorted(one for one in names if one.startswith(name)),
        }.items():
            listed = await api.read("/sources", {parameter: name})
            assert source_ids(listed, "sources") == expected
        pins = [{"project": "booking", "sourceId": name}]
        assert source_ids(await api.assemble(question(None, pins=pins))) == [name]
    for name in ("a%", "%c", "a__", "a*", "**", "%%", "\\%"):
        unknown = question(None, pins=[{"project": "booking", "sourceId": name}])
        assert_problem(await api.post(unknown), 422, "pin-unavailable")
        assert (await api.delete("booking", name)).status_code == 404
    for name in ("*", "%", "_", "\\"):
        assert (await api.delete("booking", name)).status_code == 200
    left = source_ids(await api.read("/sources"), "sources")
    assert left == sorted(name for name in names if len(name) > 1)


async def test_only_the_star_of_a_pattern_is_more_than_itself(api: Api) -> None:
    names = list(WILD)
    await api.index(*[source(name, f"words {at}") for at, name in enumerate(names)])

    async def found(**patterns: list[str]) -> list[str]:
        return _names(await api.assemble(question("words", scope={"sources": patterns})))

    assert await found(allow=["%", "a_c"]) == ["%", "a_c"]
    assert await found(deny=["_", "a%c", "\\"]) == sorted(set(names) - {"_", "a%c", "\\"})
    assert await found(allow=["a*c"]) == sorted(one for one in names if len(one) > 1)
    assert await found(allow=["\\*", "a\\*c"]) == ["\\", "a\\%c"]
    assert await found(allow=["*"], deny=["%*", "_*"]) == sorted(set(names) - {"%", "_"})
    assert await found(deny=["*"]) == []


async def test_a_wildcard_is_no_project_but_itself(api: Api) -> None:
    names = sorted(name for name in WILD if name != "*")
    await api.index(*[source("a.md", f"words {name}", project=name) for name in names])
    for name in names:
        for listed in (
            await api.read("/sources", projects=[name]),
            await api.read("/sources", {"project": name}),
        ):
            assert [one["project"] for one in listed["sources"]] == [name]
        snapshot = await api.assemble(question("words", scope={"projects": [name]}))
        assert [one["project"] for one in snapshot["items"]] == [name]


async def test_a_wildcard_is_no_group_but_itself(api: Api) -> None:
    names = sorted(WILD)
    await api.index(
        *[source(name, f"words {name}", acl={"allow": [f"group:{name}"]}) for name in names],
        *[source(f"not {name}", "x", acl={"deny": [f"group:{name}"]}) for name in names],
    )
    for name in names:
        listed = source_ids(await api.read("/sources", groups=[name]), "sources")
        assert listed == sorted([name, *(f"not {one}" for one in names if one != name)])
        assert source_ids(await api.assemble(question("words"), groups=[name])) == [name]


def test_the_names_that_look_alike_differ() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({unicodedata.normalize("NFKC", name).casefold().strip() for name in NAMES}) < 9


async def test_tenants_that_look_alike_share_nothing(api: Api) -> None:
    tenants = [Api(api.client, api.token, api.make_tenant, api.tenant + name) for name in NAMES]
    for at, tenant in enumerate(tenants):
        await tenant.index(source(f"{at}.md", "words"))
    for at, tenant in enumerate(tenants):
        assert source_ids(await tenant.read("/sources"), "sources") == [f"{at}.md"]
    assert (await api.read("/sources"))["sources"] == []


async def test_projects_that_look_alike_are_different_projects(api: Api) -> None:
    await api.index(*[source("a.md", f"words {at}", project=one) for at, one in enumerate(NAMES)])
    for name in NAMES:
        listed = (await api.read("/sources", projects=[name]))["sources"]
        assert [one["project"] for one in listed] == [name]
        asked = question("words", scope={"projects": [one for one in NAMES if one != name]})
        problem = assert_problem(await api.post(asked, projects=[name]), 403, "scope-exceeds-grant")
        assert len(problem["errors"]) == len(NAMES) - 1


@pytest.mark.parametrize(("kind", "claim"), [("group", "groups"), ("user", "sub")])
async def test_principals_that_look_alike_are_different_principals(
    api: Api, kind: str, claim: str
) -> None:
    names = [name for name in NAMES if "\n" not in name]
    await api.index(
        *[
            source(f"{at} allows", "words", acl={"allow": [f"{kind}:{name}"]})
            for at, name in enumerate(names)
        ],
        *[
            source(f"{at} denies", "words", acl={"deny": [f"{kind}:{name}"]})
            for at, name in enumerate(names)
        ],
    )
    for at, name in enumerate(names):
        claims: Json = {claim: [name] if claim == "groups" else name}
        listed = source_ids(await api.read("/sources", {"limit": 1000}, **claims), "sources")
        others = {f"{other} denies" for other in range(len(names)) if other != at}
        assert set(listed) == {f"{at} allows"} | others


async def test_source_ids_that_look_alike_are_different_sources(api: Api) -> None:
    await api.index(*[source(name, f"words {at}") for at, name in enumerate(NAMES)])
    assert source_ids(await api.read("/sources"), "sources") == sorted(NAMES)
    pins = [{"project": "booking", "sourceId": name} for name in NAMES]
    pinned = await api.assemble(question(None, pins=pins))
    contents = await api.read(f"/snapshots/{pinned['hash']}/contents")
    texts = [one["text"] for one in contents["contents"]]
    assert dict(zip(source_ids(pinned), texts, strict=True)) == {
        name: f"words {at}" for at, name in enumerate(NAMES)
    }


OTHER_TYPES: list[Any] = [7, 1.5, True, {}, {"0": "x"}, [[]], [7], [True], [""], ["a\0"], "", "\0"]
TEXT_CLAIMS = ("sub", "tenant_id", "max_classification", "max_trust_tier")
ARRAY_CLAIMS = ("projects", "groups", "classes")


async def test_a_claim_of_a_wrong_type_is_401(api: Api) -> None:
    """A claim of null is left out by the factory of tokens, so that it is signed here by hand."""
    good: Json = {
        "sub": "ana",
        "tenant_id": api.tenant,
        "projects": ["*"],
        "scope": "index:read",
        "exp": 4_102_444_800,
    }
    wrong: list[tuple[str, Any]] = [
        *product(TEXT_CLAIMS, [*OTHER_TYPES, None, ["x"]]),
        *product(ARRAY_CLAIMS, [*OTHER_TYPES, None, "booking"]),
        *product(["scope"], [7, True, None, {}, ["index:read"]]),
        *product(["act"], [7, True, None, "x", [], {}, {"sub": 7}, {"sub": ""}]),
        *product(["exp"], ["4102444800", None, True, [], -1, 0]),
        *product(["iat", "nbf"], ["0", [], {}]),
    ]

    async def status(claims: Json) -> int:
        signed = api.token.key.sign({**good, **claims})
        answer = await api.client.get("/index", headers={"Authorization": f"Bearer {signed}"})
        if answer.status_code == 401:
            assert_problem(answer, 401, "authentication-failed")
        return answer.status_code

    assert await status({}) == 200
    assert [one for one in wrong if await status({one[0]: one[1]}) != 401] == []


async def test_the_body_of_a_caller_without_the_permission_is_not_even_read(api: Api) -> None:
    """Reading and parsing 64 MiB is work that only those who may load may ask for."""
    read: list[int] = []

    async def load() -> AsyncIterator[bytes]:
        for at in range(3):
            read.append(at)
            yield b'{"no": "source"}\n'

    for method, path in (("PUT", "/sources"), ("POST", "/snapshots")):
        headers = {
            **api.headers(scope="index:read snapshots:read"),
            "Content-Type": "application/x-ndjson" if method == "PUT" else "application/json",
        }
        answer = await api.client.request(method, path, content=load(), headers=headers)
        assert_problem(answer, 403, "permission-missing")
    assert read == []
    headers = {**api.headers(), "Content-Type": "application/x-ndjson"}
    allowed = await api.client.put("/sources", content=load(), headers=headers)
    assert_problem(allowed, 422, "invalid-request")
    assert read == [0, 1, 2]


async def test_words_of_a_caller_never_become_labels_of_metrics(api: Api) -> None:
    """Each label costs memory for as long as the process lives, and /healthz asks for no token."""
    for at in range(3):
        answer = await api.client.request(f"WORD{at}", "/healthz")
        assert answer.status_code == 405
        answer = await api.client.request(f"WORD{at}", "/index", headers=api.headers())
        assert answer.status_code == 405
        await api.client.get(f"/WORD{at}", headers=api.headers())
    text = (await api.client.get("/metrics")).text
    assert 'method="any",route="/healthz",status="405"' in text
    assert "WORD" not in text


async def test_a_repeat_asks_for_the_permissions_of_its_request_again(api: Api) -> None:
    """Who lost the right to name a version is not answered by what it stored when it had it."""
    await api.index(source("a.md", "cancel"))
    request = question("cancel", asOf={"indexVersion": await api.index_version()})
    key = {"Idempotency-Key": "k"}
    first = await api.client.post("/snapshots", json=request, headers={**api.headers(), **key})
    assert first.status_code == 201
    reader = api.headers(scope="snapshots:assemble snapshots:read")
    for headers in (reader, {**reader, **key}):
        again = await api.client.post("/snapshots", json=request, headers=headers)
        assert_problem(again, 403, "permission-missing", "/asOf/indexVersion")
    assert (await api.post(request)).content == first.content
