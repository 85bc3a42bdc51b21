"""Snowball stems, chosen by a text's language and a word's script.

A word written in the script of its language gets that language's stemmer. Any other word, for
example a Latin name in a Russian text, and every word of a text whose language is not known or
has no stemmer gets the default of its script, so that such texts and queries still meet.

Not handled: guessing a language from the words, and languages that Snowball does not know.
"""

import threading
import unicodedata
from collections.abc import Mapping

import Stemmer

STEMMER_VERSION: str = Stemmer.version()

# Dropped from English text and from Latin text of no known language. Whether they are dropped
# changes the measured ranking by less than the noise, but theirs are the longest postings.
# The list is Lucene's.
# fmt: off
ENGLISH_STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is",
    "it", "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there",
    "these", "they", "this", "to", "was", "will", "with",
})
# fmt: on

_BY_LANGUAGE: Mapping[tuple[str, str], str] = {
    ("ar", "ARABIC"): "arabic",
    ("ca", "LATIN"): "catalan",
    ("cs", "LATIN"): "czech",
    ("da", "LATIN"): "danish",
    ("de", "LATIN"): "german",
    ("el", "GREEK"): "greek",
    ("en", "LATIN"): "english",
    ("eo", "LATIN"): "esperanto",
    ("es", "LATIN"): "spanish",
    ("et", "LATIN"): "estonian",
    ("eu", "LATIN"): "basque",
    ("fa", "ARABIC"): "persian",
    ("fi", "LATIN"): "finnish",
    ("fr", "LATIN"): "french",
    ("ga", "LATIN"): "irish",
    ("hi", "DEVANAGARI"): "hindi",
    ("hu", "LATIN"): "hungarian",
    ("hy", "ARMENIAN"): "armenian",
    ("id", "LATIN"): "indonesian",
    ("it", "LATIN"): "italian",
    ("lt", "LATIN"): "lithuanian",
    ("nb", "LATIN"): "norwegian",
    ("ne", "DEVANAGARI"): "nepali",
    ("nl", "LATIN"): "dutch",
    ("nn", "LATIN"): "norwegian",
    ("no", "LATIN"): "norwegian",
    ("pl", "LATIN"): "polish",
    ("pt", "LATIN"): "portuguese",
    ("ro", "LATIN"): "romanian",
    ("ru", "CYRILLIC"): "russian",
    ("sr", "CYRILLIC"): "serbian",
    ("sr", "LATIN"): "serbian",
    ("st", "LATIN"): "sesotho",
    ("sv", "LATIN"): "swedish",
    ("ta", "TAMIL"): "tamil",
    ("tr", "LATIN"): "turkish",
    ("yi", "HEBREW"): "yiddish",
}
_BY_SCRIPT: Mapping[str, str] = {
    "ARABIC": "arabic",
    "ARMENIAN": "armenian",
    "CYRILLIC": "russian",
    "DEVANAGARI": "hindi",
    "GREEK": "greek",
    "LATIN": "english",
    "TAMIL": "tamil",
}


class _Stemmers(threading.local):
    """One set per thread: a PyStemmer object keeps state while it stems."""

    def __init__(self) -> None:
        self.by_algorithm: dict[str, Stemmer.Stemmer] = {}

    def stem(self, word: str, algorithm: str) -> str:
        stemmer = self.by_algorithm.get(algorithm)
        if stemmer is None:
            # The analyzer remembers words itself, in bounded space shared by all threads.
            stemmer = self.by_algorithm[algorithm] = Stemmer.Stemmer(algorithm, 0)
        return str(stemmer.stemWord(word))


_stemmers = _Stemmers()


def stem(word: str, language: str) -> str:
    """The stem of a case-folded word, or "" for a stop word; `language` is a primary subtag."""
    script = _script(word)
    algorithm = _BY_LANGUAGE.get((language, script)) or _BY_SCRIPT.get(script)
    if algorithm is None:
        return word
    if algorithm == "english" and word in ENGLISH_STOP_WORDS:
        return ""
    return _stemmers.stem(word, algorithm)


def _script(word: str) -> str:
    """The script of the word's first letter as the Unicode character names spell it."""
    for character in word:
        if character.isalpha():
            return unicodedata.name(character, "").partition(" ")[0]
    return ""
