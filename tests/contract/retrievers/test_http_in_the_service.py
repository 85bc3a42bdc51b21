"""A retriever over HTTP as a leg of the whole service: stored, read back, replayed, degraded."""

import hashlib
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.adapters.http.retriever import HttpRetriever
from app.adapters.postgres.database import Database, Statement
from app.adapters.retriever_contract import filters_from
from app.config import RetrieverSettings, Settings
from app.errors import ConfigurationError
from app.retrieval.retriever import SCOPE_PARTS
from tests.api.service import Api, Json, assert_problem, question, source, source_ids
from tests.contract.retrievers.reference_server import (
    ReferenceServer,
    Reply,
    reply,
    running_reference_server,
)
from tests.contract.retrievers.world import document
from tests.recipes import calling, serving, write_recipes
from tests.tokens import TokenFactory

RECIPES = {
    "kb": "retrievers:\n  - name: kb\n    deadlineMs: 5000",
    "both": (
        "retrievers:\n  - name: lexical\n  - name: kb\n    onFailure: degrade\n    deadlineMs: 1500"
    ),
}
GONE = "http://127.0.0.1:9/base"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceServer]:
    with running_reference_server(tmp_path_factory.mktemp("retriever")) as running:
        yield running


@pytest.fixture(autouse=True)
def honest(server: ReferenceServer) -> None:
    server.instead = None


def configured(url: str | None, **members: Any) -> RetrieverSettings:
    usual: Json = {"name": "kb", "type": "http", "url": url, "max_trust_tier": "user", "retries": 0}
    return RetrieverSettings(**{**usual, "breaker_failures": 1000, **members})


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipes(tmp_path_factory.mktemp("strategies"), RECIPES)


@asynccontextmanager
async def service_with(
    settings: Settings, recipes: Path, one: RetrieverSettings
) -> AsyncIterator[Any]:
    async with serving(settings.model_copy(update={"retrievers": (one,)}), recipes) as app:
        yield app


@pytest.fixture(scope="module")
async def module_client(
    service_settings: Settings, recipes: Path, server: ReferenceServer
) -> AsyncIterator[Any]:
    one = configured(server.url, key="a-key-of-the-retriever")
    async with service_with(service_settings, recipes, one) as app, calling(app) as client:
        yield client


@pytest.fixture
def kb(module_client: Any, token: TokenFactory, make_tenant: Callable[[], str]) -> Api:
    """The service with the retriever, in a tenant of the test's own."""
    return Api(module_client, token, make_tenant, make_tenant())


def asking(strategy: str = "kb", **members: Any) -> Json:
    return question("cancel", strategy=strategy, **members)


async def part(api: Api, snapshot: Json, name: str, **claims: Any) -> Any:
    return await api.read(f"/snapshots/{snapshot['hash']}/{name}", **claims)


async def assert_true(api: Api, snapshot: Json) -> None:
    """Every check holds, and a replay comes out the same."""
    verified = await part(api, snapshot, "verify")
    assert verified["ok"], verified
    path = f"/snapshots/{snapshot['hash']}/replay"
    answer = await api.client.post(path, headers=api.headers())
    assert answer.json() == {"match": True, "hash": snapshot["hash"]}


async def test_candidates_become_items_that_can_be_read_verified_and_replayed(
    kb: Api, server: ReferenceServer
) -> None:
    server.store.put(kb.tenant, [document("a.md"), document("b.md", provenance="x")])
    snapshot = await kb.assemble(asking())
    assert source_ids(snapshot) == ["a.md", "b.md"]
    texts = [one["text"] for one in (await part(kb, snapshot, "contents"))["contents"]]
    assert texts == ["cancel the booking a.md", "cancel the booking b.md"]
    [leg] = (await part(kb, snapshot, "report"))["report"]["retrievers"]
    assert (leg["status"], leg["candidates"], leg["external"]) == ("ok", 2, True)
    assert snapshot["items"][0]["indexVersion"] == f"kb:{leg['visibleVersion']}"
    prompt = await kb.get(f"/snapshots/{snapshot['hash']}/prompt")
    assert "cancel the booking b.md" in prompt.text
    assert server.keys[-1] == "Bearer a-key-of-the-retriever"
    asked = server.asked[-1]
    assert asked["predicate"]["tenantId"] == kb.tenant
    assert 0 < asked["deadlineMs"] <= 5000
    server.instead = lambda _: reply({}, 500)
    calls = server.calls
    await assert_true(kb, snapshot)
    assert server.calls == calls, "a replay asks nobody"


async def test_what_came_from_outside_is_explained_as_such(
    kb: Api, server: ReferenceServer
) -> None:
    server.store.put(kb.tenant, [document("a.md")])
    snapshot = await kb.assemble(asking())
    named = {"project": "alpha", "sourceId": "a.md"}
    told = await kb.read(f"/snapshots/{snapshot['hash']}/explain", named)
    outcomes = [(stage["stage"], stage["outcome"]) for stage in told["stages"]]
    assert outcomes == [
        ("index", "external"),
        ("scope", "admitted"),
        ("retrieval", "found"),
        ("packing", "item"),
    ]


async def test_a_replay_needs_no_retriever(
    kb: Api, api: Api, server: ReferenceServer, parts: Any
) -> None:
    server.store.put(kb.tenant, [document("a.md")])
    snapshot = await kb.assemble(asking())
    without = replace(api, tenant=kb.tenant)
    assert "kb" not in parts.services.retrievers
    await assert_true(without, snapshot)


async def test_readers_need_the_label_of_every_candidate(kb: Api, server: ReferenceServer) -> None:
    """Also of those that did not get in."""
    eng = document("a.md", acl={"allow": ["group:eng"], "deny": ["user:eve"]})
    long = document("long.md", text="cancel " * 3000, classification="confidential", class_="code")
    server.store.put(kb.tenant, [eng, long])
    writer: Json = {"groups": ["eng"], "max_classification": "restricted"}
    asked = asking(budget={"maxTokens": 1000})
    snapshot = await kb.assemble(asked, **writer)
    assert (source_ids(snapshot), source_ids(snapshot, "exclusions")) == (["a.md"], ["long.md"])
    refused: tuple[Json, ...] = (
        {"groups": []},
        {"groups": ["eng"], "sub": "eve"},
        {"groups": ["eng"], "max_classification": "internal"},
        {"groups": ["eng"], "classes": ["documents"]},
        {"groups": ["eng"], "projects": ["beta"]},
    )
    usual = {"max_classification": "restricted"}
    for claims in refused:
        for name in ("", "/contents", "/prompt", "/report", "/verify"):
            answer = await kb.get(f"/snapshots/{snapshot['hash']}{name}", **{**usual, **claims})
            assert_problem(answer, 404, "not-found")
        assert (await kb.read("/snapshots", **{**usual, **claims}))["snapshots"] == []
    assert (await kb.get(f"/snapshots/{snapshot['hash']}", **writer)).status_code == 200
    other = await kb.elsewhere().get(f"/snapshots/{snapshot['hash']}", **writer)
    assert_problem(other, 404, "not-found")


async def test_what_the_index_holds_under_a_name_is_what_counts(
    kb: Api, server: ReferenceServer
) -> None:
    await kb.index(source("a.md", "cancel, says the index", project="alpha"))
    server.store.put(kb.tenant, [document("a.md"), document("b.md")])
    snapshot = await kb.assemble(asking("both"))
    found = {one["sourceId"]: one["indexVersion"].split(":")[0] for one in snapshot["items"]}
    assert found == {"a.md": "lexical", "b.md": "kb"}
    texts = [one["text"] for one in (await part(kb, snapshot, "contents"))["contents"]]
    assert sorted(texts) == ["cancel the booking b.md", "cancel, says the index"]
    await assert_true(kb, snapshot)


async def test_the_order_of_an_answer_has_no_influence(kb: Api, server: ReferenceServer) -> None:
    server.store.put(kb.tenant, [document(f"{at}.md") for at in range(6)])
    request = asking()
    first = await kb.assemble(request)

    def stirred(asked: Json) -> Reply:
        found = server.store.search(asked)
        return reply({**found, "candidates": found["candidates"][::-1] * 2})

    server.instead = stirred
    again = await kb.post(request, {"refresh": "true"})
    assert (again.status_code, again.json()) == (200, first)


def _hash(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def changed(**members: Any) -> Callable[[Json], Json]:
    """An answer whose candidate b.md is another one."""

    def change(found: Json) -> Json:
        candidates = [
            {**one, **members} if one["sourceId"] == "b.md" else one for one in found["candidates"]
        ]
        return {**found, "candidates": candidates}

    return change


OUT_OF_SCOPE = {
    "another tenant": changed(tenantId="another"),
    "another project": changed(project="beta"),
    "every project": changed(project="*"),
    "a higher classification": changed(classification="restricted"),
    "another class": changed(**{"class": "memory"}),
    "less trust": changed(trustTier="untrusted-external"),
    "an access list without the caller": changed(acl={"allow": ["user:bob"]}),
    "an empty access list": changed(acl={"allow": []}),
    "a denial": changed(acl={"deny": ["user:ana"]}),
    "a source that the patterns leave out": changed(sourceId="drafts/b.md"),
}
CANNOT_BE: dict[str, Callable[[Json], Any]] = {
    "a text that is not its digest's": changed(text="something else"),
    "a digest in another form": changed(contentHash=_hash("x").upper()),
    "a score that is no number": changed(score=float("nan")),
    "an infinite score": changed(score=float("inf")),
    "a score with a point": changed(score=1.0),
    "a score in quotes": changed(score="9"),
    "true for a score": changed(score=True),
    "a score beyond what JSON holds": changed(score=2**53),
    "no source id": changed(sourceId=""),
    "NUL in a chunk id": changed(chunkId="\0"),
    "NUL in a text": changed(text="a\0b", contentHash=_hash("a\0b")),
    "NUL in an access list": changed(acl={"allow": ["user:ana", "user:\0"]}),
    "NUL in a denial": changed(acl={"deny": ["\0"]}),
    "a denial longer than any name": changed(acl={"deny": ["x" * 3000]}),
    "null for a project": changed(project=None),
    "a class of its own": changed(**{"class": "novel"}),
    "a tier of its own": changed(trustTier="root"),
    "more trust than the settings allow": changed(trustTier="system-policy"),
    "a policy that is not of its tier": changed(**{"class": "policy"}),
    "an access list in quotes": changed(acl={"allow": "user:ana"}),
    "half a surrogate pair": changed(text="\ud800"),
    "no candidates": lambda found: {"visibleVersion": "v"},
    "no version": lambda found: {"candidates": []},
    "null for a version": lambda found: {**found, "visibleVersion": None},
    "an array": lambda found: [found],
    "candidates of another kind": lambda found: {**found, "candidates": ["b.md"]},
}
RAW: dict[str, Reply] = {
    "not JSON": (200, {}, b"<html>"),
    "nothing": (200, {}, b""),
    "not UTF-8": (200, {}, b'{"visibleVersion": "\xff", "candidates": []}'),
    "nested a thousand deep": (200, {}, b"[" * 1000 + b"]" * 1000),
    "10 MB of one text": (200, {}, b'{"visibleVersion": "' + b"a" * 10_000_000 + b'"}'),
    "compressed": (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"),
    "a redirect": (307, {"Location": "http://127.0.0.1:9/"}, b""),
    "no content": (204, {}, b""),
    "refused": (403, {}, b"{}"),
    "unknown": (404, {}, b"{}"),
    "a failure": (500, {}, b"{}"),
    "too many": (429, {"Retry-After": "1"}, b"{}"),
}
NARROW: Json = {
    "scope": {
        "projects": ["alpha"],
        "classes": ["documents", "policy"],
        "maxClassification": "confidential",
        "minTrustTier": "tool-result",
        "sources": {"deny": ["drafts/*"]},
    }
}


async def _counted(api: Api, metric: str, **labels: str) -> float:
    text = (await api.client.get("/metrics")).text
    wanted = ",".join(f'{name}="{value}"' for name, value in labels.items())
    found = re.search(rf"^{metric}_total\{{{wanted}\}} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0


@pytest.fixture
def two(kb: Api, server: ReferenceServer) -> Api:
    server.store.put(kb.tenant, [document("a.md"), document("b.md", text="cancel it, secretly")])
    return kb


async def test_what_is_out_of_scope_is_dropped_counted_and_not_kept(
    two: Api, server: ReferenceServer, owner: Database
) -> None:
    before = await _counted(two, "ctxsnap_out_of_scope_candidates", retriever="kb")
    for name, change in OUT_OF_SCOPE.items():
        server.instead = lambda asked, change=change: reply(change(server.store.search(asked)))
        snapshot = await two.assemble(asking(**NARROW))
        assert source_ids(snapshot) == ["a.md"], name
        assert snapshot["exclusions"] == [], name
        await assert_true(two, snapshot)
    after = await _counted(two, "ctxsnap_out_of_scope_candidates", retriever="kb")
    assert after == before + len(OUT_OF_SCOPE)
    kept = await stored_texts(owner, two.tenant)
    assert "cancel the booking a.md" in kept
    assert not any("secretly" in text for text in kept)


async def stored_texts(owner: Database, tenant: str) -> list[str]:
    """Texts and recorded answers of all snapshots of a tenant."""
    rows = await owner.run(
        tenant,
        Statement(
            "SELECT text FROM snapshot_contents WHERE tenant_key = $1 UNION ALL "
            "SELECT convert_from(inputs, 'UTF8') FROM snapshots WHERE tenant_key = $1",
            "text text",
        ),
    )
    return [row.text for row in rows]


async def test_an_answer_that_cannot_be_fails_a_required_leg_and_stores_nothing(
    two: Api, server: ReferenceServer
) -> None:
    def lying(change: Callable[[Json], Any]) -> Callable[[Json], Reply]:
        return lambda asked: reply(change(server.store.search(asked)))

    def always(raw: Reply) -> Callable[[Json], Reply]:
        return lambda _: raw

    replies = {name: lying(change) for name, change in CANNOT_BE.items()}
    replies |= {name: always(raw) for name, raw in RAW.items()}
    for name, instead in replies.items():
        server.instead = instead
        answer = await two.post(asking(**NARROW))
        assert answer.status_code == 503, (name, answer.text)
        assert "kb" in assert_problem(answer, 503, "retriever-unavailable")["detail"]
        assert answer.headers["retry-after"]
    assert (await two.read("/snapshots"))["snapshots"] == []


async def test_a_text_of_ten_megabytes_is_bounded(two: Api, server: ReferenceServer) -> None:
    big = changed(text="a" * 10_000_000, contentHash=_hash("a" * 10_000_000))
    server.instead = lambda asked: reply(big(server.store.search(asked)))
    assert_problem(await two.post(asking()), 503, "retriever-unavailable")


@pytest.mark.parametrize("status", ["error", "timeout"])
async def test_going_on_without_it_shows_everywhere(
    kb: Api, server: ReferenceServer, status: str
) -> None:
    await kb.index(source("a.md", "cancel", project="alpha"))
    leave = threading.Event()

    def late(_: Json) -> Reply:
        leave.wait(30)
        return reply({})

    server.instead = late if status == "timeout" else lambda _: reply({}, 500)
    labels = {"reason": status, "retriever": "kb"}
    before = await _counted(kb, "ctxsnap_degraded_retrievals", **labels)
    answer = await kb.post(asking("both"))
    leave.set()
    assert answer.status_code == 201
    snapshot = answer.json()
    assert answer.headers["snapshot-degraded"] == f"kb; reason={status}"
    assert snapshot["budget"]["assembly"]["degraded"] == ["kb"]
    report = (await part(kb, snapshot, "report"))["report"]
    assert {leg["name"]: leg["status"] for leg in report["retrievers"]} == {
        "lexical": "ok",
        "kb": status,
    }
    assert await _counted(kb, "ctxsnap_degraded_retrievals", **labels) == before + 1
    await assert_true(kb, snapshot)


async def test_the_callers_trace_is_handed_on(kb: Api, server: ReferenceServer) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {**kb.headers(), "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    answer = await kb.client.post("/snapshots", json=asking(), headers=headers)
    assert answer.status_code == 201, answer.text
    handed_on = server.traces[-1]
    assert handed_on is not None
    assert handed_on.split("-")[1] == trace


@pytest.mark.parametrize("missing", SCOPE_PARTS)
async def test_a_backend_that_does_not_filter_is_refused_at_start(
    service_settings: Settings, recipes: Path, server: ReferenceServer, missing: str
) -> None:
    server.filters = tuple(part for part in SCOPE_PARTS if part != missing)
    try:
        with pytest.raises(ConfigurationError, match=f"kb .* {missing} while"):
            async with service_with(service_settings, recipes, configured(server.url)):
                pass
    finally:
        server.filters = SCOPE_PARTS


async def test_a_backend_whose_answer_at_start_is_no_answer_is_named(
    service_settings: Settings,
    recipes: Path,
    server: ReferenceServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The reference server cannot break its own contract.
    async def no_answer(_: HttpRetriever) -> frozenset[str]:
        return filters_from(b'{"filters": [7]}')

    monkeypatch.setattr(HttpRetriever, "filters", no_answer)
    with pytest.raises(ConfigurationError, match="kb does not say what it filters by"):
        async with service_with(service_settings, recipes, configured(server.url)):
            pass


async def test_one_that_is_away_at_start_is_asked_for_its_filters_before_its_first_query(
    service_settings: Settings,
    recipes: Path,
    server: ReferenceServer,
    token: TokenFactory,
    tenant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, away = ReferenceServer.answer, [True]

    def answer(self: ReferenceServer, path: str, asked: Json) -> Reply:
        return reply({}, 503) if away[0] else honest(self, path, asked)

    monkeypatch.setattr(ReferenceServer, "answer", answer)
    server.store.put(tenant, [document("a.md")])
    one = configured(server.url)
    async with service_with(service_settings, recipes, one) as app, calling(app) as client:
        there = Api(client, token, lambda: tenant, tenant)
        assert_problem(await there.post(asking()), 503, "retriever-unavailable")
        away[0] = False
        server.filters = ("projects",)
        asked = len(server.asked)
        assert_problem(await there.post(asking()), 503, "retriever-unavailable")
        assert len(server.asked) == asked, "no query goes to a backend that does not filter"
        server.filters = SCOPE_PARTS
        assert source_ids(await there.assemble(asking())) == ["a.md"]


async def test_retries_and_the_breaker_are_the_settings(
    service_settings: Settings,
    recipes: Path,
    server: ReferenceServer,
    token: TokenFactory,
    tenant: str,
) -> None:
    server.store.put(tenant, [document("a.md")])
    one = configured(server.url, retries=2, breaker_failures=2, breaker_reset_s=3600)
    failing: list[int] = [503, 503]

    def instead(asked: Json) -> Reply:
        return reply({}, failing.pop()) if failing else reply(server.store.search(asked))

    async with service_with(service_settings, recipes, one) as app, calling(app) as client:
        there = Api(client, token, lambda: tenant, tenant)
        server.instead = instead
        assert source_ids(await there.assemble(asking())) == ["a.md"]
        for _ in range(2):
            failing.append(400)
            assert_problem(await there.post(asking()), 503, "retriever-unavailable")
        asked = len(server.asked)
        assert_problem(await there.post(asking()), 503, "retriever-unavailable")
        assert len(server.asked) == asked, "it is left alone"


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"name": "lexical"}, "taken"),
        ({"name": "graph"}, "taken"),
        ({"type": "telepathy"}, "unknown type telepathy"),
        ({"url": None}, "needs a `url`"),
        ({"url": "http://user:secret@127.0.0.1/"}, "without credentials"),
    ],
)
async def test_settings_that_cannot_work_are_refused(
    service_settings: Settings, recipes: Path, members: Json, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        async with service_with(service_settings, recipes, configured(**{"url": GONE, **members})):
            pass
    assert "secret" not in str(caught.value)


async def test_a_recorded_answer_holds_no_text(
    kb: Api, server: ReferenceServer, owner: Database
) -> None:
    server.store.put(kb.tenant, [document("a.md", text="cancel, and more")])
    await kb.assemble(asking())
    recorded = [text for text in await stored_texts(owner, kb.tenant) if '"retrievers"' in text]
    [answer] = [json.loads(text)["retrievers"]["kb"]["external"] for text in recorded]
    [candidate] = answer["candidates"]
    assert candidate["contentHash"] == _hash("cancel, and more a.md")
    assert "and more" not in recorded[0]
