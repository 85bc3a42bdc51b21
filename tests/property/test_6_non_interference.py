"""Property 6: what a caller may not know about has no influence on what it gets."""

from typing import Any

from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.property.access_rules import may_know
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import Caller, Json, callers, requests, source_lists, sources

Key = tuple[str, str]


def _key(source: Json) -> Key:
    return source["project"], source["sourceId"]


def _without_patterns(scope: Json) -> Json:
    """Patterns select among what the caller may know; they hide nothing from it."""
    return {name: value for name, value in scope.items() if name != "sources"}


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[Json], Caller, Json, list[tuple[str, Json]]]:
    """A world, a request, and changes of it that all lie outside of the request's scope."""
    caller = draw(callers())
    request = draw(requests(caller))
    scope = _without_patterns(request["scope"])
    world = draw(source_lists(8))
    live = {_key(source): source for source in world}
    changes: list[tuple[str, Json]] = []
    for candidate in draw(st.lists(sources(), min_size=1, max_size=8)):
        present = live.get(_key(candidate))
        if present is not None and may_know(present, caller, scope):
            continue
        if present is not None and draw(st.booleans()):
            changes.append(("delete", present))
            del live[_key(candidate)]
        elif not may_know(candidate, caller, scope):
            changes.append(("put", {**candidate, "sourceRevision": str(len(changes) + 10)}))
            live[_key(candidate)] = candidate
    return world, caller, request, changes


async def _apply(service: Service, tenant: str, changes: list[tuple[str, Json]]) -> None:
    for kind, source in changes:
        if kind == "put":
            await service.index(tenant, [source])
        else:
            await service.delete(tenant, source["project"], source["sourceId"])


@sized(60, full=5_000)
@given(history=_histories())
async def test_changes_outside_the_scope_leave_the_bytes_as_they_were(
    service: Service, history: tuple[list[Json], Caller, Json, list[tuple[str, Json]]]
) -> None:
    world, caller, request, changes = history
    tenant = service.make_tenant()
    await service.index(tenant, world)
    before = await service.assemble(tenant, caller, request)
    await _apply(service, tenant, changes)
    after = await service.assemble(tenant, caller, request, refresh="true")
    assert before.status_code == 201, before.text
    assert after.content == before.content
    assert after.status_code == 200


@sized(40, full=2_000)
@given(world=source_lists(8), extra=source_lists(8), caller=callers(), query=st.just("cancel"))
async def test_lists_counts_and_reports_show_nothing_of_what_is_outside_the_grant(
    service: Service, world: list[Json], extra: list[Json], caller: Caller, query: str
) -> None:
    held = {_key(source) for source in world}
    hidden = [
        source for source in extra if not may_know(source, caller, {}) and _key(source) not in held
    ]
    tenant = service.make_tenant()
    await service.index(tenant, world)
    before = await _everything_seen(service, tenant, caller)
    if hidden:
        await service.index(tenant, hidden)
    assert await _everything_seen(service, tenant, caller) == before


async def _everything_seen(service: Service, tenant: str, caller: Caller) -> list[Any]:
    """What the index tells this caller; who writes is told the tenant's index version."""
    claims = {**caller.claims(), "scope": "index:read snapshots:read snapshots:assemble"}
    index = await service.get(tenant, "/index", **claims)
    first = await service.get(tenant, "/sources?limit=2", **claims)
    rest = await service.get(tenant, "/sources", **claims)
    return [index.json(), first.json(), rest.json()]


@examples(max_examples=25)
@given(world=source_lists(6), added=sources())
async def test_a_source_added_and_removed_leaves_the_visible_version_as_it_was(
    service: Service, world: list[Json], added: Json
) -> None:
    tenant = service.make_tenant()
    others = [source for source in world if _key(source) != _key(added)]
    assume(others)
    await service.index(tenant, others)
    before = (await service.get(tenant, "/index")).json()
    await service.index(tenant, [added])
    between = (await service.get(tenant, "/index")).json()
    await service.delete(tenant, added["project"], added["sourceId"])
    after = (await service.get(tenant, "/index")).json()
    asked_by = Caller("ana", ["*"], [], None, "restricted")
    seen = may_know(added, asked_by, {})
    assert (between["visibleVersion"] != before["visibleVersion"]) == seen
    assert after["visibleVersion"] == before["visibleVersion"]
    assert after["indexVersion"] == before["indexVersion"] + 2
