import time
from pathlib import Path

import pytest
import regex
import tiktoken
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import ConfigurationError
from app.indexing.chunking import chunk

MEDIA_TYPES = ("text/markdown", "text/x-rst", "text/x-python", "text/plain", None)
FAMILY = "👨‍👩‍👧‍👦"


def count_tokens(text: str) -> int:
    return len(text.split()) + len(text) // 4


def cut(text: str, media_type: str | None = None, max_tokens: int = 400) -> tuple[str, ...]:
    return chunk(text, media_type, max_tokens=max_tokens, count_tokens=count_tokens)


def assert_whole(text: str, chunks: tuple[str, ...], max_tokens: int = 400) -> None:
    """Nothing but white space is lost, each chunk stands in the text as it is and is in size."""
    position = 0
    for piece in chunks:
        assert piece.strip()
        assert count_tokens(piece) <= max_tokens
        found = text.index(piece, position)
        assert not text[position:found].strip()
        position = found + len(piece)
    assert not text[position:].strip()


# fmt: off
FRAGMENTS = (
    "\n", "\n\n", "\r\n", " ", "    ", "\t", "\u2028", "\x1c", "# One\n", "### Three\n\n",
    "Title\n=====\n\n", "=====\nTitle\n=====\n\n", "```\n# no\n\n```\n", "- item\n",
    "Example::\n\n    x\n\n", "def f(x):\n    return x\n", "class A:\n", "@decorator\n", "    }\n",
    "Word. ", "文。", FAMILY, "🇩🇪🇫🇷", "e\u0301\u0323", " \u0301", "word " * 30, "x" * 90, " " * 90,
)
# fmt: on
fragments = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(FRAGMENTS)


@given(
    st.lists(fragments, max_size=40).map("".join), st.sampled_from(MEDIA_TYPES), st.integers(1, 40)
)
@example(" \u0301" * 50, "text/plain", 2)
def test_chunks_hold_all_of_any_text_in_order_and_within_the_limit(
    text: str, media_type: str | None, max_tokens: int
) -> None:
    chunks = cut(text, media_type, max_tokens)
    assert_whole(text, chunks, max_tokens)
    assert "".join("".join(chunks).split()) == "".join(text.split())
    assert chunks == cut(text, media_type, max_tokens)


@given(st.lists(st.sampled_from([FAMILY, "🇩🇪", "e\u0301\u0323", "👍🏽", "க்ஷி", "각", "x"])))
def test_no_grapheme_cluster_is_cut_that_would_fit(clusters: list[str]) -> None:
    text = "".join(clusters)
    chunks = cut(text, max_tokens=7)
    assert_whole(text, chunks, 7)
    assert [c for piece in chunks for c in regex.findall(r"\X", piece)] == regex.findall(
        r"\X", text
    )


def test_a_cluster_beyond_the_limit_is_cut_by_characters() -> None:
    text = "a" + "\u0301" * 1_000
    chunks = cut(text, max_tokens=10)
    assert_whole(text, chunks, 10)
    assert "".join(chunks) == text


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
@pytest.mark.parametrize("text", ["", " ", "\n\n\t\r\n", " " * 1_000_000, "\n" * 100_000, "\u3000"])
def test_a_blank_text_has_no_chunks(text: str, media_type: str | None) -> None:
    assert cut(text, media_type) == ()


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
def test_a_text_that_fits_is_one_chunk_as_it_stands(media_type: str | None) -> None:
    text = "# One\n\ntext\n\n## Two\n\tmore  text"
    assert cut(f"\n\n{text}\n\n", media_type) == (text,)


def test_indentation_is_kept() -> None:
    assert cut("\n\n    indented\n") == ("    indented",)


LONG_LINES = (
    "^" * 1_000_000,
    "a" * 100_000,
    " " * 1_000_000 + "x",
    "x" + " " * 500_000 + "y",
    " ".join(f"{n:x}w{n * n:x}" for n in range(100_000)),
    "One sentence of nine words stands in this place. " * 5_000,
    "文" * 100_000,
    FAMILY * 10_000,
    "🇩🇪🇫🇷" * 20_000,
    "a" + "\u0301" * 100_000,
    "\r" * 100_000 + "a\r" * 50_000,
)
MANY_LINES = {
    "text/plain": ("a\n", "a\n\n"),
    "text/markdown": ("a\n", "a\n\n", "# a\n", "# a\n## b\n", "a\n===\n", "```\n", "- a\n"),
    "text/x-rst": ("a\n", "a\n\n", "a\n===\n\n", "a::\n", "===\n"),
    "text/x-python": ("a\n", "a\n\n", "class A:\n", "@a\n", "def f(): pass\n", "  }\n\n"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "media_type"),
    [
        *((text, None) for text in LONG_LINES),
        *((line * 50_000, media) for media, lines in MANY_LINES.items() for line in lines),
    ],
    ids=lambda value: repr(value[:8]) if value else None,
)
def test_extreme_texts_are_cut_in_bounded_time(text: str, media_type: str | None) -> None:
    started = time.process_time()
    chunks = cut(text, media_type)
    # Quadratic time would be minutes.
    assert time.process_time() - started < 20
    assert_whole(text, chunks)


@pytest.mark.parametrize(
    ("text", "media_type"),
    [
        (" ".join(f"{n:x}w{n * n:x}" for n in range(150_000)), "text/plain"),
        ("word " * 300 + "\n\n# Heading\n\n" + "A sentence is here. " * 20_000, "text/markdown"),
        (
            "".join(f"{'#' * (n % 6 + 1)} h\n\n{'word ' * 100}\n\n" for n in range(3_000)),
            "text/markdown",
        ),
        ("".join(f"def f{n}():\n    return {n}\n\n\n" for n in range(10_000)), "text/x-python"),
    ],
    ids=["words", "sentences", "sections", "functions"],
)
def test_counting_stays_in_proportion_to_the_text(text: str, media_type: str) -> None:
    counted = 0

    def count_and_note(piece: str) -> int:
        nonlocal counted
        counted += len(piece)
        return count_tokens(piece)

    chunk(text, media_type, max_tokens=400, count_tokens=count_and_note)
    assert counted < 8 * len(text)


def test_an_uneven_counter_is_never_believed_without_counting() -> None:
    def count_stars(text: str) -> int:
        return 1 + 50 * text.count("*")

    text = "word " * 500 + "*" * 40 + " word" * 500 + "*"
    chunks = chunk(text, None, max_tokens=120, count_tokens=count_stars)
    assert all(count_stars(piece) <= 120 for piece in chunks)
    assert "".join("".join(chunks).split()) == "".join(text.split())


def test_small_neighbours_share_a_chunk_and_chunks_are_well_filled() -> None:
    text = "\n\n".join(f"Paragraph {n} has a few plain words." for n in range(200))
    chunks = cut(text, max_tokens=100)
    assert_whole(text, chunks, 100)
    assert all(count_tokens(piece) >= 80 for piece in chunks[:-1])
    assert all(piece.startswith("Paragraph") and piece.endswith("words.") for piece in chunks)


def test_a_large_paragraph_is_cut_after_sentences() -> None:
    chunks = cut("The quick brown fox jumps over the lazy dog. " * 200, max_tokens=100)
    assert len(chunks) > 20
    assert all(piece.startswith("The") and piece.endswith("dog.") for piece in chunks)


def test_chinese_is_cut_after_sentences_without_spaces() -> None:
    chunks = cut("敏捷的棕色狐狸跳过懒狗。" * 100, max_tokens=20)
    assert len(chunks) > 10
    assert all(piece.endswith("。") for piece in chunks)


def test_a_long_line_without_sentences_is_cut_between_words() -> None:
    text = "word " * 1_000
    assert {word for piece in cut(text, max_tokens=50) for word in piece.split()} == {"word"}


PARAGRAPH = "Words that fill this section up to some length. " * 4
SECTIONS = {
    "text/markdown": [f"## Heading {n}\n\n{PARAGRAPH}\n\n{PARAGRAPH}" for n in range(6)],
    "text/x-markdown": [f"Heading {n}\n---\n{PARAGRAPH}\n\n{PARAGRAPH}" for n in range(6)],
    "text/x-rst": [f"Heading {n}\n----------\n\n{PARAGRAPH}\n\n{PARAGRAPH}" for n in range(6)],
    "text/prs.fallenstein.rst": [
        f"==========\nHeading {n}\n==========\n\n{PARAGRAPH}\n\n{PARAGRAPH}" for n in range(6)
    ],
    "text/x-python": [
        f"def heading_{n}():\n\n    call()\n\n" + "    value = compute(value)\n" * 16
        for n in range(6)
    ],
    "application/javascript": [
        f"export async function heading{n}() {{\n" + "  value = compute(value);\n" * 16 + "}"
        for n in range(6)
    ],
}


@pytest.mark.parametrize("media_type", SECTIONS)
def test_a_section_that_fits_is_a_chunk_of_its_own(media_type: str) -> None:
    sections = [section.strip() for section in SECTIONS[media_type]]
    limit = max(map(count_tokens, sections)) + 10
    assert cut("\n\n".join(sections), media_type, limit) == tuple(sections)


@pytest.mark.parametrize("media_type", SECTIONS)
@pytest.mark.parametrize("max_tokens", [30, 50, 80, 130])
def test_a_heading_stays_with_text_that_follows_it(media_type: str, max_tokens: int) -> None:
    text = "\n\n".join(SECTIONS[media_type])
    chunks = cut(text, media_type, max_tokens)
    assert_whole(text, chunks, max_tokens)
    with_heading = [piece for piece in chunks if "eading" in piece]
    assert with_heading
    for piece in with_heading:
        after = piece[piece.rindex("eading") :]
        assert "Words that fill" in after or "call()" in after or "compute" in after


def test_a_parent_heading_stays_with_its_first_child_and_siblings_part() -> None:
    text = f"# Book\n\n## Chapter\n\n{PARAGRAPH}\n\n## Other\n\n{PARAGRAPH}"
    chunks = cut(text, "text/markdown", 100)
    assert [piece.split("\n")[0] for piece in chunks] == ["# Book", "## Other"]
    assert chunks[0].startswith("# Book\n\n## Chapter\n\nWords")


def test_higher_headings_part_before_lower_ones() -> None:
    text = "".join(f"# {n}\n\n" + f"## {n}.1\n\nWords here.\n\n" * 3 for n in range(4))
    assert all(piece.startswith("# ") for piece in cut(text, "text/markdown", 40))


def test_reading_order_tells_the_levels_of_restructuredtext() -> None:
    part = "Part\n~~~~\n\n" + "Sub\n====\n\nWords here.\n\n" * 3
    assert all(piece.startswith("Part") for piece in cut(part * 4, "text/x-rst", 40))


def test_a_comment_in_a_fenced_block_is_no_heading() -> None:
    code = "```sh\n" + "# comment\n\nrun it\n\n" * 4 + "```"
    text = f"# One\n\nWords.\n\n{code}\n\n# Two\n\nWords."
    limit = count_tokens(f"# One\n\nWords.\n\n{code}")
    assert cut(text, "text/markdown", limit) == (f"# One\n\nWords.\n\n{code}", "# Two\n\nWords.")


def test_methods_part_before_the_blocks_inside_them() -> None:
    method = "    def method(self):\n        first()\n\n        second()\n\n        third()\n"
    text = "class Service:\n" + "\n".join([method] * 5)
    pieces = cut(text, "text/x-python", 50)
    assert len(pieces) > 2
    assert all("def method" in piece and piece.endswith("third()") for piece in pieces)


def test_a_decorator_stays_with_its_function() -> None:
    text = "@decorated\ndef function():\n    return compute(1)\n" * 20
    for piece in cut(text, "text/x-python", 40):
        assert piece.startswith("@decorated")
        assert piece.endswith("compute(1)")


@pytest.mark.parametrize("media_type", ["TEXT/Markdown", "text/markdown; charset=utf-8"])
def test_the_media_type_is_read_without_case_and_parameters(media_type: str) -> None:
    text = "\n\n".join(SECTIONS["text/markdown"])
    assert cut(text, media_type, 120) == cut(text, "text/markdown", 120)


@pytest.mark.parametrize("media_type", [None, "", "image/png", "text/html", "nonsense"])
def test_an_unknown_format_is_plain_text(media_type: str | None) -> None:
    text = "\n".join(f"# {n}\nwords of line {n}" for n in range(50))
    assert cut(text, media_type, 60) == cut(text, "text/plain", 60)
    assert cut(text, media_type, 60) != cut(text, "text/markdown", 60)


def test_lines_may_end_with_carriage_returns() -> None:
    text = "\n\n".join(SECTIONS["text/markdown"])
    windows = text.replace("\n", "\r\n")
    assert [piece.replace("\r\n", "\n") for piece in cut(windows, "text/markdown", 125)] == list(
        cut(text, "text/markdown", 125)
    )


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_a_limit_that_allows_nothing_is_a_configuration_error(max_tokens: int) -> None:
    with pytest.raises(ConfigurationError):
        cut("a", max_tokens=max_tokens)


def test_a_character_larger_than_the_limit_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        chunk("a𒀱b", None, max_tokens=3, count_tokens=lambda text: len(text.encode()))


@pytest.mark.shared_data
def test_real_documents_are_cut_whole_with_titles_kept_to_their_text(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "encodings"))
    encoding = tiktoken.get_encoding("o200k_base")

    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    title_at_the_end = regex.compile(r"\n\n\S.*\n([=\-~'\"^])\1{2,}\s*\Z")
    sizes: list[int] = []
    for path in sorted((shared_data / "peps").glob("*.rst")):
        text = path.read_text(encoding="utf-8")
        chunks = chunk(text, "text/x-rst", max_tokens=400, count_tokens=count)
        assert "".join("".join(chunks).split()) == "".join(text.split()), path.name
        assert all(piece in text for piece in chunks), path.name
        assert not any(title_at_the_end.search(piece) for piece in chunks), path.name
        sizes += [count(piece) for piece in chunks]
    assert len(sizes) > 2_000
    assert max(sizes) <= 400
    assert sum(sizes) / len(sizes) > 200
