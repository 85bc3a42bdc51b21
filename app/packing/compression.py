"""A text cut down to those of its units that are nearest to a query. Pure, in whole numbers.

Guarantees: what is kept are whole units (`units`) in their order, each with the heading or
definition that it stands under; it never counts more than the room, nor less than the floor; at
least one unit has a term of the query; the same arguments give the same text. What was kept is
told as spans, so that the text can be had again from the original and need not be stored.

Not handled: summaries; references from what is kept to what is left out.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.indexing.outline import Format
from app.packing.rendering import framed_body
from app.packing.units import Kind, Unit, split

GAP = "…"
"""Stands for what was left out between two spans: a model must not read them as one passage."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shortened:
    """A shortened text; `spans` are what it has of the original, in characters, ends exclusive.

    `body_tokens` counts it inside its fence.
    """

    text: str
    spans: tuple[Span, ...]
    body_tokens: int


def shorten(
    text: str,
    format_: Format,
    query_terms: Collection[str],
    *,
    room_tokens: int,
    floor_tokens: int,
    terms_of: Callable[[str], Iterable[str]],
    count_tokens: Callable[[str], int],
) -> Shortened | None:
    """The units with the most of the query, while they fit; None where that is too little.

    A term counts the more, the fewer units of the text have it; signatures come before the rest
    of the code; of equal units the first. Room and floor are for the text inside its fence.
    """
    units = split(text, format_)
    ranked = _by_worth(text, units, frozenset(query_terms), terms_of)
    kept = _fitting(text, units, ranked, room_tokens, count_tokens)

    def joined(groups: int) -> Shortened:
        spans = _spans(units, {place for group in kept[:groups] for place in group})
        shortened = cut(text, spans)
        return Shortened(shortened, spans, count_tokens(framed_body(shortened)))

    # Joined, units may count more than one by one: as many as fit are found in few steps,
    # because giving up one by one would take a count of the whole for each.
    found = joined(len(kept))
    if found.body_tokens > room_tokens:
        most = bisect_left(
            range(1, len(kept)), True, key=lambda groups: joined(groups).body_tokens > room_tokens
        )
        found = joined(most)
    if not found.spans or found.body_tokens < floor_tokens:
        return None
    return None if len(found.text) >= len(text.strip()) else found


def cut(text: str, spans: Sequence[Span]) -> str:
    """The spans of a text, joined by a gap: in a line of its own unless they share a line."""
    parts = [text[start:end] for start, end in spans[:1]]
    for (_, before), (start, end) in pairwise(spans):
        parts += [f"\n{GAP}\n" if "\n" in text[before:start] else f" {GAP} ", text[start:end]]
    return "".join(parts)


def _by_worth(
    text: str,
    units: Sequence[Unit],
    query_terms: frozenset[str],
    terms_of: Callable[[str], Iterable[str]],
) -> list[int]:
    """Places of the units that have a term of the query, the best first."""
    matched = [query_terms.intersection(terms_of(text[unit.start : unit.end])) for unit in units]
    having = Counter(term for terms in matched for term in terms)
    worth = [sum(len(units) + 1 - having[term] for term in terms) for terms in matched]
    able = (at for at, unit in enumerate(units) if worth[at] and unit.kind is not Kind.HEADING)
    return sorted(able, key=lambda at: (units[at].kind is not Kind.SIGNATURE, -worth[at], at))


def _fitting(
    text: str,
    units: Sequence[Unit],
    ranked: Sequence[int],
    room_tokens: int,
    count_tokens: Callable[[str], int],
) -> list[list[int]]:
    """Units that fit together, each with those that it needs, in the order of their worth."""
    used = count_tokens(framed_body(""))
    taken: set[int] = set()
    kept = []
    for at in ranked:
        group = _with_needs(units, at, taken)
        tokens = sum(count_tokens(text[units[one].start : units[one].end]) for one in group)
        if group and used + tokens <= room_tokens:
            used += tokens
            taken.update(group)
            kept.append(group)
    return kept


def _with_needs(units: Sequence[Unit], at: int, taken: Collection[int]) -> list[int]:
    """A unit and those that it stands under, without those that are taken."""
    group: list[int] = []
    place: int | None = at
    while place is not None and place not in taken:
        group.append(place)
        place = units[place].needs
    return group


def _spans(units: Sequence[Unit], kept: Collection[int]) -> tuple[Span, ...]:
    """Neighbours become one span, with the white space between them."""
    spans: list[Span] = []
    for at in sorted(kept):
        start = spans.pop()[0] if at - 1 in kept else units[at].start
        spans.append((start, units[at].end))
    return tuple(spans)
