"""Property 6 for heads: those of hidden sources have no influence, and no history shows."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from app.api.parts import Parts
from app.strategy.strategy import Strategy, StrategyCatalog
from tests.property.access_rules import may_know
from tests.property.asking import Asker, Told, a_request
from tests.property.pairs import UNKNOWN, Choices, Key, Pair, a_source, choices, name_of, pairs
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import Caller, Json

_ROOT = Caller("root", ["*"], [], None, "restricted", permissions="index:write index:read")
_LOW = replace(_ROOT, projects=["alpha"], max_classification="internal")
_STRATEGY = "exclude-stale"
_NAMES: tuple[Key, ...] = (("alpha", "a"), ("alpha", "b"), ("beta", "a"))
"""Few, so that calls meet."""


@pytest.fixture(scope="module", autouse=True)
def excluding(app: FastAPI, parts: Parts) -> Iterator[None]:
    """A strategy to which heads matter."""
    strategy = Strategy.model_validate(
        {
            "id": _STRATEGY,
            "version": 1,
            "description": "What is stale stays out.",
            "retrievers": [{"name": "lexical"}],
            "freshness": {"stale": "exclude"},
        }
    )
    catalog = StrategyCatalog((*parts.services.strategies.all(), strategy))
    app.state.parts = replace(parts, services=replace(parts.services, strategies=catalog))
    yield
    app.state.parts = parts


async def _put_heads(service: Service, tenant: str, heads: dict[Key, str]) -> None:
    body = [
        {"project": project, "sourceId": source_id, "sourceRevision": revision}
        for (project, source_id), revision in heads.items()
    ]
    if body:
        told = await Asker(service, tenant, _ROOT).ask(
            "PUT", "/sources/heads", body={"heads": body}
        )
        assert told.status == 200, told.document


@st.composite
def _with_heads(draw: st.DrawFn) -> tuple[Pair, Json, dict[Key, str], dict[Key, str]]:
    """A world, a request, heads of any of its sources, and others of what its scope hides."""
    pair, choice = draw(pairs(narrowed=True)), draw(choices)
    bounds = {name: value for name, value in pair.scope.items() if name != "sources"}
    hidden = [
        name for name, source in pair.before.items() if not may_know(source, pair.caller, bounds)
    ]
    standing = {name: choice.pick(("1", "2", "3")) for name in choice.some([*pair.before][:8])}
    added = {name: choice.pick(("3", "4")) for name in (*hidden, UNKNOWN)}
    return pair, a_request(draw(choices), pair, 1) | {"strategy": _STRATEGY}, standing, added


@sized(10, full=2_000)
@given(example=_with_heads())
async def test_heads_of_what_a_scope_hides_leave_the_bytes_as_they_were(
    service: Service, example: tuple[Pair, Json, dict[Key, str], dict[Key, str]]
) -> None:
    pair, request, standing, added = example
    asker = Asker(service, service.make_tenant(), pair.caller)
    elsewhere = service.make_tenant()
    await _put_heads(service, asker.tenant, standing)
    if pair.before:
        await service.index(asker.tenant, [*pair.before.values()])
    stored = await asker.ask("POST", "/snapshots", body=request)
    index = await _listed(asker)
    beyond_grant = {
        name: revision
        for name, revision in added.items()
        if name not in pair.before or not may_know(pair.before[name], pair.caller, {})
    }
    await _put_heads(service, asker.tenant, beyond_grant)
    await _put_heads(service, elsewhere, dict.fromkeys(pair.before, "4"))
    assert await _listed(asker) == index
    await _put_heads(service, asker.tenant, added)
    again = await asker.ask("POST", "/snapshots", body=request, refresh="true")
    assert stored.status == 201, stored.document
    assert again.status == 200, again.document
    assert again.body == stored.body
    shown = {name_of(item) for item in stored.document["items"] if "indexVersion" in item}
    pinned = {name_of(pin) for pin in request["pins"]}
    stale = {
        name
        for name, revision in standing.items()
        if pair.before[name]["sourceRevision"] != revision
    }
    assert not (shown & stale) - pinned


async def _listed(asker: Asker) -> list[Told]:
    return [await asker.ask("GET", "/index"), *await asker.pages("/sources", 1000)]


@dataclass
class _World:
    """What is live, and the heads, as the calls of a history leave them."""

    live: dict[Key, Json] = field(default_factory=dict)
    heads: dict[Key, str] = field(default_factory=dict)

    def effective(self) -> dict[Key, str]:
        """The heads that make a live source stale."""
        return {
            name: revision
            for name, revision in self.heads.items()
            if name in self.live and self.live[name]["sourceRevision"] != revision
        }


async def _happen(service: Service, tenant: str, world: _World, steps: list[Choices]) -> None:
    for choice in steps:
        kind = choice.pick(("put", "head", "head", "delete"))
        name = choice.pick(_NAMES)
        source = a_source(choice) | {"project": name[0], "sourceId": name[1]}
        if kind == "put":
            await service.index(tenant, [source])
            world.live[name] = source
        elif kind == "head":
            world.heads[name] = choice.pick(("1", "2", "3"))
            await _put_heads(service, tenant, {name: world.heads[name]})
        elif name in world.live:
            await service.delete(tenant, *name)
            del world.live[name]


@sized(12, full=2_000)
@given(steps=st.lists(choices, min_size=2, max_size=9), heads_first=st.booleans())
async def test_equal_content_has_an_equal_fingerprint_whatever_happened_before(
    service: Service, steps: list[Choices], heads_first: bool
) -> None:
    tenant, twin, world = service.make_tenant(), service.make_tenant(), _World()
    await _happen(service, tenant, world, steps)
    if heads_first:
        await _put_heads(service, twin, world.effective())
    if world.live:
        await service.index(twin, [*world.live.values()])
    if not heads_first:
        await _put_heads(service, twin, world.effective())
    for caller in (_ROOT, _LOW):
        found = [await Asker(service, one, caller).ask("GET", "/index") for one in (tenant, twin)]
        versions = [told.document["visibleVersion"] for told in found]
        assert versions[0] == versions[1]
