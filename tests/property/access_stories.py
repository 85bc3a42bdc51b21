"""Generated stories of access: an index, callers, a request of one of them, changed labels.

Most of what is drawn may be had, so that one fact alone decides: a request asks for little
more than its token grants, a second caller differs in a claim, a change in a member of a label.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.property.access_rules import beyond_grant, with_defaults
from tests.property.access_world import NOTHING, Name, content, name_of
from tests.property.worlds import (
    CLASSES,
    CLASSIFICATIONS,
    GROUPS,
    PATTERNS,
    PRINCIPALS,
    PROJECTS,
    SOURCE_IDS,
    TIERS,
    USERS,
    WORDS,
    Caller,
    Json,
)

EVERY_PERMISSION = (
    "snapshots:assemble",
    "snapshots:read",
    "index:write",
    "index:read",
    "audit:read",
)
OWNER = Caller("root", ["*"], [], None, "restricted", "system-policy", " ".join(EVERY_PERMISSION))
"""May write everything, and change what another writer was refused."""

UNKNOWN = "never-heard-of"
RUN, ATTEMPT = "0b6e1f5c-6d0e-4c07-9f3c-2f1f8f5e7a10", "5d7b7a52-0d1c-4b53-8f7e-9a1f60c2d3e4"
_NAMES = [(project, source_id) for project in PROJECTS for source_id in SOURCE_IDS]
_T = TypeVar("_T")
_GRANTED: Mapping[str, Callable[[Caller], str]] = {
    "project": lambda caller: next(iter(caller.projects or PROJECTS)),
    "class": lambda caller: next(iter(caller.classes or CLASSES)),
    "classification": lambda _: "public",
    "trustTier": lambda _: "untrusted-external",
}
"""What of a member of a label a grant has surely, if it has any."""


@dataclass(frozen=True)
class Change:
    """A source put anew, or the name of one deleted."""

    put: Json | None
    name: Name


@dataclass(frozen=True)
class Story:
    """`turn` chooses among the ways to read, so that each story need not go all of them."""

    sources: list[Json]
    callers: list[Caller]
    request: Json
    writer: Caller
    changes: list[Change]
    turn: int


def stories() -> st.SearchStrategy[Story]:
    """Drawn from seeds: Hypothesis repeats its choices, and rules that seldom decide go unmet."""
    return st.integers(0, 2**64 - 1).map(lambda seed: _story(Random(seed)))


def _story(rng: Random) -> Story:
    callers = [_caller(rng)]
    if rng.random() < 0.6:
        callers.append(_similar(rng, callers[0]) if rng.random() < 0.7 else _caller(rng))
    near = [name for name in _NAMES if name[0] in (callers[0].projects or PROJECTS)]
    names = sorted({*rng.sample(near or _NAMES, rng.randint(1, 4)), *rng.sample(_NAMES, 2)})
    sources = [_source(rng, name, callers[0]) for name in names]
    request = _request(rng, callers[0], names)
    # What the snapshot tells of is what a change should be about.
    world = NOTHING.put(with_defaults(one, OWNER, "trusted-knowledge") for one in sources)
    told = sorted(content(world, world, callers[0], request).sources)
    target = rng.choice(told or names)
    present = next(one for one in sources if name_of(one) == target)
    writer = rng.choice([callers[-1], _similar(rng, OWNER)])
    changes = _changes(rng, present, callers[0])
    return Story(sources, callers, request, writer, changes, rng.randrange(1000))


def _caller(rng: Random) -> Caller:
    lacking = _maybe(rng, 0.15, EVERY_PERMISSION)
    return Caller(
        subject=rng.choice(USERS),
        projects=_claim(rng, rng.choice([["*"], ["*"], _some(rng, PROJECTS)])),
        groups=_claim(rng, _some(rng, GROUPS)),
        classes=rng.choice([None, None, None, _some(rng, CLASSES)]),
        max_classification=_claim(rng, rng.choice([*CLASSIFICATIONS, *CLASSIFICATIONS[2:]])),
        max_trust_tier=_claim(rng, rng.choice(TIERS)),
        permissions=" ".join(name for name in EVERY_PERMISSION if name not in lacking),
    )


def _claim(rng: Random, value: _T) -> _T | None:
    """The claim, or none."""
    return None if rng.random() < 0.1 else value


def _similar(rng: Random, caller: Caller) -> Caller:
    """Another caller with one claim of its own."""
    claims: list[Json] = [
        {"subject": rng.choice(USERS)},
        {"projects": _some(rng, PROJECTS)},
        {"groups": _some(rng, GROUPS)},
        {"classes": _some(rng, CLASSES)},
        {"max_classification": rng.choice(CLASSIFICATIONS)},
        {"max_trust_tier": rng.choice(TIERS)},
    ]
    return replace(caller, **rng.choice(claims))


def _source(rng: Random, name: Name, caller: Caller) -> Json:
    texts = [_text(rng) for _ in range(rng.choice([1, 1, 2]))]
    return {
        "project": name[0],
        "sourceId": name[1],
        "sourceRevision": "1",
        "chunks": [{"chunkId": str(at), "text": text} for at, text in enumerate(texts)],
        **_label(rng, caller),
    }


def _text(rng: Random) -> str:
    return " ".join(rng.sample(WORDS[:4], rng.randint(1, 3)))


def _label(rng: Random, caller: Caller) -> Json:
    """The members of a source that decide its access; what is absent has a default."""
    if rng.random() < 0.25:
        return {"class": "documents", "classification": "public"}
    knowledge_class = rng.choice(CLASSES)
    policy = knowledge_class == "policy"
    return _given(
        **{"class": [knowledge_class]},
        trustTier=["system-policy"] if policy else _maybe(rng, 0.4, TIERS),
        classification=_maybe(rng, 0.4, CLASSIFICATIONS),
        acl=[_acl(rng, caller)] if rng.random() < 0.5 else [],
    )


def _acl(rng: Random, caller: Caller) -> Json:
    """Lists that name this caller more often than others."""
    own = [f"group:{name}" for name in caller.groups or []] or [f"user:{caller.subject}"]
    lists = [[rng.choice(own)], rng.sample(PRINCIPALS, rng.randint(0, 2))]
    acl = {"allow": rng.choice(lists), "deny": rng.choice(lists)}
    return {name: acl[name] for name in rng.choice([["allow"], ["deny"], ["allow", "deny"]])}


def _request(rng: Random, caller: Caller, names: Sequence[Name]) -> Json:
    pins = [_pin(rng, names) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
    items = [_item(rng, caller, at) for at in range(rng.choice([0, 0, 0, 1, 2]))]
    required = items or any(pin["required"] for pin in pins)
    return {
        "runId": RUN,
        "attemptId": ATTEMPT,
        "strategy": "lexical-only",
        "scope": _scope(rng, caller),
        "pins": pins,
        "items": items,
        "budget": {"maxTokens": 20_000 if required else rng.choice([20_000, 200])},
        **_given(query=[" ".join(WORDS[:3])] if rng.random() < 0.9 else []),
    }


def _scope(rng: Random, caller: Caller) -> Json:
    """A narrowing; now and then it may name what the token does not grant."""
    beyond = rng.random() < 0.15
    whole = beyond or caller.projects == ["*"]
    projects = PROJECTS if whole else caller.projects or []
    groups = GROUPS if beyond else caller.groups or []
    classes = CLASSES if beyond or caller.classes is None else caller.classes
    level = "restricted" if beyond else caller.max_classification or "public"
    levels = CLASSIFICATIONS[: CLASSIFICATIONS.index(level) + 1]
    return _given(
        projects=_maybe(rng, 0.2, [_some(rng, projects), ["*"] if whole else list(projects)]),
        groups=_maybe(rng, 0.6, [_some(rng, groups)]),
        classes=_maybe(rng, 0.2, [_some(rng, classes)]),
        maxClassification=_maybe(rng, 0.25, levels),
        minTrustTier=_maybe(rng, 0.2, TIERS),
        sources=_maybe(rng, 0.3, [_patterns(rng)]),
    )


def _patterns(rng: Random) -> Json:
    patterns = {
        "allow": rng.choice([["*"], rng.sample(PATTERNS, 2), ["%", "_.md"], []]),
        "deny": rng.sample(PATTERNS, 1),
    }
    return {name: patterns[name] for name in rng.choice([["allow"], ["deny"], ["allow", "deny"]])}


def _pin(rng: Random, names: Sequence[Name]) -> Json:
    project, source_id = rng.choice([*names, (PROJECTS[0], UNKNOWN)])
    pin = {"project": project, "sourceId": source_id, "required": rng.random() < 0.2}
    return pin | _given(chunkId=_maybe(rng, 0.25, ["0", "9"]))


def _item(rng: Random, caller: Caller, at: int) -> Json:
    """An inline item, mostly within the grant; it may have the name of a source."""
    project, source_id = rng.choice(_NAMES)
    item: Json = {
        "project": project,
        "sourceId": source_id,
        "sourceRevision": "1",
        "chunkId": f"inline-{at}",
        "class": rng.choice(CLASSES),
        "text": _text(rng),
        **_given(
            trustTier=_maybe(rng, 0.3, TIERS),
            classification=_maybe(rng, 0.6, [*CLASSIFICATIONS, *_highest(caller) * 4]),
        ),
    }
    for member in sorted(beyond_grant(with_defaults(item, caller, "user"), caller)):
        if rng.random() < 0.9:
            item |= {member: _GRANTED[member](caller)}
    return item


def _highest(caller: Caller) -> list[str]:
    return [caller.max_classification or "public"]


def _changes(rng: Random, present: Json, caller: Caller) -> list[Change]:
    """A source with a new label, most often new in one member, deleted, or both."""
    name = name_of(present)
    new = rng.choice(
        [
            {**present, "classification": rng.choice(CLASSIFICATIONS)},
            {**present, "acl": _acl(rng, caller)},
            {**present, "acl": {}, "class": "policy", "trustTier": "system-policy"},
            {**_source(rng, name, caller), "sourceRevision": "2"},
        ]
    )
    put, delete = Change(new, name), Change(None, name)
    return rng.choice([[put], [put], [put, delete], [put, delete], [delete], [delete, put]])


def _some(rng: Random, names: Sequence[str]) -> list[str]:
    """Any of them, in any order."""
    return rng.sample(names, rng.randint(0, len(names)))


def _maybe(rng: Random, probability: float, options: Sequence[_T]) -> list[_T]:
    """One of the options, or none."""
    return [rng.choice(options)] if rng.random() < probability else []


def _given(**members: list[Any]) -> Json:
    """The members that have a value."""
    return {name: values[0] for name, values in members.items() if values}
