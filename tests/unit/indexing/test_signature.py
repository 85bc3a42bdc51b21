"""Signatures: the same everywhere, near for texts that are nearly the same, far for others."""

import hashlib
import random
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.indexing.preparation import ENGINE, SourcePreparer
from app.indexing.signature import FEWEST_FEATURES, SHINGLE_TOKENS, sign
from app.indexing.source import SourceDraft
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier

WORDS = [f"word{number}" for number in range(400)]
JAPANESE = "予約はゲストが前日まで取り消すことができます。返金は五日以内に行われます。"
FEWEST_TOKENS = FEWEST_FEATURES + SHINGLE_TOKENS - 1


def text_of(words: int, seed: int = 1) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def different_bits(first: str, second: str) -> int:
    one, other = sign(first), sign(second)
    assert one is not None
    assert other is not None
    return ((one ^ other) % 2**64).bit_count()


def test_known_texts_have_known_signatures() -> None:
    """They are stored: whoever changes one raises SIGNATURE_VERSION."""
    assert sign(" ".join(WORDS[:60])) == 8159801258056217485
    assert sign("Über die Straße: " + " ".join(WORDS[:40]) + " ½ – ١٢") == -5494549758821721195
    assert sign(JAPANESE) == 5081258184339007890


def reference(text: str) -> int:
    """The signature of a text of words alone, feature by feature, in Python's own integers."""
    keys = [
        int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") for word in text.split()
    ]
    features = set()
    for first, second, third in zip(keys, keys[1:], keys[2:], strict=False):
        mixed = first * 0x9E3779B97F4A7C15 + second * 0xC2B2AE3D27D4EB4F
        mixed = (mixed + third * 0x165667B19E3779F9) % 2**64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        features.add(mixed ^ mixed >> 31)
    times = [sum(feature >> bit & 1 for feature in features) for bit in range(64)]
    bits = sum(1 << bit for bit in range(64) if 2 * times[bit] > len(features))
    return bits - 2**64 if bits >= 2**63 else bits


@pytest.mark.parametrize("words", [FEWEST_TOKENS, 60, 61, 400, 20_000])
def test_a_bit_is_set_where_most_features_have_it(words: int) -> None:
    text = " ".join(f"word{number % 15_000}" for number in range(words))
    assert sign(text) == reference(text)


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = "import sys; from app.indexing.signature import sign; print(sign(sys.argv[1]))"
    text = text_of(80) + " ünïcödé 日本語"
    for seed in ("0", "4711"):
        printed = subprocess.run(
            [sys.executable, "-c", program, text],
            env={"PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(printed.stdout) == sign(text)


@given(text=st.text())
def test_any_text_has_a_signed_64_bit_signature_or_none(text: str) -> None:
    signature = sign(text)
    assert signature == sign(text)
    assert signature is None or -(2**63) <= signature < 2**63


def test_a_text_too_short_to_compare_has_none() -> None:
    tokens = WORDS[:FEWEST_TOKENS]
    assert sign(" ".join(tokens)) is not None
    assert sign(" ".join(tokens[1:])) is None
    # Only distinct runs of tokens count.
    assert sign("the same again " * 100) is None
    assert sign("") is None


@given(seed=st.integers(), gaps=st.lists(st.sampled_from((" ", "\n", "\t", "  \r\n\n"))))
def test_white_space_does_not_count(seed: int, gaps: list[str]) -> None:
    words = text_of(60, seed).split()
    spaced = "".join(
        word + (gaps[at % len(gaps)] if gaps else " ") for at, word in enumerate(words)
    )
    assert sign(f"\n\n{spaced}\n") == sign(" ".join(words))


def test_canonically_equivalent_texts_have_one_signature() -> None:
    text = "Café, naïve coöperation, Ångström, Việt Nam, प्रश्न " * 3 + text_of(40)
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert sign(composed) == sign(decomposed)


def test_one_changed_word_of_many_differs_in_few_bits_and_other_texts_in_many() -> None:
    near, far = [], []
    for seed in range(60):
        words = text_of(200, seed).split()
        changed = [*words[:77], "another", *words[78:]]
        near.append(different_bits(" ".join(words), " ".join(changed)))
        far.append(different_bits(" ".join(words), text_of(200, seed + 1000)))
    # 64 * sqrt(6 / 200) / pi = 3.5, and 32.
    assert 2.5 < sum(near) / 60 < 4.5
    assert max(near) <= 12
    assert 30 < sum(far) / 60 < 34
    assert min(far) >= 16


@pytest.mark.parametrize(
    ("first", "second"),
    [("a == b", "a != b"), ("x < 1", "x <= 1"), ("f(a, b)", "f[a, b]"), ("Foo", "foo")],
)
def test_symbols_and_case_count(first: str, second: str) -> None:
    around = text_of(20)
    assert different_bits(f"{around} {first} {around}", f"{around} {second} {around}") > 0


def test_one_letter_of_an_unspaced_text_is_a_small_change() -> None:
    text = JAPANESE * 2
    changed = text.replace("五", "六", 1)
    assert 0 < different_bits(text, changed) < 16


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, " " * 1_000_000, "é" * 300_000, "漢" * 200_000, "-= " * 300_000]
)
def test_hostile_lengths_are_signed_or_refused_like_others(text: str) -> None:
    assert sign(text) is None
    assert sign(text + " " + text_of(60)) is not None


def test_a_prepared_chunk_carries_its_signature_and_the_engine_names_the_version() -> None:
    preparer = SourcePreparer(400, lambda text: len(text.split()), lambda _: {})
    label = Label("p", KnowledgeClass.DOCUMENTS, Classification.PUBLIC, TrustTier.TRUSTED_KNOWLEDGE)
    (chunk,) = preparer.prepare(SourceDraft("a", "1", label, text=text_of(60))).chunks
    assert chunk.signature == sign(chunk.text)
    assert ENGINE.endswith(", signature 1")
