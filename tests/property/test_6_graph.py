"""Properties 5 and 6 for the graph leg: links lead through and to what is in scope, no further."""

import hashlib
import json
import random
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from app.api.parts import Parts
from app.api.snapshot_schemas import CreateSnapshotBody
from app.retrieval.expansion import ExpansionRules, Seeds
from app.retrieval.retriever import ScopedQuery
from app.scope.access import narrow
from app.scope.claims import ClaimNames, grant_from_claims
from app.strategy.strategy import Strategy, StrategyCatalog
from tests.property.access_rules import may_know
from tests.property.asking import Asker, a_request
from tests.property.pairs import Choices, Key, Pair, a_source, choices, name_of, pairs
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import PROJECTS, SOURCE_IDS, Caller, Json, callers, narrowings

_STRATEGY = "four-hops"
_LINKED_IDS = (*SOURCE_IDS, "A", "b", "c", "never-heard-of")
_BUSY = ("alpha", "alpha", "alpha", "beta")
_SEES_MOST = Caller("ana", ["*"], ["eng", "ops"], None, "restricted")
# Even bytes: drawn ones are mostly zeros, and sources that are alike are few.
_EVEN = st.integers(0, 2**32).map(lambda seed: Choices(random.Random(seed).randbytes(48)))
_SOURCES = st.lists(_EVEN, min_size=8, max_size=14)
_IDS = {"runId": str(uuid.UUID(int=1)), "attemptId": str(uuid.UUID(int=2))}
Chunk = tuple[str, str, str]


@pytest.fixture(scope="module", autouse=True)
def following(app: FastAPI, parts: Parts) -> Iterator[None]:
    """A strategy that follows links."""
    strategy = Strategy.model_validate(
        {
            "id": _STRATEGY,
            "version": 1,
            "description": "Follows links as far as it can.",
            "retrievers": [{"name": "lexical"}],
            "expansion": {"hops": 4, "seeds": 3, "limit": 30, "dampingPermille": 900},
        }
    )
    catalog = StrategyCatalog((*parts.services.strategies.all(), strategy))
    app.state.parts = replace(parts, services=replace(parts.services, strategies=catalog))
    yield
    app.state.parts = parts


def _with_links(source: Json, salt: int) -> Json:
    """Links that follow from the source and the salt: equal sources have equal ones."""
    drawn = hashlib.sha256(json.dumps([source, salt], sort_keys=True).encode()).digest()
    return source | {"links": [name for at, name in enumerate(_LINKED_IDS) if drawn[at] % 2]}


def _linked(pair: Pair, salt: int) -> Pair:
    def every(world: dict[Key, Json]) -> dict[Key, Json]:
        return {name: _with_links(source, salt) for name, source in world.items()}

    changes = [
        [_with_links(source, salt) for source in change] if isinstance(change, list) else change
        for change in pair.changes
    ]
    return replace(
        pair,
        before=every(pair.before),
        after=every(pair.after),
        changes=changes,
        elsewhere=every(pair.elsewhere),
    )


@st.composite
def _asked_pairs(draw: st.DrawFn) -> tuple[Pair, Json]:
    pair = _linked(draw(pairs(narrowed=True)), draw(st.integers(0, 255)))
    return pair, a_request(draw(choices), pair, 1) | {"strategy": _STRATEGY}


@sized(10, full=3_000)
@given(example=_asked_pairs())
async def test_links_from_and_to_what_is_hidden_leave_the_bytes_as_they_were(
    service: Service, example: tuple[Pair, Json]
) -> None:
    pair, request = example
    asker = Asker(service, service.make_tenant(), pair.caller)
    if pair.before:
        await service.index(asker.tenant, [*pair.before.values()])
    stored = await asker.ask("POST", "/snapshots", body=request)
    await pair.come_about(service, asker.tenant)
    again = await asker.ask("POST", "/snapshots", body=request, refresh="true")
    assert stored.status == 201, stored.document
    assert again.status == 200, again.document
    assert again.body == stored.body
    assert stored.document["budget"]["assembly"]["degraded"] == []


@dataclass(frozen=True)
class _Walk:
    """What is asked of the graph by itself; names may be of what is hidden or unknown."""

    sources: list[Json]
    caller: Caller
    scope: Json
    seeds: dict[Key, int]
    known: frozenset[Chunk]
    rules: ExpansionRules
    limit: int

    @property
    def visible(self) -> dict[Key, Json]:
        sources = (one for one in self.sources if may_know(one, self.caller, self.scope))
        return {name_of(source): source for source in sources}


def _near_others(choice: Choices) -> Json:
    """A source that others may be linked to: most are in one project."""
    place = {"project": choice.pick(_BUSY), "sourceId": choice.pick(_LINKED_IDS[:-1])}
    return a_source(choice) | place


@st.composite
def _walks(draw: st.DrawFn) -> _Walk:
    salt, choice = draw(st.integers(0, 255)), draw(_EVEN)
    caller = draw(callers()) if choice.once_in(3) else _SEES_MOST
    scope = draw(narrowings(caller)) if choice.once_in(3) else {}
    sources = {name_of(one): one for one in map(_near_others, draw(_SOURCES))}
    names = [*sources, *product(PROJECTS, _LINKED_IDS)]
    scores = (1, 7, 1000, 1001, 16_393_442, 2**50)
    return _Walk(
        [_with_links(source, salt) for source in sources.values()],
        caller,
        scope,
        {choice.pick(names[:12]): choice.pick(scores) for _ in range(8)},
        frozenset((*choice.pick(names), choice.pick("01")) for _ in range(4)),
        ExpansionRules(choice.pick((1, 2, 3, 4)), choice.pick((500, 999, 1000, 1))),
        choice.pick((1000, 1000, 3, 1)),
    )


@sized(20, full=5_000)
@given(walk=_walks())
async def test_the_graph_reaches_exactly_what_links_in_scope_lead_to(
    service: Service, parts: Parts, walk: _Walk
) -> None:
    tenant = service.make_tenant()
    await service.index(tenant, walk.sources)
    claims = {name: value for name, value in walk.caller.claims().items() if value is not None}
    grant = grant_from_claims({"tenant_id": tenant, **claims}, ClaimNames())
    body = CreateSnapshotBody.model_validate({**_IDS, "scope": walk.scope})
    scope = narrow(grant, body.to_core(grant).scope)
    view = await parts.services.views.open(scope)
    found = await parts.services.graph.neighbours(
        ScopedQuery(scope, view, "", None, walk.limit), Seeds(walk.seeds, walk.known), walk.rules
    )
    assert [(one.chunk.identity, one.score) for one in found.candidates] == _reference(walk)
    assert [one.rank for one in found.candidates] == [*range(1, len(found.candidates) + 1)]
    assert found.visible_version == view.visible_version


def _reference(walk: _Walk) -> list[tuple[Chunk, int]]:
    """Seed by seed and hop by hop, over what may be known alone."""
    visible, best = walk.visible, dict[tuple[str, str, int, Chunk], int]()
    for seed, score in walk.seeds.items():
        level = {seed} & visible.keys()
        for hop in range(1, walk.rules.hops + 1):
            level = {reached for name in level for reached in _links(name, visible)}
            worth = int(score * Fraction(walk.rules.damping_permille, 1000) ** hop)
            for project, source_id in level:
                for at, chunk in enumerate(visible[project, source_id]["chunks"][:2]):
                    name = (project, source_id, chunk["chunkId"])
                    if name not in walk.known:
                        key = (source_id, project, at, name)
                        best[key] = max(best.get(key, 0), worth)
    ordered = sorted(best, key=lambda key: (-best[key], key))
    return [(key[3], best[key]) for key in ordered[: walk.limit]]


def _links(name: Key, visible: Mapping[Key, Json]) -> Iterator[Key]:
    for link in visible[name]["links"]:
        if link != name[1] and (name[0], link) in visible:
            yield name[0], link
