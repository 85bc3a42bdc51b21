"""Property 6: what a caller may not know about has no influence on what it gets."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.property.access_rules import beyond_grant, grants_project, may_know
from tests.property.asking import Asker, Told, a_refused_request, a_request, ids
from tests.property.pairs import UNKNOWN, Choices, Key, Pair, a_source, choices, name_of, pairs
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import PERMISSIONS, PROJECTS, Caller, Json

_ROOT = Caller("root", ["*"], [], None, "restricted")
_UNKNOWN_REF = f"sha256:{0:064}"
_PAGE = 2
_PARTS = ("", "/report", "/contents", "/prompt", "/verify")


@st.composite
def _with_requests(draw: st.DrawFn) -> tuple[Pair, Json, Json, str]:
    """A pair of worlds, a request that is answered, and one that is not, with its code."""
    pair, choice = draw(pairs(narrowed=True)), draw(choices)
    strategy = choice.pick(("default", "code", "documents", "lexical-only"))
    request = a_request(choice, pair, 1) | {"strategy": strategy}
    return pair, request, *a_refused_request(draw(choices), pair)


@sized(50, full=5_000)
@given(example=_with_requests())
async def test_changes_outside_the_scope_leave_the_bytes_as_they_were(
    service: Service, example: tuple[Pair, Json, Json, str]
) -> None:
    pair, request, refused, code = example
    tenant = service.make_tenant()
    asker = Asker(service, tenant, pair.caller)

    async def told(**parameters: str) -> tuple[Told, Told]:
        return await asyncio.gather(
            asker.ask("POST", "/snapshots", body=request, **parameters),
            asker.ask("POST", "/snapshots", body=refused, **parameters),
        )

    if pair.before:
        await service.index(tenant, [*pair.before.values()])
    stored, refusal = await told()
    await pair.come_about(service, tenant)
    again, refused_again = await told(refresh="true")
    assert stored.status == 201, stored.document
    assert again.status == 200, again.document
    assert (again.body, again.headers) == (stored.body, stored.headers)
    assert refusal.document["code"] == code, refusal.document
    assert refused_again == refusal


@st.composite
def _with_snapshots(draw: st.DrawFn) -> tuple[Pair, list[Json]]:
    """A pair of worlds, and requests for snapshots that their caller can read."""
    pair = draw(pairs(narrowed=False))
    requests = [a_request(draw(choices), pair, number) for number in (1, 2)]
    for request in requests:
        # What a snapshot names in a project hides it from those who do not hold the project.
        request["pins"] = [
            pin for pin in request["pins"] if grants_project(pair.caller, pin["project"])
        ]
    return pair, requests


@sized(20, full=2_000)
@given(
    example=_with_snapshots(),
    aspect=st.sampled_from(("snapshot", "explanations", "past", "writes")),
)
async def test_lists_reads_and_refusals_show_nothing_of_what_is_outside_the_grant(
    service: Service, example: tuple[Pair, list[Json]], aspect: str
) -> None:
    """Every example has the lists and one of the other aspects."""
    pair, requests = example
    asker = Asker(service, service.make_tenant(), pair.caller)
    if pair.before:
        await service.index(asker.tenant, [*pair.before.values()])
    older = await _stored(asker, requests[0])
    hidden = await _store_hidden(asker, pair, pair.before, 3)
    later = requests[1] | ({"asOf": {"snapshot": older}} if aspect == "past" else {})
    newer = await _stored(asker, later)
    ask = {
        "snapshot": partial(_snapshot, asker, newer, older, hidden),
        "explanations": partial(_explanations, asker, pair, newer),
        "past": partial(_past, asker, later, newer),
        "writes": partial(_writes, asker, pair),
    }[aspect]
    before = [await _lists(asker, pair, [newer, older]), await ask()]
    await pair.come_about(service, asker.tenant)
    between = partial(_store_hidden, asker, pair, pair.after, 4)
    assert [await _lists(asker, pair, [newer, older], between), await ask()] == before


async def _stored(asker: Asker, request: Json) -> str:
    """The hash of the request's snapshot."""
    told = await asker.ask("POST", "/snapshots", body=request)
    assert told.status == 201, told.document
    return str(told.document["hash"])


async def _store_hidden(
    asker: Asker, pair: Pair, world: dict[Key, Json], number: int
) -> str | None:
    """A snapshot of a source that is hidden from the caller, by one who may know of it."""
    names = [
        name
        for name, source in world.items()
        if name not in pair.known and may_know(source, _ROOT, {})
    ]
    if not names:
        return None
    project, source_id = names[0]
    pin = {"project": project, "sourceId": source_id, "chunkId": "0"}
    return await _stored(replace(asker, caller=_ROOT), ids(number) | {"pins": [pin]})


async def _lists(
    asker: Asker,
    pair: Pair,
    own: list[str],
    between: Callable[[], Awaitable[object]] | None = None,
) -> list[Any]:
    """`own` are the caller's snapshots, newest first; `between` happens between their pages."""
    index, listed, snapshots = await asyncio.gather(
        asker.ask("GET", "/index"),
        asker.pages("/sources", _PAGE),
        asker.pages("/snapshots", 1, between),
    )
    known = pair.known
    chunks = sum(len(source["chunks"]) for source in known.values())
    assert (index.document["sources"], index.document["chunks"]) == (len(known), chunks)
    names = sorted((source_id, project) for project, source_id in known)
    shown = [
        [(one["sourceId"], one["project"]) for one in page.document["sources"]] for page in listed
    ]
    assert shown == [names[at : at + _PAGE] for at in range(0, len(names) or 1, _PAGE)]
    hashes = [[one["hash"] for one in page.document["snapshots"]] for page in snapshots]
    assert hashes == [[one] for one in own]
    return [index, listed, snapshots]


async def _snapshot(asker: Asker, own: str, other: str, hidden: str | None) -> list[Told]:
    """All that is read of a snapshot; of a hidden one no more than of one that is not there."""
    if hidden is not None:
        for path in ("", f"{own}/diff/"):
            unknown = await asker.ask("GET", f"/snapshots/{path}{_UNKNOWN_REF}")
            told = await asker.ask("GET", f"/snapshots/{path}{hidden}")
            assert told.body == unknown.body.replace(_UNKNOWN_REF.encode(), hidden.encode())
            assert (told.status, told.headers) == (404, unknown.headers)
    return await asyncio.gather(
        *(asker.ask("GET", f"/snapshots/{own}{part}") for part in (*_PARTS, f"/diff/{other}")),
    )


async def _explanations(asker: Asker, pair: Pair, own: str) -> list[Told]:
    """What those who may read the audit log are told of unknown, hidden and known names."""
    auditor = replace(asker, caller=_with_audit(pair.caller))

    async def explain(name: Key) -> Told:
        path = f"/snapshots/{own}/explain"
        return await auditor.ask("GET", path, project=name[0], sourceId=name[1])

    unknown = await explain((PROJECTS[0], "unknown-and-named-by-nobody"))
    hidden = [await explain(name) for name in pair.hidden[:3]]
    for told in hidden:
        # Beyond what the request itself says of the name, it is like an unknown one.
        stages = told.document["stages"]
        rest = [stage for stage in stages if stage["stage"] not in ("inline", "naming")]
        assert rest == [] if len(rest) < len(stages) else told == unknown
    return [unknown, *hidden, *[await explain(name) for name in list(pair.known)[:1]]]


async def _past(asker: Asker, request: Json, own: str) -> list[Any]:
    """The snapshot of the index as it was for another, assembled and replayed again."""
    again = await asker.ask("POST", "/snapshots", body=request, refresh="true")
    assert (again.status, again.document["hash"]) == (200, own)
    auditor = replace(asker, caller=_with_audit(asker.caller))
    replayed = await auditor.ask("POST", f"/snapshots/{own}/replay")
    assert replayed.document == {"match": True, "hash": own}
    return [again, replayed]


def _with_audit(caller: Caller) -> Caller:
    return replace(caller, permissions=f"{PERMISSIONS} audit:read")


async def _writes(asker: Asker, pair: Pair) -> list[Any]:
    """What a writer is told of what it may not write, and of what is there already.

    Access lists do not bar a writer: what is hidden by them alone is left out.
    """
    writer = replace(pair.caller, permissions="index:write")
    as_writer = replace(asker, caller=writer)
    known = [*pair.known.values()]
    barred = [
        versions
        for versions in map(pair.versions, pair.hidden)
        if all(beyond_grant(source, writer) for source in versions)
    ]
    deleted = [
        await as_writer.ask("DELETE", "/sources", project=project, sourceId=source_id)
        for project, source_id in (UNKNOWN, *(name_of(versions[0]) for versions in barred[:2]))
    ]
    assert all(told == deleted[0] for told in deleted)
    assert deleted[0].status == 404
    refused = [
        await as_writer.ask("PUT", "/sources", body={"sources": [*known[:1], versions[-1]]})
        for versions in barred[:1]
    ]
    assert all(told.status == 403 for told in refused)
    same = []
    if known and not any(beyond_grant(source, writer) for source in known):
        told = await as_writer.ask("PUT", "/sources", body={"sources": known})
        assert told.status == 200, told.document
        # Its other member is the tenant's index version, which writers are told.
        same = told.document["sources"]
    return [deleted, refused, same]


@examples(max_examples=25)
@given(drawn=st.lists(choices, min_size=2, max_size=6))
async def test_a_source_added_and_removed_leaves_the_visible_version_as_it_was(
    service: Service, drawn: list[Choices]
) -> None:
    tenant = service.make_tenant()
    added, *others = map(a_source, drawn)
    world = {name_of(source): source for source in others if name_of(source) != name_of(added)}
    if world:
        await service.index(tenant, [*world.values()])
    before = (await service.get(tenant, "/index")).json()
    await service.index(tenant, [added])
    between = (await service.get(tenant, "/index")).json()
    await service.delete(tenant, added["project"], added["sourceId"])
    after = (await service.get(tenant, "/index")).json()
    seen = may_know(added, Caller("ana", ["*"], [], None, "restricted"), {})
    assert (between["visibleVersion"] != before["visibleVersion"]) == seen
    assert after["visibleVersion"] == before["visibleVersion"]
    assert after["indexVersion"] == before["indexVersion"] + 2
