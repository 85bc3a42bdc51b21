"""A shortened text has whole units of the original, within its room, nearest to the query."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.indexing.analysis import analyze
from app.indexing.outline import Format
from app.packing.compression import Shortened, cut, shorten
from app.packing.rendering import framed_body
from app.packing.units import split
from tests.unit.packing.test_units import MODULE, texts


def count(text: str) -> int:
    return len(text.split()) + len(text) // 4


def terms(text: str) -> Iterable[str]:
    return analyze(text, "en")


def asked(
    text: str, query: str, room: int = 1_000, floor: int = 0, format_: Format = Format.MARKDOWN
) -> Shortened | None:
    return shorten(
        text,
        format_,
        frozenset(terms(query)),
        room_tokens=room,
        floor_tokens=floor,
        terms_of=terms,
        count_tokens=count,
    )


def text_of(found: Shortened | None) -> str | None:
    return None if found is None else found.text


SIX = "Dogs bark. Cats purr. Cows give milk. Cats drink milk. Hens lay. Cats sleep."


def test_what_has_nothing_of_the_query_is_left_out_and_its_place_is_marked() -> None:
    found = asked(SIX, "cats")
    text = "Cats purr. … Cats drink milk. … Cats sleep."
    spans = ((11, 21), (38, 54), (65, 76))
    assert found == Shortened(text, spans, count(framed_body(text)))


def test_the_room_goes_to_the_units_with_most_of_the_query_first() -> None:
    whole = count(framed_body("Cats drink milk."))
    assert text_of(asked(SIX, "milk for cats", whole + 4)) == "Cats drink milk."
    both = count(framed_body("Cows give milk. Cats drink milk."))
    # Neighbours stay one passage; milk is rarer here than cats.
    assert text_of(asked(SIX, "milk for cats", both + 2)) == "Cows give milk. Cats drink milk."


def test_of_equal_units_the_first_is_kept() -> None:
    text = "Red fish swim. Blue birds fly. Red fish rest."
    assert text_of(asked(text, "fish", count(framed_body("Red fish swim.")) + 1)) == (
        "Red fish swim."
    )


@pytest.mark.parametrize("query", ["horses", "the and of", ""])
def test_a_text_without_a_matching_unit_is_not_shortened(query: str) -> None:
    assert asked(SIX, query) is None


def test_less_than_the_floor_is_nothing() -> None:
    found = asked(SIX, "hens")
    assert text_of(found) == "Hens lay."
    tokens = count(framed_body("Hens lay."))
    assert asked(SIX, "hens", floor=tokens) == found
    assert asked(SIX, "hens", floor=tokens + 1) is None


def test_units_that_count_more_together_are_given_up_in_few_steps() -> None:
    """One count of the whole for each of ten thousand units would take minutes."""
    wholes: list[int] = []

    def counted(text: str) -> int:
        wholes.extend([len(text)] * text.startswith(framed_body("")[:2]))
        return count(text)

    found = shorten(
        "cancel\n\n" * 10_000,
        Format.MARKDOWN,
        frozenset(["cancel"]),
        room_tokens=10_000,
        floor_tokens=1,
        terms_of=lambda _: ["cancel"],
        count_tokens=counted,
    )
    assert found is not None
    assert 9_990 < found.body_tokens <= 10_000
    assert len(wholes) < 20


def test_a_text_that_would_stay_whole_is_not_shortened() -> None:
    assert asked("Cats purr. Cats sleep.", "cats") is None
    assert asked("\n\nCats purr. Cats sleep.\n", "cats") is None


def test_a_unit_comes_with_its_heading_and_a_heading_never_alone() -> None:
    text = "# Cats\n\nThey purr.\n\n# Dogs\n\nThey bark.\n\nThey run.\n"
    assert asked(text, "cats") is None
    assert text_of(asked(text, "barking")) == "# Dogs\n\nThey bark."
    assert asked(text, "barking", count(framed_body("They bark."))) is None


def test_a_gap_between_lines_has_a_line_of_its_own() -> None:
    text = "Cats purr.\nThey are soft.\n\n- cats\n- dogs\n- cats again\n"
    assert text_of(asked(text, "cat")) == "Cats purr.\n…\n- cats\n…\n- cats again"


def test_code_gives_signature_and_docstring_before_bodies() -> None:
    found = text_of(asked(MODULE, "find second", format_=Format.CODE))
    assert found is not None
    assert found.startswith("@cached\n# for speed\ndef find(")
    assert '"""\n…\n    second = ["a",' in found
    signature = MODULE[MODULE.index("@cached") : MODULE.index("    first")].rstrip()
    room = count(framed_body(signature)) + 3
    assert text_of(asked(MODULE, "find second", room, format_=Format.CODE)) == signature


def test_a_method_comes_with_its_class() -> None:
    expected = 'class Shelf:\n    # Of books.\n    # Many.\n…\n    def take(self):\n        "One."'
    assert text_of(asked(MODULE, "take", format_=Format.CODE)) == expected


@given(texts, st.sampled_from(Format), texts, st.integers(0, 60), st.integers(0, 20))
def test_any_shortened_text_is_made_of_whole_units_within_room_and_floor(
    text: str, format_: Format, query: str, room: int, floor: int
) -> None:
    found = asked(text, query + text[:10], room, floor, format_)
    if found is None:
        return
    assert found == asked(text, query + text[:10], room, floor, format_)
    assert floor <= found.body_tokens == count(framed_body(found.text)) <= room
    assert found.text == cut(text, found.spans)
    assert len(found.text) < len(text)
    units = split(text, format_)
    starts, ends = ({getattr(one, edge) for one in units} for edge in ("start", "end"))
    kept = {
        at
        for at, unit in enumerate(units)
        if any(start <= unit.start and unit.end <= end for start, end in found.spans)
    }
    assert all(start in starts and end in ends for start, end in found.spans)
    assert all(units[at].needs is None or units[at].needs in kept for at in kept)
    assert set(terms(query + text[:10])) & set(terms(found.text))
