"""The index and its snapshots as the access rules see them: what each call must answer."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tests.property.access_rules import (
    Json,
    Refusal,
    admits,
    below_ceiling,
    beyond_grant,
    may_know,
    permits,
    refused_labels,
    refused_scope,
    with_defaults,
)
from tests.property.worlds import Caller

Name = tuple[str, str]
"""Project and source id."""

Entry = tuple[str, str, str | None, str]
"""Project, source id, chunk id, and `known` or why a text that was named is out."""


def name_of(entry: Json) -> Name:
    return entry["project"], entry["sourceId"]


@dataclass(frozen=True)
class World:
    """Each source as it was put last, and the names of those that are live."""

    last: Mapping[Name, Json]
    live: frozenset[Name]

    def put(self, sources: Iterable[Json]) -> "World":
        put = {name_of(source): source for source in sources}
        return World({**self.last, **put}, self.live | set(put))

    def delete(self, name: Name) -> "World":
        """A deleted source keeps its last label."""
        return replace(self, live=self.live - {name})

    def known_to(self, caller: Caller, scope: Json) -> list[Json]:
        sources = [self.last[name] for name in self.live]
        return [source for source in sources if may_know(source, caller, scope)]


NOTHING = World({}, frozenset())


@dataclass(frozen=True)
class Content:
    """What a snapshot tells: chunks of the index, pins that are not available, inline items."""

    candidates: frozenset[Entry]
    unavailable: tuple[Entry, ...]
    brought: tuple[Entry, ...]
    labels: tuple[Json, ...]
    """Those of the inline items."""
    projects: frozenset[str]
    """Those that were asked; "*" for every project."""

    @property
    def entries(self) -> Counter[Entry]:
        return Counter([*self.candidates, *self.unavailable, *self.brought])

    @property
    def found(self) -> set[Name]:
        return {entry[:2] for entry in self.candidates}

    @property
    def sources(self) -> set[Name]:
        """Whose existence it tells; `denied` tells of none."""
        return self.found | {entry[:2] for entry in self.unavailable if entry[3] != "denied"}


def refused_writing(world: World, sources: list[Json], writer: Caller) -> Refusal | None:
    """A writer of a project may replace any source of it within the writer's ceilings."""
    above = {
        f"/sources/{at}/sourceId"
        for at, source in enumerate(sources)
        if name_of(source) in world.live and beyond_grant(world.last[name_of(source)], writer)
    }
    return refused_labels(sources, writer, "/sources") or (
        Refusal(403, "scope-exceeds-grant", frozenset(above)) if above else None
    )


def may_delete(world: World, name: Name, writer: Caller) -> bool:
    return name in world.live and not beyond_grant(world.last[name], writer)


def refused_request(caller: Caller, request: Json) -> Refusal | None:
    """What a token refuses, whatever the index holds."""
    return refused_scope(request["scope"], caller) or refused_labels(
        inline_labels(request, caller), caller, "/items"
    )


def refused_past(past: "Content | None", now: World, caller: Caller) -> Refusal | None:
    """The index as it was for a snapshot is for those who may read the snapshot."""
    if past is None or may_read(past, now, caller):
        return None
    return Refusal(422, "as-of-unavailable", frozenset({"/asOf/snapshot"}))


def refused_pins(world: World, caller: Caller, request: Json) -> Refusal | None:
    """A required pin that is hidden is refused like one that does not exist."""
    known = world.known_to(caller, request["scope"])
    missing = {
        f"/pins/{at}"
        for at, pin in enumerate(request["pins"])
        if pin["required"] and not _is_available(pin, known)
    }
    return Refusal(422, "pin-unavailable", frozenset(missing)) if missing else None


def content(world: World, now: World, caller: Caller, request: Json) -> Content:
    """What the snapshot of a request that is not refused must tell of a world.

    Of a past one it tells only what the labels of now admit, too.
    """
    scope, pins = request["scope"], request["pins"]
    known = [
        source
        for source in world.known_to(caller, scope)
        if admits(now.last[name_of(source)], caller, scope)
    ]
    labels = inline_labels(request, caller)
    return Content(
        frozenset(
            (*name_of(source), chunk["chunkId"], "known")
            for source in known
            for chunk in source["chunks"]
            if _is_hit(chunk, request) or any(_names(pin, source, chunk) for pin in pins)
        ),
        tuple(
            (*name_of(pin), pin.get("chunkId"), _why_unavailable(pin, world, caller, scope))
            for pin in pins
            if not _is_available(pin, known)
        ),
        tuple(
            (*name_of(item), item["chunkId"], _inline_outcome(item, caller, scope))
            for item in labels
        ),
        tuple(labels),
        frozenset(scope.get("projects", caller.projects) or ()),
    )


def inline_labels(request: Json, caller: Caller) -> list[Json]:
    return [with_defaults(item, caller, "user") for item in request["items"]]


def _is_hit(chunk: Json, request: Json) -> bool:
    """The lexical leg finds what has a word of the query."""
    return bool(set(chunk["text"].split()) & set(request.get("query", "").split()))


def _names(pin: Json, source: Json, chunk: Json) -> bool:
    return name_of(pin) == name_of(source) and pin.get("chunkId") in (None, chunk["chunkId"])


def _is_available(pin: Json, known: list[Json]) -> bool:
    return any(_names(pin, source, chunk) for source in known for chunk in source["chunks"])


def _why_unavailable(pin: Json, world: World, caller: Caller, scope: Json) -> str:
    """Who may read the audit log is told of what the classification alone keeps out."""
    if name_of(pin) not in world.live or not permits(caller, "audit:read"):
        return "denied"
    source = world.last[name_of(pin)]
    raised = replace(caller, max_classification="restricted")
    would_know = may_know(source, raised, {**scope, "maxClassification": "restricted"})
    above = not below_ceiling(source, caller, scope)
    return "classification" if would_know and above else "denied"


def _inline_outcome(item: Json, caller: Caller, scope: Json) -> str:
    """An inline item that the request's own scope does not admit is an exclusion."""
    if admits(item, caller, scope):
        return "known"
    return "denied" if below_ceiling(item, caller, scope) else "classification"


def entries_of(snapshot: Json) -> Iterator[Entry]:
    """Items and exclusions as the wire has them; all that a scope admits is `known`."""
    for item in snapshot["items"]:
        yield (*name_of(item), item["chunkId"], "known")
    for exclusion in snapshot["exclusions"]:
        reason = exclusion["reason"]
        kept_out = reason in ("denied", "classification")
        yield (*name_of(exclusion), exclusion.get("chunkId"), reason if kept_out else "known")


def may_read(told: Content, now: World, reader: Caller) -> bool:
    """The reader's whole grant admits today's label of everything that the snapshot tells."""
    present = [now.last[name] for name in told.sources]
    # What tells of nothing else tells of the question: for readers of all that was asked.
    to_hold = set() if told.sources or told.brought else told.projects
    held = set(reader.projects or ())
    if "*" not in held and not to_hold <= held:
        return False
    return all(admits(label, reader, {}) for label in (*present, *told.labels))


def may_be_told(name: Name, then: World, now: World, reader: Caller) -> bool:
    """Of a source that was there then: the reader's grant admits its label then and now."""
    if name not in then.live:
        return False
    return all(admits(world.last[name], reader, {}) for world in (then, now))
