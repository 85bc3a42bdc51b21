import hashlib
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.indexing.analysis import ANALYZER_VERSION, WORD_LIMIT, analyze, term_key
from app.indexing.stemming import STEMMER_VERSION

texts = st.text(st.characters(codec="utf-8"))
languages = st.sampled_from([None, "en", "de-CH", "pt-BR", "ru", "tr", "ar", "hi", "zh", "xx", ""])


@pytest.mark.parametrize(
    ("word", "terms"),
    [
        ("camelCase", ("camel", "case", "camelcas")),
        ("PascalCase", ("pascal", "case", "pascalcas")),
        ("HTTPServer", ("http", "server", "httpserver")),
        ("snake_case", ("snake", "case")),
        ("SCREAMING_SNAKE", ("scream", "snake")),
        ("__init__", ("init",)),
        ("utf8", ("utf", "8", "utf8")),
        ("parseJSON2Xml", ("pars", "json", "2", "xml", "parsejson2xml")),
        ("Straße", ("strass",)),
        ("3.11", ("3", "11")),
    ],
)
def test_an_identifier_is_indexed_by_its_parts_and_as_a_whole(
    word: str, terms: tuple[str, ...]
) -> None:
    assert analyze(word, "en") == terms


@pytest.mark.parametrize(
    ("document", "query"),
    [
        ("def getUserById(id): ...", "user by id"),
        ("getUserById", "get_user_by_id"),
        ("JavaScript", "javascript"),
        ("日本語のテスト", "テスト"),
        ("日本語のテスト", "日本"),
        ("猫が好きです", "猫"),
        ("ﾃｽﾄ", "テスト"),
        ("การทดสอบระบบ", "ทดสอบ"),
        ("ພາສາລາວ", "ລາວ"),
        ("ភាសាខ្មែរ", "ខ្មែរ"),
        ("မြန်မာဘာသာ", "ဘာသာ"),
        ("학교에서 공부했다", "학교"),
        ("كتب المعلمون في المدرسة", "المدرسة معلمون"),
        ("भारत की किताबें", "किताब"),
        ("изучение языков", "языки"),
        ("सन् २०१६", "2016"),
        ("می\u200cخواهم", "میخواهم"),
        ("hand\u00adbook", "handbook"),
        ("ﬁle №5", "file no5"),
    ],
)
def test_every_term_of_the_query_is_in_the_document(document: str, query: str) -> None:
    wanted = set(analyze(query, None))
    assert wanted
    assert wanted <= set(analyze(document, None))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("水", ("水",)),
        ("の", ("の",)),
        ("ก", ("ก",)),
        ("물", ("물",)),
        ("日本", ("日", "本", "日本")),
        ("テスト", ("テス", "スト")),
        ("Python3で書く", ("python", "3", "python3", "書", "で書", "書く")),
        # A vowel or tone mark belongs to its consonant.
        ("สวัสดี", ("สวั", "วัส", "สดี")),
    ],
)
def test_unspaced_script_is_indexed_by_pairs_and_han_singly_too(
    text: str, terms: tuple[str, ...]
) -> None:
    assert analyze(text, None) == terms


def test_combining_marks_are_part_of_a_word() -> None:
    assert analyze("हिन्दी", "xx") == analyze("  हिन्दी!", "xx")
    assert len(analyze("हिन्दी", None)) == 1


def test_terms_keep_the_order_and_the_repetitions_of_the_text() -> None:
    assert analyze("dog cat dog\ncat", "en") == ("dog", "cat", "dog", "cat")


@pytest.mark.parametrize("language", [None, "en", "fr", "xx"])
def test_composed_and_decomposed_letters_give_the_same_terms(language: str | None) -> None:
    composed = unicodedata.normalize("NFC", "café Ångström がぎ 각")
    decomposed = unicodedata.normalize("NFD", composed)
    assert composed != decomposed
    assert analyze(composed, language) == analyze(decomposed, language)
    assert len(analyze("cafe\u0301", language)) == 1


@given(texts, languages)
def test_canonically_equivalent_texts_have_equal_terms(text: str, language: str | None) -> None:
    nfc, nfd = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert analyze(nfc, language) == analyze(nfd, language)


@given(texts, texts, languages)
def test_lines_are_analysed_independently_of_each_other(
    first: str, second: str, language: str | None
) -> None:
    together = analyze(f"{first}\n{second}", language)
    assert together == analyze(first, language) + analyze(second, language)


@given(texts, languages)
def test_a_term_is_never_empty_blank_or_beyond_the_limit(text: str, language: str | None) -> None:
    for term in analyze(text, language):
        assert term.strip()
        assert len(term) <= 3 * WORD_LIMIT


@pytest.mark.parametrize("word", ["a" * 1_000, "A" * 1_000, "é" * 1_000, "7" * 1_000])
def test_a_word_beyond_the_limit_is_cut_into_words_of_that_length(word: str) -> None:
    lengths = [len(term) for term in analyze(word, "xx")]
    assert lengths == [WORD_LIMIT] * (1_000 // WORD_LIMIT) + [1_000 % WORD_LIMIT]


def test_words_joined_by_underscores_have_no_common_limit() -> None:
    name = "_".join(f"word{letter * 9}" for letter in "abcdefghijklmnopqrstuvwxyz")
    assert len(name) > 2 * WORD_LIMIT
    assert analyze(name, "xx") == analyze(name.replace("_", " "), "xx")


@pytest.mark.parametrize(
    ("language", "word", "stem"),
    [
        ("en", "running", "run"),
        ("EN", "running", "run"),
        ("en-GB", "running", "run"),
        ("en_GB", "running", "run"),
        ("de-CH", "Häuser", "haus"),
        ("pt-BR", "cidades", "cidad"),
        ("es", "ciudades", "ciudad"),
        ("ru", "языками", "язык"),
        ("sr-Latn", "godinama", "godin"),
        # By script where the language says nothing about the word.
        (None, "running", "run"),
        ("", "running", "run"),
        ("xx", "running", "run"),
        ("ru", "running", "run"),
        ("ja", "running", "run"),
        ("de", "языками", "язык"),
        (None, "языками", "язык"),
        # No stemmer for the script either.
        (None, "שלום", "שלום"),
    ],
)
def test_words_are_stemmed_by_language_and_else_by_script(
    language: str | None, word: str, stem: str
) -> None:
    assert analyze(word, language) == (stem,)


def test_english_stop_words_are_dropped_only_where_the_text_may_be_english() -> None:
    assert analyze("the house is on the hill", "en") == ("hous", "hill")
    assert analyze("the house", None) == ("hous",)
    assert "was" in analyze("was ist das", "de")


@pytest.mark.parametrize(
    "spelling", ["İstanbul", "istanbul", "ISTANBUL", "Istanbul", "i\u0307stanbul"]
)
@pytest.mark.parametrize("language", ["tr", "en", None])
def test_turkish_capitals_meet_small_letters(spelling: str, language: str | None) -> None:
    assert analyze(spelling, language) == analyze("istanbul", language)


@pytest.mark.parametrize(
    "text", ["", " \n\t", "\u200b\u200d", "^" * 50, "❤️ — 👨‍👩‍👧", "\u0301", "___"]
)
def test_a_text_without_words_has_no_terms(text: str) -> None:
    assert analyze(text, "en") == ()


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "most_terms"),
    [
        ("a" * 1_000_000, 7_813),
        ("aA" * 200_000, 250_000),
        ("a_" * 200_000, 200_000),
        ("a1" * 200_000, 450_000),
        (" " * 1_000_000, 0),
        ("^" * 1_000_000, 0),
        ("漢" * 300_000, 600_000),
        # Canonical ordering of such runs takes quadratic time.
        ("a" + "\u0301\u0323" * 300_000, 1),
        ("カ" + "\uff9e\u0301" * 300_000, 1),
        ("ก" + "\u0e48\u0e38" * 300_000, 1),
        (" ".join(hashlib.md5(b"%d" % n).hexdigest().upper() for n in range(15_000)), 600_000),
        (" ".join(f"{n:b}".translate({48: "o", 49: "l"}) for n in range(120_000)), 120_000),
    ],
    ids=lambda value: value[:6] if isinstance(value, str) else None,
)
def test_time_and_terms_stay_in_proportion_to_any_text(text: str, most_terms: int) -> None:
    started = time.process_time()
    terms = analyze(text, None)
    # Quadratic time would be minutes.
    assert time.process_time() - started < 20
    assert len(terms) <= most_terms


def test_threads_stemming_at_once_get_the_terms_of_one_thread() -> None:
    # Words of this test alone, so that no thread finds them remembered.
    words = [f"relation{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}alities" for n in range(676)]
    start = threading.Barrier(8)

    def analyze_all(seed: int) -> dict[str, tuple[str, ...]]:
        start.wait()
        turned = words[seed * 80 :] + words[: seed * 80]
        return {
            f"{word} {language}": analyze(word, language)
            for word in turned
            for language in ("en", "de", "es", "xx")
        }

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(analyze_all, range(8)))
    assert all(result == results[0] for result in results)
    assert results[0]["relationabalities en"] == ("relationab",)


def test_the_key_of_a_term_is_the_head_of_its_sha_256_as_a_signed_integer() -> None:
    # The SHA-256 of nothing begins with e3b0c44298fc1c14.
    assert term_key("") == 0xE3B0C44298FC1C14 - 2**64
    assert term_key("abc") == 0xBA7816BF8F01CFEA - 2**64
    assert term_key("hello") == 0x2CF24DBA5FB0A30E


@given(texts)
def test_the_key_of_any_term_fits_a_signed_bigint(term: str) -> None:
    assert -(2**63) <= term_key(term) < 2**63


def test_the_version_names_what_terms_depend_on() -> None:
    assert STEMMER_VERSION in ANALYZER_VERSION
    assert unicodedata.unidata_version in ANALYZER_VERSION


def test_terms_change_only_together_with_the_version() -> None:
    """When this fails for good reason, raise ANALYZER_VERSION and renew the digest."""
    samples = [
        ("en", "Reservations are cancelled by cancelReservation2(userId) in HTTPServer_v3."),
        ("de", "Die Häuser der größten Städte wurden gezählt."),
        ("ru", "Исследования показывают значительные различия между языками Python."),
        ("tr", "İstanbul'daki evlerin ISITMA sistemleri."),
        ("hi", "भारत की नदियाँ और पहाड़ियाँ १२३"),
        ("ar", "المدارس والجامعات في المدينة"),
        ("el", "Οι μεγαλύτερες πόλεις της Ελλάδας"),
        ("th", "กรุงเทพมหานครเป็นเมืองหลวง"),
        ("zh", "北京是中国的首都。"),
        ("ja", "東京タワーへ行きました。"),
        ("ko", "서울에서 만났습니다"),
        (None, "naïve café ﬁnancial ①② ½ Ⅷ"),
    ]
    terms = "\n".join(" ".join(analyze(text, language)) for language, text in samples)
    digest = hashlib.sha256(terms.encode()).hexdigest()
    assert (ANALYZER_VERSION.partition("+")[0], digest) == (
        "1",
        "a7592fcd659fe2ca277f9fd692b74a3e87b606194700fed7ff8428d31c2e8b57",
    ), terms
