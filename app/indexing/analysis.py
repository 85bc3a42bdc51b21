"""Text to index terms; the same function serves documents and queries.

Guarantees: every text without surrogates is accepted; the same text and language give the same
terms in every process and thread; time grows linearly with the text; canonically equivalent texts
(`café` in NFC and NFD) have equal terms, up to 30 combining marks in a row; a term has at most
3 x WORD_LIMIT characters. Space is bounded by the text and a fixed number of remembered words.

* Words are runs of letters, marks and digits after NFKC and case folding, stemmed (`stemming`).
* A word made of several is indexed in parts and whole: `HTTPServer` as http, server, httpserver;
  `utf8` as utf, 8, utf8. An underscore always separates: `user_id` is user, id.
* Scripts written without spaces, and Korean with its attached particles, are indexed by pairs of
  neighbouring characters, a character being a letter with its marks. Han characters, often words
  by themselves, are indexed singly too, and so is any character that stands alone.
* A word of more than WORD_LIMIT characters is indexed as consecutive words of that length.
  Of more than 30 combining marks in a row (the limit of UAX #15, stream-safe text), the rest is
  ignored: canonical ordering takes quadratic time on such a run.

Not handled: emoji, symbols and punctuation have no terms (`C++` is c); accents are kept (folding
them measured worse for Vietnamese and no better elsewhere); compound words are not taken apart; a
text of stop words alone has no terms.

ANALYZER_VERSION has to be raised with every change of the terms. It names the versions of the
stemmers and of Unicode as well, because terms depend on both.
"""

import hashlib
import unicodedata
from functools import lru_cache

import regex

from app.indexing.stemming import STEMMER_VERSION, stem

ANALYZER_VERSION = f"1+snowball{STEMMER_VERSION}+unicode{unicodedata.unidata_version}"
WORD_LIMIT = 128

_REMEMBERED_WORDS = 1 << 16

UNSPACED = (
    r"[[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    r"&&[\p{L}\p{Nl}]]"
)
_SPACED = rf"[[\p{{L}}\p{{N}}]--{UNSPACED}]"
# UTS #18: letters, marks, digits and connectors.
_TOKEN = regex.compile(r"\w+")
_UNSPACED_LETTER = regex.compile(UNSPACED, regex.V1)
_PIECE = regex.compile(
    rf"(?:{UNSPACED}\p{{M}}*+)++|{_SPACED}[{_SPACED}\p{{M}}]{{0,{WORD_LIMIT - 1}}}+", regex.V1
)
_CHARACTER = regex.compile(r"\P{M}\p{M}*+")
_HAN_CHARACTER = regex.compile(r"\p{Han}\p{M}*+")
_PART = regex.compile(
    r"(?:\p{Lu}\p{M}*+)+(?!\p{Ll})"  # HTTP of HTTPServer
    r"|\p{Lu}?[^\p{Lu}\p{N}]++"  # Server, name
    r"|(?:\p{N}\p{M}*+)++"
)
# The zero-width space stays: it separates words in scripts that show no spaces.
_IGNORABLE = regex.compile(r"[\p{Default_Ignorable_Code_Point}--\u200b]++", regex.V1)
# The two half-width voicing marks become combining marks only in NFKC.
_LONG_RUN_OF_MARKS = regex.compile(r"([\p{M}\uff9e\uff9f]{30})[\p{M}\uff9e\uff9f]++")


def analyze(text: str, language: str | None) -> tuple[str, ...]:
    """Terms in the order of the text, with repetition.

    `language` is a BCP 47 tag of which the primary subtag counts; None, or a language without a
    stemmer: words are stemmed by their script. The parts of a word come before the whole, the Han
    characters of a run before its pairs.
    """
    if not text.isascii():
        text = normalized(text)
    primary = "" if language is None else language.replace("_", "-").partition("-")[0].lower()
    terms: list[str] = []
    for token in _TOKEN.findall(text):
        if len(token) <= WORD_LIMIT and (token.isascii() or not _UNSPACED_LETTER.search(token)):
            terms.extend(_remembered_terms(token, primary))
        else:
            terms.extend(_token_terms(token, primary))
    return tuple(terms)


def term_key(term: str) -> int:
    """The first 8 bytes of SHA-256 of the term's UTF-8, as a signed big-endian integer.

    SHA-256, because PostgreSQL computes it too, so a key can be checked where it is stored.
    """
    return int.from_bytes(hashlib.sha256(term.encode()).digest()[:8], "big", signed=True)


def normalized(text: str) -> str:
    text = _IGNORABLE.sub("", text)
    text = _LONG_RUN_OF_MARKS.sub(r"\1", text)
    return unicodedata.normalize("NFKC", text)


def _token_terms(token: str, language: str) -> tuple[str, ...]:
    terms: list[str] = []
    for piece in _PIECE.findall(token):
        if _UNSPACED_LETTER.match(piece):
            terms.extend(_pair_terms(piece))
        else:
            terms.extend(_word_terms(piece, language))
    return tuple(terms)


# Running text repeats its words, but not its runs of unspaced script.
_remembered_terms = lru_cache(maxsize=_REMEMBERED_WORDS)(_token_terms)


def _pair_terms(run: str) -> list[str]:
    characters = _CHARACTER.findall(run)
    if len(characters) == 1:
        return [run]
    terms: list[str] = _HAN_CHARACTER.findall(run)
    terms.extend(map(str.__add__, characters, characters[1:]))
    return terms


def _word_terms(word: str, language: str) -> list[str]:
    parts = [word] if word.isalpha() and word.islower() else _PART.findall(word)
    if len(parts) > 1:
        parts.append(word)
    return [term for part in parts if (term := _term(part, language))]


def _term(part: str, language: str) -> str:
    if part.isdecimal() and not part.isascii():
        return "".join(str(unicodedata.decimal(digit)) for digit in part)
    # Turkish capitals: İ folds to i and a dot above; I folds to i where the word has ı. Typed
    # in small letters, or by a keyboard without them, both have to meet the same term.
    folded = part.casefold().replace("i\u0307", "i")
    return stem(folded, language).replace("ı", "i")
