"""What differs between two stored snapshots, and what each difference came of. Pure.

An item is known by its project, source, chunk, and whether the request brought it. Added and
removed ones are in one snapshot alone; changed ones have another text, revision or label;
moved ones have another rank and nothing else. Their tokens and `indexVersion` do not count.

Each item that was added, removed or changed gets one cause, the first that holds:

1. query      the request brought it, or pins it, in one snapshot alone
2. revision   the other snapshot shows its source, or the same chunk, at another revision
3. index      the same chunk at the same revision has another text or label
4. scope      the other snapshot's scope does not admit it, as far as its label tells
5. degraded   the retriever that found it gave no answer for the other snapshot
6. budget     the other snapshot left it out, or shortened it, for the budget, and the two differ
7. strategy   the other snapshot left it out, or shortened it, and the two recipes differ
8. query, strategy, scope, degraded, index   the first in which the two snapshots differ at all
9. index      nothing that is recorded differs: the engine, time or vectors of the index do

Not handled: which of several facts that differ would have been enough alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from app.snapshot.explain import refused_by
from app.snapshot.verify import label_of, predicate_of

Cause = Literal["scope", "revision", "index", "budget", "strategy", "query", "degraded"]
Document = Mapping[str, Any]
_Key = tuple[str, str, str, bool]
_Reason = tuple[Cause, str]

_QUESTION = ("query", "language", "items", "pins")
_BUDGET = ("maxTokens", "reservedForOutput", "encoding", "format")
_COMPARED = (
    "sourceRevision",
    "contentHash",
    "class",
    "classification",
    "trustTier",
    "provenance",
    "compressed",
)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two snapshots, and the request and the report that it is bound to."""

    document: Document
    request: Document
    report: Document


@dataclass(frozen=True, slots=True)
class Difference:
    """An item as each of the snapshots shows it; `cause` is None for one that moved only."""

    kind: Literal["added", "removed", "moved", "changed"]
    before: Document | None
    after: Document | None
    cause: Cause | None = None
    detail: str = ""


def diff(before: Side, after: Side) -> tuple[Difference, ...]:
    """By ranks of `after`, then those that were removed by ranks of `before`.

    Raises KeyError, TypeError or ValueError for records that are not what was stored.
    """
    return tuple(_differences(before, after))


def _differences(before: Side, after: Side) -> Iterator[Difference]:
    for old, new in _pairs(before.document["items"], after.document["items"]):
        if old is None:
            yield Difference("added", old, new, *next(_absence(new, after, before)))
        elif new is None:
            yield Difference("removed", old, new, *next(_absence(old, before, after)))
        elif any(old.get(name) != new.get(name) for name in _COMPARED):
            yield Difference("changed", old, new, *next(_change(old, new, before, after)))
        elif old["rank"] != new["rank"]:
            yield Difference("moved", old, new)


def _pairs(olds: Iterable[Document], news: Iterable[Document]) -> Iterator[tuple[Any, Any]]:
    """The items of each key side by side, None where one snapshot has fewer."""
    held, shown = _by_key(olds), _by_key(news)
    for key in {**shown, **held}:
        yield from zip_longest(held.get(key, ()), shown.get(key, ()))


def _by_key(items: Iterable[Document]) -> Mapping[_Key, Sequence[Document]]:
    found: dict[_Key, list[Document]] = {}
    for item in items:
        found.setdefault((*_name(item), _is_brought(item)), []).append(item)
    return found


def _absence(item: Document, own: Side, other: Side) -> Iterator[_Reason]:
    """Why an item of one snapshot is not in the other, the first reason first."""
    if _is_brought(item) and not _names(other.request["items"], item):
        yield "query", "the request brought it for one snapshot alone"
    if item.get("indexVersion", "").startswith("pinned:") and not _names(
        other.request["pins"], item
    ):
        yield "query", "the request pins it for one snapshot alone"
    revisions = _other_revisions(item, other)
    if revisions:
        shown = ", ".join(revisions)
        yield "revision", f"it is of revision {item['sourceRevision']}, the other shows {shown}"
    exclusions = [one for one in other.document["exclusions"] if _name(one) == _name(item)]
    reasons = {one["reason"] for one in exclusions}
    predicate = predicate_of(other.report["scope"]["predicate"])
    refusals = refused_by(predicate, label_of(item), item["sourceId"])
    if refusals or reasons & {"denied", "classification"}:
        told = refusals or [one["detail"] for one in exclusions]
        yield "scope", f"the other scope does not admit it: {'; '.join(told)}"
    found_by = item.get("indexVersion", "").partition(":")[0]
    if found_by in _degraded(other):
        yield "degraded", f"it was found by {found_by}, which gave the other no answer"
    if reasons:
        yield from _packing(own, other, counts="budget" in reasons)
    yield from _as_a_whole(own, other)


def _change(old: Document, new: Document, before: Side, after: Side) -> Iterator[_Reason]:
    """Why an item of both snapshots is not the same, the first reason first."""
    if old["sourceRevision"] != new["sourceRevision"]:
        yield "revision", f"{old['sourceRevision']} before, {new['sourceRevision']} after"
    if _is_brought(new):
        yield "query", "the requests brought it with another text or label"
    if old.get("compressed") or new.get("compressed"):
        yield from _packing(before, after, counts=True)
        yield from _as_a_whole(before, after)
    yield "index", "its source was indexed anew at the same revision"


def _packing(one: Side, other: Side, *, counts: bool) -> Iterator[_Reason]:
    """What packing went by; `counts` tells whether it was the tokens that did not suffice."""
    budgets = one.document["budget"], other.document["budget"]
    bounds = [name for name in _BUDGET if budgets[0][name] != budgets[1][name]]
    if counts and bounds:
        yield "budget", f"the budgets differ in {', '.join(bounds)}"
    yield from _strategy(one, other)


def _as_a_whole(one: Side, other: Side) -> Iterator[_Reason]:
    asked = [name for name in _QUESTION if one.request[name] != other.request[name]]
    if asked:
        yield "query", f"the requests differ in {', '.join(asked)}"
    yield from _strategy(one, other)
    scopes = one.report["scope"]["predicate"], other.report["scope"]["predicate"]
    bounds = sorted(name for name in scopes[0] if scopes[0][name] != scopes[1][name])
    if bounds:
        yield "scope", f"the scopes differ in {', '.join(bounds)}"
    failed = sorted(set(_degraded(one)) ^ set(_degraded(other)))
    if failed:
        yield "degraded", f"without an answer for one snapshot alone: {', '.join(failed)}"
    if _visible(one) != _visible(other):
        yield "index", "what the scope sees of the index differs"
    yield "index", "nothing that is recorded differs: the engine, time or vectors of the index do"


def _strategy(one: Side, other: Side) -> Iterator[_Reason]:
    digests = [side.document["budget"]["assembly"]["strategyHash"] for side in (one, other)]
    if digests[0] != digests[1]:
        yield "strategy", f"{one.document['strategy']} and {other.document['strategy']} differ"


def _other_revisions(item: Document, other: Side) -> list[str]:
    """The revisions that the other snapshot shows of an indexed item's source."""
    if _is_brought(item):
        return []
    shown = {
        one["sourceRevision"]
        for one in other.document["items"]
        if not _is_brought(one) and _name(one)[:2] == _name(item)[:2]
    }
    return sorted(shown - {item["sourceRevision"]})


def _names(entries: Iterable[Document], item: Document) -> bool:
    """Whether inline items or pins name it; a pin without a chunk names all of its source."""
    return any(
        _name(entry)[:2] == _name(item)[:2] and entry["chunkId"] in (None, item["chunkId"])
        for entry in entries
    )


def _visible(side: Side) -> Mapping[str, object]:
    return {leg["name"]: leg.get("visibleVersion") for leg in side.report["retrievers"]}


def _degraded(side: Side) -> Sequence[str]:
    degraded: Sequence[str] = side.document["budget"]["assembly"]["degraded"]
    return degraded


def _name(entry: Document) -> tuple[Any, Any, Any]:
    return entry["project"], entry["sourceId"], entry.get("chunkId")


def _is_brought(item: Document) -> bool:
    """Inline items alone have no `indexVersion`."""
    return "indexVersion" not in item
