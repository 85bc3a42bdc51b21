"""Pairs of worlds that differ in nothing their caller may know about.

The second world comes out of the first: sources are added, replaced, relabelled, moved and
removed, each hidden before and after. A source costs Hypothesis one choice, the bytes that its
fields are read from; zeros, to which they shrink, are the first option of each field.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple, TypeVar

from hypothesis import strategies as st

from tests.property.access_rules import may_know
from tests.property.service import Service
from tests.property.worlds import (
    CLASSES,
    CLASSIFICATIONS,
    PRINCIPALS,
    PROJECTS,
    SOURCE_IDS,
    TIERS,
    WORDS,
    Caller,
    Json,
    callers,
    narrowings,
)

Key = tuple[str, str]


class Removal(NamedTuple):
    """The name of a source that is deleted, with its texts where they are erased."""

    project: str
    source_id: str
    erase: bool


Change = list[Json] | Removal
"""One call: sources to put, or one to delete."""

UNKNOWN: Key = (PROJECTS[0], "never-heard-of")
_IDS = (*SOURCE_IDS, "A", "a.md!", "~", "é.md")
_WORDS = (*WORDS, "book", "ord", "ledg")
"""With stems that the others have in some languages only."""
_FLOOD_CHUNKS = 120
"""More than a leg returns: it would push everything else out."""
_NAME, _TEXT = ("project", "sourceId"), ("sourceRevision", "language", "chunks")
_LABEL = ("class", "classification", "trustTier", "acl")
_COPIED = (("chunks",), ("sourceId",), ("sourceId", *_TEXT), (*_TEXT, *_LABEL))
"""What a hidden source may have of one that the caller knows."""
_KEPT = (_NAME, (*_NAME, *_TEXT), (*_NAME, *_LABEL), ("sourceId", *_TEXT, *_LABEL), None)
"""What stays of a hidden source: it is replaced, relabelled, written anew, moved or removed."""
_Option = TypeVar("_Option")


class Choices:
    """Choices read from bytes, one byte each."""

    def __init__(self, drawn: bytes) -> None:
        self._left = iter(drawn)

    def pick(self, options: Sequence[_Option]) -> _Option:
        return options[next(self._left, 0) % len(options)]

    def some(self, options: Sequence[_Option]) -> list[_Option]:
        """Any of at most eight."""
        bits = next(self._left, 0)
        return [option for at, option in enumerate(options) if bits >> at & 1]

    def once_in(self, times: int) -> bool:
        return next(self._left, 0) % times == times - 1


choices = st.binary(min_size=48, max_size=48).map(Choices)


@dataclass(frozen=True)
class Pair:
    """`changes` lead from the sources of `before` to those of `after`.

    They all lie outside of the scope; those of `elsewhere` are another tenant's.
    """

    caller: Caller
    scope: Json
    before: dict[Key, Json]
    after: dict[Key, Json]
    changes: list[Change]
    elsewhere: dict[Key, Json]

    @property
    def known(self) -> dict[Key, Json]:
        """What is in scope, the same in both worlds."""
        return {
            name: source
            for name, source in self.before.items()
            if may_know(source, self.caller, self.scope)
        }

    @property
    def hidden(self) -> list[Key]:
        """The names of what is out of scope, of either world."""
        return [name for name in self.names if name not in self.known and name != UNKNOWN]

    def versions(self, name: Key) -> list[Json]:
        """The source of a name as it is in one world or in both."""
        return [world[name] for world in (self.before, self.after) if name in world]

    @property
    def names(self) -> list[Key]:
        """One that nobody has, and those of both worlds."""
        return [UNKNOWN, *{**self.before, **self.after}]

    async def come_about(self, service: Service, tenant: str) -> None:
        """Make the first world the second."""
        if self.elsewhere:
            await service.index(service.make_tenant(), list(self.elsewhere.values()))
        for change in self.changes:
            if isinstance(change, list):
                await service.index(tenant, change)
            else:
                await service.delete(tenant, change.project, change.source_id, erase=change.erase)


@st.composite
def pairs(draw: st.DrawFn, *, narrowed: bool) -> Pair:
    """They differ outside of a request's scope or, not narrowed, of the caller's grant."""
    caller = draw(callers())
    scope = draw(narrowings(caller)) if narrowed else {}
    if _brought_in(a_source(Choices(b"")), caller, scope) is None:
        # A request that can see nothing shows little.
        scope = {}
    # Patterns select among what the caller may know; they hide nothing from it.
    bounds = {name: value for name, value in scope.items() if name != "sources"}
    sees = partial(may_know, caller=caller, scope=bounds)
    before = {}
    for choice in draw(st.lists(choices, min_size=5, max_size=9)):
        source = a_source(choice)
        if choice.once_in(2):
            source = _brought_in(source, caller, scope) or source
        before[name_of(source)] = source
    known = {name: source for name, source in before.items() if sees(source)}
    whole = draw(choices)
    if whole.once_in(3):
        before = known
    history, elsewhere = _History(known, before), {}
    for choice in draw(st.lists(choices, min_size=2, max_size=7)):
        gone, new = history.next_step(choice)
        if new is None or not sees(new):
            history.take(gone, new, erase=whole.once_in(2))
        else:
            elsewhere[name_of(new)] = new
    if whole.once_in(4):
        for name in history.hidden:
            history.take(name, None, erase=whole.once_in(2))
    elsewhere = elsewhere if whole.once_in(4) else {}
    return Pair(caller, scope, before, history.live, history.changes, elsewhere)


def name_of(source: Json) -> Key:
    return source["project"], source["sourceId"]


def a_source(choice: Choices) -> Json:
    """One source as PUT /sources takes it."""
    knowledge_class, tier = choice.pick(CLASSES), choice.pick(TIERS)
    acl = {"deny": choice.some(PRINCIPALS) if choice.once_in(3) else []}
    if choice.once_in(3):
        acl["allow"] = choice.some(PRINCIPALS)
    source = {
        "project": choice.pick(PROJECTS),
        "sourceId": choice.pick(_IDS),
        "sourceRevision": choice.pick(("1", "2")),
        "class": knowledge_class,
        "classification": choice.pick(CLASSIFICATIONS),
        "trustTier": "system-policy" if knowledge_class == "policy" else tier,
        "acl": acl,
    }
    if language := choice.pick((None, None, "en", "de")):
        source["language"] = language
    texts = [some_words(choice) for _ in range(choice.pick((1, 2, 3)))]
    if choice.once_in(64):
        texts = [" ".join(WORDS * 2)] * _FLOOD_CHUNKS
    return source | {
        "chunks": [{"chunkId": str(at), "text": text} for at, text in enumerate(texts)]
    }


def some_words(choice: Choices) -> str:
    return " ".join(choice.pick(_WORDS) for _ in range(choice.pick((1, 2, 3, 5, 8))))


def _brought_in(source: Json, caller: Caller, scope: Json) -> Json | None:
    """The source, under another label and name if need be, in scope; None where nothing is."""
    if may_know(source, caller, scope):
        return source
    bare = {**source, "classification": "public", "trustTier": "system-policy", "acl": {}}
    places = product((source["sourceId"], *_IDS), PROJECTS, CLASSES)
    moved = (
        {**bare, "sourceId": name, "project": one, "class": other} for name, one, other in places
    )
    return next((one for one in moved if may_know(one, caller, scope)), None)


class _History:
    """What becomes of the hidden sources; the known ones stay as they are."""

    def __init__(self, known: dict[Key, Json], live: dict[Key, Json]) -> None:
        self._known = known
        self.live = dict(live)
        self.changes: list[Change] = []

    @property
    def hidden(self) -> list[Key]:
        return [name for name in self.live if name not in self._known]

    def next_step(self, choice: Choices) -> tuple[Key | None, Json | None]:
        """A hidden source that ends, if any, and what is put, if anything: maybe no hidden one."""
        drawn = a_source(choice)
        if self._known and choice.once_in(3):
            model = choice.pick(list(self._known.values()))
            drawn = drawn | {part: model[part] for part in choice.pick(_COPIED) if part in model}
        if not self.hidden or choice.once_in(4):
            return None, drawn
        name = choice.pick(self.hidden)
        present = self.live[name]
        kept = choice.pick(_KEPT)
        if kept is None:
            return name, None
        return name, drawn | {part: present[part] for part in kept if part in present}

    def take(self, gone: Key | None, new: Json | None, *, erase: bool) -> None:
        if new is not None and name_of(new) in self._known:
            return
        if gone is not None and (new is None or name_of(new) != gone):
            self.changes.append(Removal(*gone, erase))
            del self.live[gone]
        if new is not None:
            self._put(new)

    def _put(self, source: Json) -> None:
        last = self.changes[-1] if self.changes else None
        if isinstance(last, list) and all(name_of(one) != name_of(source) for one in last):
            last.append(source)
        else:
            self.changes.append([source])
        self.live[name_of(source)] = source
