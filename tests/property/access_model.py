"""The service and the access rules side by side: each call asserts that they agree.

A tenant of the service holds what the rules' world holds; a call changes both or neither.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any
from urllib.parse import urlencode

import httpx
import rfc8785

from tests.property.access_rules import Json, Refusal, may_know, permits, with_defaults
from tests.property.access_stories import OWNER, RUN, UNKNOWN, Change
from tests.property.access_world import (
    NOTHING,
    Content,
    Name,
    World,
    content,
    entries_of,
    may_be_told,
    may_delete,
    may_read,
    name_of,
    refused_past,
    refused_pins,
    refused_request,
    refused_writing,
)
from tests.property.service import Service
from tests.property.worlds import Caller

Way = tuple[str, str]
"""A part of a snapshot, and the member by which the snapshot is referred to."""

NO_SNAPSHOT = f"sha256:{'0' * 64}"
ABSENT = [
    {
        "stage": "index",
        "outcome": "absent",
        "detail": "no source of this name was in the index",
    }
]

_unknown: dict[str, Json] = {}
"""What each way of reading and deleting says of what does not exist, asked for once."""


@dataclass(frozen=True)
class Taken:
    """A snapshot that was assembled: in which world, for whom, what it tells, its bytes."""

    world: World
    caller: Caller
    request: Json
    told: Content
    raw: bytes

    @cached_property
    def snapshot(self) -> Json:
        document: Json = json.loads(self.raw)
        return document

    @property
    def texts(self) -> list[str]:
        """The items' texts by their ranks, as they were put or brought along."""
        held = {
            (*name_of(source), chunk["chunkId"]): chunk["text"]
            for source in self.world.last.values()
            for chunk in source["chunks"]
        }
        brought = {
            (*name_of(item), item["chunkId"]): item["text"] for item in self.request["items"]
        }
        texts = held | brought
        return [texts[*name_of(item), item["chunkId"]] for item in self.snapshot["items"]]


@dataclass
class AccessModel:
    """A tenant, its world, the snapshots by hash, and which one each request got, in order."""

    service: Service
    tenant: str
    world: World = NOTHING
    taken: dict[str, Taken] = field(default_factory=dict)
    answered: list[Taken] = field(default_factory=list)

    async def put(self, writer: Caller, sources: list[Json]) -> bool:
        """Put sources; whether the writer may."""
        labelled = [with_defaults(source, writer, "trusted-knowledge") for source in sources]
        answer = await self._call(writer, "index:write", "PUT", "/sources", {"sources": sources})
        if answer is None:
            return False
        expected = refused_writing(self.world, labelled, writer)
        assert _refusal(answer) == expected
        if expected is None:
            self.world = self.world.put(labelled)
        return expected is None

    async def delete(self, writer: Caller, name: Name) -> bool:
        """Delete a source; what the writer may not delete is to it like what is not there."""
        path = "/sources?" + urlencode({"project": name[0], "sourceId": name[1]})
        answer = await self._call(writer, "index:write", "DELETE", path)
        if answer is None:
            return False
        if not may_delete(self.world, name, writer):
            await self._assert_unknown(answer, "DELETE", f"/sources?project=p&sourceId={UNKNOWN}")
            return False
        assert answer.status_code == 200, answer.text
        self.world = self.world.delete(name)
        return True

    async def change(self, writer: Caller, change: Change) -> None:
        """By the writer if it may, otherwise by the owner."""
        for one in (writer, OWNER):
            if change.put is None:
                done = await self.delete(one, change.name)
            else:
                done = await self.put(one, [change.put])
            if done:
                return

    async def assemble(self, caller: Caller, request: Json) -> None:
        """A repeat gives the first snapshot while the caller may read it, then one anew."""
        answer = await self._call(caller, "snapshots:assemble", "POST", "/snapshots", request)
        if answer is None:
            return
        refusal = refused_request(caller, request)
        asked = (caller, request)
        first = next((one for one in self.answered if (one.caller, one.request) == asked), None)
        if refusal is None and first is not None and may_read(first.told, self.world, caller):
            assert (answer.status_code, answer.content) == (200, first.raw)
            return
        past = self.taken[request["asOf"]["snapshot"]] if "asOf" in request else None
        world = past.world if past else self.world
        refusal = (
            refusal
            or refused_past(past.told if past else None, self.world, caller)
            or refused_pins(world, caller, request)
        )
        assert _refusal(answer) == refusal
        if refusal is None:
            told = content(world, self.world, caller, request)
            self._take(Taken(world, caller, request, told, answer.content), answer)

    def _take(self, taken: Taken, answer: httpx.Response) -> None:
        snapshot = taken.snapshot
        assert Counter(entries_of(snapshot)) == taken.told.entries
        assert answer.status_code == (200 if snapshot["hash"] in self.taken else 201)
        self.taken.setdefault(snapshot["hash"], taken)
        self.answered.append(taken)

    async def list_sources(self, reader: Caller) -> None:
        answer = await self._call(reader, "index:read", "GET", "/sources")
        if answer is not None:
            members = ("project", "sourceId", "class", "classification", "trustTier")
            listed = [tuple(one[member] for member in members) for one in answer.json()["sources"]]
            known = self.world.known_to(reader, {})
            assert sorted(listed) == sorted(tuple(one[m] for m in members) for one in known)

    async def describe_index(self, reader: Caller) -> None:
        answer = await self._call(reader, "index:read", "GET", "/index")
        if answer is not None:
            index, known = answer.json(), self.world.known_to(reader, {})
            counts = len(known), sum(len(source["chunks"]) for source in known)
            assert (index["sources"], index["chunks"]) == counts
            assert ("indexVersion" in index) == permits(reader, "index:write")

    async def list_snapshots(self, reader: Caller) -> None:
        answer = await self._call(reader, "snapshots:read", "GET", f"/snapshots?runId={RUN}")
        if answer is not None:
            listed = [one["hash"] for one in answer.json()["snapshots"]]
            readable = [
                ref for ref, one in self.taken.items() if may_read(one.told, self.world, reader)
            ]
            assert sorted(listed) == sorted(readable)

    async def read(self, reader: Caller, taken: Taken, way: Way, name: Name) -> None:
        """One way of reading a snapshot; where it is explained, a source of this name."""
        part, ref = way
        method, permission = _CALLS.get(part, ("GET", "snapshots:read"))
        rest, unknown = "", f"/snapshots/{NO_SNAPSHOT}{part}"
        first = next(iter(self.taken.values()))
        if part == "/explain":
            rest = "?" + urlencode({"project": name[0], "sourceId": name[1]})
            unknown += f"?project=p&sourceId={UNKNOWN}"
        elif part == "/diff":
            rest = f"/{first.snapshot[ref]}"
            unknown += f"/{NO_SNAPSHOT}"
        path = f"/snapshots/{taken.snapshot[ref]}{part}{rest}"
        answer = await self._call(reader, permission, method, path)
        if answer is None:
            return
        needed = (taken, first) if part == "/diff" else (taken,)
        if not all(may_read(one.told, self.world, reader) for one in needed):
            await self._assert_unknown(answer, method, unknown)
            return
        assert answer.status_code == 200, answer.text
        if part == "/explain":
            self._assert_explained(answer.json()["stages"], reader, taken, name)
        elif part == "/diff":
            _assert_compared(answer.json(), taken, first)
        else:
            _CHECKS[part](answer, taken)

    def _assert_explained(
        self, stages: list[Json], reader: Caller, taken: Taken, name: Name
    ) -> None:
        """A source that the reader may not know is explained word for word like an unknown one."""
        told = taken.told
        named = sum(entry[:2] == name for entry in (*told.unavailable, *told.brought))
        assert all(stage["stage"] in ("inline", "naming") for stage in stages[:named])
        found = name in told.found
        if not found and not may_be_told(name, taken.world, self.world, reader):
            assert stages[named:] == ([] if named else ABSENT)
            return
        scope = taken.request["scope"]
        admitted = found or may_know(taken.world.last[name], taken.caller, scope)
        outcomes = [(stage["stage"], stage["outcome"]) for stage in stages[named:]]
        assert outcomes[:2] == [("index", "live"), ("scope", "admitted" if admitted else "refused")]
        assert (("retrieval", "found") in outcomes) == found

    async def _call(
        self, caller: Caller, permission: str, method: str, path: str, body: Json | None = None
    ) -> httpx.Response | None:
        """The answer, or None where the token lacks the permission, and was told so."""
        headers = self.service.token.headers(self.tenant, **caller.claims())
        answer = await self.service.client.request(method, path, json=body, headers=headers)
        if permits(caller, permission):
            return answer
        assert _refusal(answer) == Refusal(403, "permission-missing")
        return None

    async def _assert_unknown(self, answer: httpx.Response, method: str, unknown: str) -> None:
        """The answer is that to something unknown, but for the request's id and path."""
        if unknown not in _unknown:
            headers = self.service.token.headers(self.tenant, **OWNER.claims())
            told = await self.service.client.request(method, unknown, headers=headers)
            assert told.status_code == 404, told.text
            _unknown[unknown] = _without_request(told.json())
        assert answer.status_code == 404, answer.text
        assert _without_request(answer.json()) == _unknown[unknown]


def _without_request(problem: Json) -> Json:
    return {name: value for name, value in problem.items() if name not in ("requestId", "instance")}


def _refusal(answer: httpx.Response) -> Refusal | None:
    if answer.status_code < 400:
        return None
    problem = answer.json()
    pointers = [error["pointer"] for error in problem.get("errors", [])]
    assert len(set(pointers)) == len(pointers)
    return Refusal(answer.status_code, problem["code"], frozenset(pointers))


def _assert_compared(told: Json, before: Taken, after: Taken) -> None:
    """What is in one snapshot alone is told with a cause, and nothing that is in neither."""
    items = told["items"]
    held, shown = (Counter(map(_key, one.snapshot["items"])) for one in (before, after))
    alone = {"removed": held - shown, "added": shown - held}
    for kind, expected in alone.items():
        found = sorted(map(_place, items[kind]))
        assert found == sorted(place for place, _ in expected.elements())
    in_both = Counter(map(_place, (*items["moved"], *items["changed"])))
    assert in_both <= Counter(place for place, _ in (held & shown).elements())
    caused = (*items["removed"], *items["added"], *items["changed"])
    places = (_place(one["item"]) for one in told["causes"])
    assert sorted(places) == sorted(map(_place, caused))


def _key(item: Json) -> tuple[tuple[str, str, str], bool]:
    """Inline items are not of the source whose name they have."""
    return _place(item), "indexVersion" in item


def _place(entry: Json) -> tuple[str, str, str]:
    return entry["project"], entry["sourceId"], entry["chunkId"]


def _is_the_same(answer: httpx.Response, taken: Taken) -> None:
    assert answer.content == taken.raw


def _has_the_texts(answer: httpx.Response, taken: Taken) -> None:
    assert [one["text"] for one in answer.json()["contents"]] == taken.texts


def _shows_the_texts(answer: httpx.Response, taken: Taken) -> None:
    assert all(text in answer.text for text in taken.texts)


def _has_its_digest(answer: httpx.Response, taken: Taken) -> None:
    digest = hashlib.sha256(rfc8785.dumps(answer.json()["report"])).hexdigest()
    assert taken.snapshot["budget"]["assembly"]["reportHash"] == f"sha256:{digest}"


def _verifies(answer: httpx.Response, taken: Taken) -> None:
    assert answer.json()["ok"], answer.text


def _matches(answer: httpx.Response, _: Taken) -> None:
    assert answer.json()["match"], answer.text


_CALLS = {"/explain": ("GET", "audit:read"), "/replay": ("POST", "audit:read")}
"""Method and permission of those that are not read with GET and `snapshots:read`."""

_CHECKS: dict[str, Callable[[httpx.Response, Taken], Any]] = {
    "": _is_the_same,
    "/contents": _has_the_texts,
    "/prompt": _shows_the_texts,
    "/report": _has_its_digest,
    "/verify": _verifies,
    "/replay": _matches,
}
WAYS: tuple[Way, ...] = tuple(product((*_CHECKS, "/explain", "/diff"), ("hash", "snapshotId")))
