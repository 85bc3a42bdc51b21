"""Token counts against tiktoken's own encodings, built by its own code from the same ranks."""

import asyncio
import hashlib
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.model import MODEL_TO_ENCODING

from app.adapters import tokens
from app.adapters.tokens import MAX_TEXT_CHARS, TiktokenCounter
from app.errors import ConfigurationError, InvalidRequestError, TooLargeError
from app.packing.tokens import TokenCounter

RANK_FOLDER = Path(tokens.__file__).parent / "encodings"
SHARED_DATA = Path(__file__).parents[4] / "shared" / "data"
ENCODINGS = ("cl100k_base", "o200k_base", "o200k_harmony")
VOCABULARIES = ENCODINGS[:2]
MILLION = 1_000_000

COUNTER: TokenCounter = TiktokenCounter()

needs_shared_data = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason="../shared/data is missing beside the checkout"
)

# Characters that the patterns treat differently from their neighbours: kinds of white
# space, line ends, slashes, quotes of contractions, cases, marks, scripts, digits, emoji,
# and letters of Unicode 15 to 17.
EDGES = (
    " \t\n\r\x0b\x0c\x1c\x85\u00a0\u2003\u2028\u3000\u200b\u200d/\\<>'\"’-^!.,#_0123٣½Ⅷ"
    "aAsStTlLdDmMſKéÉǅʰªßиЖ日語のไ่हि\u0301\u0308\u20dd"
    "🙂👩🏽🇩\ufeff\ufffd\U00010940\U00016ea0\U00016ebb\U000323b0\U0010ffff"
)
FRAGMENTS = st.sampled_from(
    ("'s", "'LL", "'ſ", " 'Re", "\r\n", "\n/", "!\n//", "</", "<item-", "item-7>\n", "://", "  x",
     "<|endoftext|>", "<|start|>", "class=", "a\u0301A\u0301", "日A", "AB", "Abc", "123456", " \n ")
)  # fmt: skip
RUNS = st.builds(
    lambda unit, length: unit * length,
    st.sampled_from((" ", "\t", "\n", "\r\n", " \n", "\u00a0", "\u3000", "a", "A", "日", "^", "1")),
    st.sampled_from((2, 3, 9, 100, 255, 256, 257, 258, 511, 512, 513, 514, 769, 1025)),
)
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.text(EDGES, max_size=20),
        FRAGMENTS,
        RUNS,
    ),
    max_size=8,
).map("".join)
SCALARS = st.characters(codec="utf-8")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tiktoken.Encoding]:
    """tiktoken.get_encoding, offline. Links, for tiktoken deletes a cached file it mistrusts."""
    cache = tmp_path_factory.mktemp("tiktoken")
    for file in RANK_FOLDER.iterdir():
        (cache / file.name).symlink_to(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
        loaded = {name: tiktoken.get_encoding(name) for name in ENCODINGS}
    return loaded.__getitem__


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(deadline=None, max_examples=150)
@given(text=TEXTS)
def test_counts_what_tiktoken_counts(
    encoding: str, text: str, plain: Callable[[str], tiktoken.Encoding]
) -> None:
    assert COUNTER.count(text, encoding) == len(plain(encoding).encode_ordinary(text))


@pytest.mark.parametrize("encoding", VOCABULARIES)
def test_every_run_of_white_space_is_split_like_tiktoken_does(
    encoding: str, plain: Callable[[str], tiktoken.Encoding]
) -> None:
    reference = plain(encoding)
    for length in (*range(1, 8), *range(252, 262), *range(509, 518), *range(765, 772)):
        for before in ("", "x", "!", "1", "\n", "!\n", "日"):
            for after in ("", "x", "/", "1", "\n", "\r\nx", "\n \n/", "\u0301"):
                text = before + " " * length + after
                assert COUNTER.count(text, encoding) == len(reference.encode_ordinary(text)), text


@pytest.mark.long
@pytest.mark.parametrize("encoding", VOCABULARIES)
def test_every_character_falls_into_the_class_that_tiktoken_puts_it_in(
    encoding: str, plain: Callable[[str], tiktoken.Encoding]
) -> None:
    """By pages, so that errors cannot cancel out; the planes beyond hold no letters."""
    reference = plain(encoding)
    for page in (*range(0, 0xD800, 64), *range(0xE000, 0x33480, 64), *range(0xE0000, 0xE0200, 64)):
        text = "".join(f"a{c}A{c}1{c} {c}\n{c}{c}/" for c in map(chr, range(page, page + 64)))
        assert COUNTER.count(text, encoding) == len(reference.encode_ordinary(text)), hex(page)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("special", ["<|endoftext|>", "<|endofprompt|>", "<|start|>", "<|call|>"])
def test_the_name_of_a_special_token_is_counted_as_plain_text(
    encoding: str, special: str, plain: Callable[[str], tiktoken.Encoding]
) -> None:
    expected = plain(encoding).encode(special, disallowed_special=())
    assert COUNTER.count(special, encoding) == len(expected) > 2
    assert COUNTER.count("x" + special * 3, encoding) > 2 * len(expected)


def test_known_texts_have_their_published_counts() -> None:
    assert COUNTER.count("", "cl100k_base") == 0
    assert COUNTER.count("hello world", "cl100k_base") == 2
    assert COUNTER.count("tiktoken is great!", "cl100k_base") == 6
    assert COUNTER.count("antidisestablishmentarianism", "cl100k_base") == 6
    assert COUNTER.count("2 + 2 = 4", "o200k_base") == 7
    assert COUNTER.count("お誕生日おめでとう", "cl100k_base") == 9


def test_the_trap_is_real_and_a_million_spaces_are_counted_all_the_same(
    plain: Callable[[str], tiktoken.Encoding],
) -> None:
    reference = plain("o200k_base")
    text = " " * MILLION + "x"
    with pytest.raises(BaseException, match="StackOverflow") as caught:
        reference.encode_ordinary(text)
    assert not isinstance(caught.value, Exception)
    expected = len(reference._encode_single_piece(" " * (MILLION - 1))) + 1
    assert COUNTER.count(text, "o200k_base") == expected


HOSTILE = {
    "carets": "^" * MILLION,
    "letters": "a" * MILLION,
    "capitals": "A" * MILLION,
    "spaces": " " * MILLION,
    "spaces before a letter": " " * MILLION + "x",
    "spaces before a line end": " " * MILLION + "\nx",
    "spaces between": "x" + " " * MILLION + "!\n" + "\t" * MILLION,
    "line ends": "\n" * MILLION,
    "line ends and slashes after a mark": "!" + "\n" * MILLION + "//x",
    "carriage returns": "\r\n" * (MILLION // 2),
    "no-break spaces": "\u00a0" * MILLION + "x",
    "ideographs": "日" * MILLION,
    "combining marks": "e" + "\u0301" * MILLION,
    "digits": "1" * MILLION,
    "special tokens": "<|endoftext|>" * (MILLION // 13),
    "all of it": ("^" * 1000 + " " * 300 + "a" * 5000 + "\n" * 77 + "\t \n" + "日" * 50) * 155,
}


@pytest.mark.long
@pytest.mark.parametrize("encoding", VOCABULARIES)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_million_hostile_characters_are_counted_exactly_and_soon(
    name: str, encoding: str, plain: Callable[[str], tiktoken.Encoding]
) -> None:
    """tiktoken's own detour, splitting in Python, is exact for these old characters."""
    text = HOSTILE[name]
    began = time.perf_counter()
    count = COUNTER.count(text, encoding)
    took_s = time.perf_counter() - began
    assert count == len(plain(encoding)._encode_only_native_bpe(text))
    assert took_s < 20  # 0.1 to 2.5 s on an idle machine


async def test_the_event_loop_runs_on_while_a_thread_counts() -> None:
    COUNTER.count("", "cl100k_base")
    counting = asyncio.create_task(asyncio.to_thread(COUNTER.count, "日" * MILLION, "cl100k_base"))
    gaps_s: list[float] = []
    while not counting.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        gaps_s.append(time.perf_counter() - began)
    assert await counting == MILLION
    assert len(gaps_s) > 10
    assert max(gaps_s) < sum(gaps_s) / 4


def test_loading_and_counting_open_no_socket_and_write_no_cache(
    no_network: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fresh = TiktokenCounter()
    assert [fresh.count("hello world", name) for name in ENCODINGS] == [2, 2, 2]
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_points_to_a_wrong_cache_changes_nothing(
    no_network: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for file in RANK_FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(b"")
    assert TiktokenCounter().count("hello world", "o200k_base") == 2


def test_each_vocabulary_is_loaded_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = tokens._load

    def recorded(*args: object) -> tiktoken.Encoding:
        loads.append(threading.current_thread().name)
        return load(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tokens, "_load", recorded)
    fresh = TiktokenCounter()
    assert loads == []
    with ThreadPoolExecutor(8) as pool:
        names = ["o200k_base", "o200k_harmony"] * 50
        texts = ["hello " * n for n in range(100)]
        counts = list(pool.map(fresh.count, texts, names))
    assert counts == [COUNTER.count(text, "o200k_base") for text in texts]
    assert len(loads) == 1


def test_a_damaged_or_missing_rank_file_is_the_operators_to_mend(tmp_path: Path) -> None:
    name = tokens._CL100K.rank_file
    with pytest.raises(ConfigurationError, match=name):
        TiktokenCounter(tmp_path).count("x", "cl100k_base")
    shutil.copy(RANK_FOLDER / name, tmp_path)
    assert TiktokenCounter(tmp_path).count("x", "cl100k_base") == 1
    with (tmp_path / name).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(ConfigurationError, match=tokens._CL100K.rank_file_sha256):
        TiktokenCounter(tmp_path).count("x", "cl100k_base")


def test_the_rank_files_have_the_hashes_that_their_readme_names() -> None:
    readme = (RANK_FOLDER / "README.md").read_text()
    for vocabulary in (tokens._CL100K, tokens._O200K):
        content = (RANK_FOLDER / vocabulary.rank_file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == vocabulary.rank_file_sha256
        assert vocabulary.rank_file in readme
        assert vocabulary.rank_file_sha256 in readme


def test_an_unknown_encoding_is_refused_with_the_known_ones() -> None:
    for name in ("gpt2", "O200K_BASE", "", "p50k_base"):
        with pytest.raises(InvalidRequestError) as caught:
            COUNTER.count("x", name)
        assert caught.value.pointers == ("/budget/encoding",)
        assert all(known in caught.value.detail for known in ENCODINGS)
    assert COUNTER.encodings == ENCODINGS


def test_a_text_that_utf8_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate at character 2"):
        COUNTER.count("ab\ud83d", "o200k_base")


def test_a_text_beyond_the_limit_is_refused_before_any_work() -> None:
    with pytest.raises(TooLargeError, match=str(MAX_TEXT_CHARS)):
        COUNTER.count(" " * (MAX_TEXT_CHARS + 1), "o200k_base")


def test_models_map_to_the_encoding_that_tiktoken_names() -> None:
    for model, encoding in {
        "gpt-4o": "o200k_base",
        "gpt-4o-2024-05-13": "o200k_base",
        "gpt-5": "o200k_base",
        "gpt-4": "cl100k_base",
        "gpt-3.5-turbo-0125": "cl100k_base",
        "text-embedding-3-small": "cl100k_base",
        "gpt-oss-120b": "o200k_harmony",
    }.items():
        assert COUNTER.encoding_for_model(model) == encoding
    supported = {m: e for m, e in MODEL_TO_ENCODING.items() if e in ENCODINGS}
    assert {model: COUNTER.encoding_for_model(model) for model in supported} == supported


@pytest.mark.parametrize("model", ["", "claude", "llama-3", "GPT-4o", "text-davinci-003", "gpt2"])
def test_a_model_of_no_supported_encoding_is_refused_with_the_known_ones(model: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        COUNTER.encoding_for_model(model)
    assert caught.value.pointers == ("/budget/model",)
    assert "gpt-4o, gpt-4o-*, " in caught.value.detail
    assert "davinci-003," not in caught.value.detail


ATTRIBUTES = ' class="documents" tier="user" classification="internal'
MARKERS = st.text("0123456789", min_size=27, max_size=27)


def block(marker: str, text: str) -> tuple[str, str, str]:
    return f"<item-{marker}{ATTRIBUTES}", f'">\n{text}\n</', f"item-{marker}>\n"


@pytest.mark.parametrize("encoding", VOCABULARIES)
@settings(deadline=None, max_examples=150)
@given(
    blocks=st.lists(
        st.tuples(MARKERS, st.tuples(st.sampled_from(EDGES) | SCALARS, TEXTS, SCALARS))
        | st.tuples(MARKERS, st.tuples(TEXTS)),
        min_size=1,
        max_size=4,
    )
)
def test_counts_of_headers_bodies_and_footers_add_up(
    encoding: str, blocks: list[tuple[str, tuple[str, ...]]]
) -> None:
    parts = [part for marker, text in blocks for part in block(marker, "".join(text))]
    total = sum(COUNTER.count(part, encoding) for part in parts)
    assert COUNTER.count("".join(parts), encoding) == total


@pytest.mark.parametrize("encoding", VOCABULARIES)
def test_counts_add_up_around_every_character(encoding: str) -> None:
    """Each edge character, alone and in pairs, at either end of the text."""
    marker = "123456789" * 3
    for first in EDGES:
        for last in EDGES:
            parts = block(marker, f"{first}{last}") + block(marker, f"{last}x{first}")
            total = sum(COUNTER.count(part, encoding) for part in parts)
            assert COUNTER.count("".join(parts), encoding) == total, (first, last)


@pytest.mark.parametrize("encoding", VOCABULARIES)
def test_a_marker_of_27_digits_costs_nine_tokens_whichever_they_are(encoding: str) -> None:
    header_tokens = COUNTER.count("<item-", encoding) + 9 + COUNTER.count(ATTRIBUTES, encoding)
    footer_tokens = COUNTER.count("item-", encoding) + 9 + COUNTER.count(">\n", encoding)
    for triple in range(1000):
        marker = f"{triple:03}" * 9
        header, _, footer = block(marker, "")
        assert COUNTER.count(marker, encoding) == 9
        assert COUNTER.count(header, encoding) == header_tokens
        assert COUNTER.count(footer, encoding) == footer_tokens


@pytest.mark.parametrize("encoding", VOCABULARIES)
@settings(deadline=None)
@given(one=MARKERS, other=MARKERS, text=TEXTS)
def test_a_block_costs_the_same_under_any_marker(
    encoding: str, one: str, other: str, text: str
) -> None:
    counts = {COUNTER.count("".join(block(marker, text)), encoding) for marker in (one, other)}
    assert len(counts) == 1


@pytest.mark.shared_data
@needs_shared_data
def test_published_vectors_have_as_many_tokens_as_ids() -> None:
    lines = (SHARED_DATA / "vectors" / "tokenizer.jsonl").read_text("utf-8").split("\n")
    vectors = [json.loads(line) for line in lines if line]
    checked = dict.fromkeys(ENCODINGS, 0)
    for vector in vectors:
        if vector["encoding"] in checked and not vector["special"]:
            checked[vector["encoding"]] += 1
            assert COUNTER.count(vector["text"], vector["encoding"]) == len(vector["ids"]), vector
    assert checked == {"cl100k_base": 73, "o200k_base": 65, "o200k_harmony": 64}


@pytest.mark.shared_data
@needs_shared_data
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_naughty_strings_are_counted_like_tiktoken_does(
    encoding: str, plain: Callable[[str], tiktoken.Encoding]
) -> None:
    strings = json.loads((SHARED_DATA / "vectors/naughty-strings/blns.json").read_text("utf-8"))
    assert len(strings) > 500
    for text in (*strings, "".join(strings), "\n".join(strings)):
        assert COUNTER.count(text, encoding) == len(plain(encoding).encode_ordinary(text)), text


@pytest.mark.shared_data
@needs_shared_data
@pytest.mark.parametrize("encoding", VOCABULARIES)
def test_real_documents_of_many_scripts_are_counted_like_tiktoken_does(
    encoding: str, plain: Callable[[str], tiktoken.Encoding]
) -> None:
    files = sorted((SHARED_DATA / "peps").glob("pep-*"))[:25]
    files += sorted((SHARED_DATA / "collections" / "xquad").glob("*/corpus.jsonl"))
    assert len(files) == 37
    for file in files:
        text = file.read_text("utf-8")
        assert COUNTER.count(text, encoding) == len(plain(encoding).encode_ordinary(text)), file
