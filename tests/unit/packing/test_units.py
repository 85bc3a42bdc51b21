"""Units are sentences, blocks and definitions; in doubt a unit is larger."""

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from app.indexing.outline import Format
from app.packing.units import Kind, split
from tests.unit.indexing.test_chunking import FRAGMENTS

PROSE, CODE = Format.PLAIN, Format.CODE


def pieces(text: str, format_: Format = PROSE) -> list[str]:
    return [text[unit.start : unit.end] for unit in split(text, format_)]


# fmt: off
MORE_FRAGMENTS = (
    '"""', "'''", "/*", "*/", "```", "| a |\n", "> q\n", "(", ")", "「", "」", '"', "。」", " ।\n",
    "Dr. A", "e.g. B", "End. Next", "สวัสดี\n", "\u0301", "۔ ", "؟ ", "...", "def f(\n", "    x\n",
)
# fmt: on
fragments = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    FRAGMENTS + MORE_FRAGMENTS
)
texts = st.lists(fragments, max_size=40).map("".join)


@given(texts, st.sampled_from(Format))
@example("A. \u0301B. C", PROSE)
@example("文。\u0301文。\u200d文", PROSE)
def test_units_hold_all_but_white_space_in_order_and_cut_no_cluster(
    text: str, format_: Format
) -> None:
    units = split(text, format_)
    clusters = {found.end() for found in regex.finditer(r"\X", text)} | {0}
    position = 0
    for at, unit in enumerate(units):
        assert position <= unit.start < unit.end
        assert not text[position : unit.start].strip()
        assert unit.start in clusters
        assert text[unit.end : unit.end + 1].isspace() or unit.end in clusters
        assert unit.needs is None or unit.needs < at
        if unit.needs is not None:
            assert units[unit.needs].kind is not Kind.TEXT
        position = unit.end
    assert not text[position:].strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One thing. Two? Three! Four…", ["One thing.", "Two?", "Three!", "Four…"]),
        ("Dr. Smith met J. R. Hall. They left.", ["Dr. Smith met J. R. Hall.", "They left."]),
        ("See Fig. 3. And so on.", ["See Fig. 3.", "And so on."]),
        ("It weighs 3.5 kg. 7 more came.", ["It weighs 3.5 kg. 7 more came."]),
        ("Yahoo! is a name. pH too.", ["Yahoo! is a name. pH too."]),
        ("It is (so. Really) so. Yes.", ["It is (so. Really) so.", "Yes."]),
        ('"Go. Now." He went.', ['"Go. Now."', "He went."]),
        ("Er kam z.B. Montag. Ende.", ["Er kam z.B. Montag.", "Ende."]),
        ("Конец. Начало. И т. д.", ["Конец.", "Начало.", "И т. д."]),
        ("彼は「はい。そう。」と言った。次。", ["彼は「はい。そう。」と言った。", "次。"]),
        ("终于！真的吗？是。", ["终于！", "真的吗？", "是。"]),
        ("यह एक है। यह दो है॥ तीन", ["यह एक है।", "यह दो है॥", "तीन"]),
        ("هل هذا أول؟ نعم. انتهى", ["هل هذا أول؟", "نعم.", "انتهى"]),
        ("یہ پہلا ہے۔ دوسرا", ["یہ پہلا ہے۔", "دوسرا"]),
        ("สวัสดีครับ\nนี่คือบรรทัด ดร. สมชาย", ["สวัสดีครับ", "นี่คือบรรทัด ดร. สมชาย"]),
        ("A sentence that\ngoes on. The next.", ["A sentence that\ngoes on.", "The next."]),
        ("No partner) here. Next ( one. Last.", ["No partner) here.", "Next ( one.", "Last."]),
    ],
)
def test_sentences_end_by_the_marks_of_their_script(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


@pytest.mark.parametrize(
    "block",
    [
        "```py\nA. B\n\nC. D\n```",
        "~~~\n```\nA. B\n~~~",
        "- one. Two.\n  Three. Four.",
        "12. one. Two.",
        "| A. B | c |\n| --- | --- |\n| D. E | f |",
        "a | b\n--- | ---\nC. D | e",
        "=====  =====\nA. B   C. D\n=====  =====",
        "> A. B\n> C. D",
        "    A. B\n\n    C. D",
        "<p>A. B</p>",
        ".. note:: A. B",
        "A. B\n====",
        "====\nA. B\n====",
        "## A. B",
    ],
)
def test_a_block_is_never_cut(block: str) -> None:
    assert pieces(f"Before it. And.\n\n{block}\n\nAfter it. End.") == [
        "Before it.",
        "And.",
        block,
        "After it.",
        "End.",
    ]


def test_list_items_are_units_and_stand_under_their_heading() -> None:
    text = "Intro.\n\n# Title\n\nSome text:\n- one\n- two\n\n## Next\nLine."
    units = split(text, PROSE)
    assert [(text[one.start : one.end], one.needs) for one in units] == [
        ("Intro.", None),
        ("# Title", None),
        ("Some text:", 1),
        ("- one", 1),
        ("- two", 1),
        ("## Next", None),
        ("Line.", 5),
    ]


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        ("It ends. Here.\n```\nIt begins. There.", PROSE),
        ('x = 1\n\n"""\n\ndef f(): pass', CODE),
        ("of a comment */\n\nint x;", CODE),
    ],
)
def test_a_text_that_may_begin_inside_of_a_fence_or_string_is_one_unit(
    text: str, format_: Format
) -> None:
    assert pieces(text, format_) == [text]


MODULE = '''import os

@cached
# for speed
def find(
    name,

    place):
    r"""Find it.

    By its name.
    """
    first = 1

    second = ["a",

        "b"]
    return second
LIMIT = 2
class Shelf:
    # Of books.
    # Many.
    size = 3

    def put(self): pass
    def take(self):
        "One."
        return 1
'''


def test_code_has_signatures_with_docstrings_and_blocks_under_them() -> None:
    units = split(MODULE, CODE)
    signature = MODULE[MODULE.index("@cached") : MODULE.index("    first")].rstrip()
    assert [(MODULE[one.start : one.end], one.needs) for one in units] == [
        ("import os", None),
        (signature, None),
        ("    first = 1", 1),
        ('    second = ["a",\n\n        "b"]\n    return second', 1),
        ("LIMIT = 2", None),
        ("class Shelf:\n    # Of books.\n    # Many.", None),
        ("    size = 3", 5),
        ("    def put(self): pass", 5),
        ('    def take(self):\n        "One."', 5),
        ("        return 1", 8),
    ]
    assert [at for at, one in enumerate(units) if one.kind is Kind.SIGNATURE] == [1, 5, 7, 8]


def test_braces_close_with_the_block_that_they_end() -> None:
    text = "function f(a) {\n  // Says it.\n  say(a);\n\n  end();\n}\n"
    assert pieces(text, CODE) == ["function f(a) {\n  // Says it.", "  say(a);", "  end();\n}"]


@pytest.mark.parametrize(
    "text",
    [mark * 20_000 for mark in (".", "。", '"', "(", " ", "\u0301", "A. ", "(Ab. ", "# a\n")],
)
@pytest.mark.parametrize("format_", [PROSE, CODE])
def test_long_repetitions_are_split_like_short_ones(text: str, format_: Format) -> None:
    """In quadratic time this would not come to its end."""
    few = pieces(text[: len(text) // 1_000], format_)
    many = pieces(text, format_)
    assert "".join("".join(many).split()) == "".join(text.split())
    assert len(many) == (1_000 * len(few) if len(few) > 1 else len(few))
