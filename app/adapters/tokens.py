r"""Token counts by tiktoken: exact, offline, in bounded time.

Guarantees: the same number as `len(tiktoken.get_encoding(name).encode_ordinary(text))`
wherever that returns; no network, environment variable or cache folder is used, since the
rank files travel in `encodings/` and their SHA-256 is checked; the GIL is free while the
tokenizer works; no text makes tiktoken panic.

tiktoken's own patterns take white space by `\s+(?!\S)`, for which its regex engine keeps a
stack entry per character: a million of them overflow the stack, which surfaces as a panic
that is no `Exception`. The patterns below say the same with an entry per `_STRIDE`
characters. They run in tiktoken's engine and thus use its own Unicode tables; splitting
with another engine would be inexact for characters of newer Unicode versions.

Not handled: special tokens as such (the text is always plain), texts above
`MAX_TEXT_CHARS`, and encodings other than those below. A single unbroken piece of n bytes
costs O(n log n) time and some 50 n bytes of memory, and cannot be interrupted.
"""

import hashlib
from base64 import b64decode
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from threading import Lock
from typing import Final

from tiktoken import Encoding
from tiktoken.model import (
    MODEL_PREFIX_TO_ENCODING,
    MODEL_TO_ENCODING,
    encoding_name_for_model,
)

from app.errors import ConfigurationError, InvalidRequestError, TooLargeError

MAX_TEXT_CHARS: Final = 64 * 1024 * 1024
_STRIDE: Final = 256  # MAX_TEXT_CHARS / _STRIDE entries stay well below the engine's 1,000,000

_SHORT_CHARS: Final = 300
_REMEMBERED_TEXTS: Final = 1 << 14
"""Of short texts: a chunk has the same header each time it is found, and it is found often."""

_WHITE_SPACE: Final = (
    r"\s*[\r\n]+",
    # A run at the end of the text is one piece; elsewhere its last character is left to
    # what follows. Both together are `\s+(?!\S)`.
    r"\s+\z",
    rf"(?:\s{{{_STRIDE}}}(?=\s))*(?:\s(?=\s))+",
    r"\s",
)
_CL100K_PATTERN: Final = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        *_WHITE_SPACE,
    )
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K_PATTERN: Final = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        *_WHITE_SPACE,
    )
)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """How text is split into pieces, and the file of the ranks that merge a piece's bytes."""

    name: str
    pattern: str
    rank_file: str
    rank_file_sha256: str


_CL100K: Final = _Vocabulary(
    name="cl100k_base",
    pattern=_CL100K_PATTERN,
    rank_file="9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    rank_file_sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
)
_O200K: Final = _Vocabulary(
    name="o200k_base",
    pattern=_O200K_PATTERN,
    rank_file="fb374d419588a4632f3f557e76b4b70aebbca790",
    rank_file_sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
)
# o200k_harmony differs from o200k_base in special tokens alone.
_VOCABULARIES: Final = {"cl100k_base": _CL100K, "o200k_base": _O200K, "o200k_harmony": _O200K}


def _load(vocabulary: _Vocabulary, folder: Traversable) -> Encoding:
    file = folder / vocabulary.rank_file
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"The rank file {file} cannot be read: {error}.") from error
    if hashlib.sha256(content).hexdigest() != vocabulary.rank_file_sha256:
        raise ConfigurationError(
            f"The rank file {file} of {vocabulary.name} is damaged: its SHA-256 must be "
            f"{vocabulary.rank_file_sha256}."
        )
    ranks: dict[bytes, int] = {}
    for line in content.splitlines():
        token, rank = line.split()
        ranks[b64decode(token)] = int(rank)
    return Encoding(
        vocabulary.name,
        pat_str=vocabulary.pattern,
        mergeable_ranks=ranks,
        # Never allowed in a text; but without any special token tiktoken's search for
        # them would match the empty string everywhere.
        special_tokens={"<|endoftext|>": len(ranks)},
    )


class TiktokenCounter:
    """A `TokenCounter`; each vocabulary is loaded once, when first needed (0.3 to 0.8 s)."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("app.adapters") / "encodings"
        self._loaded: dict[str, Encoding] = {}
        self._lock = Lock()
        self._remembered = lru_cache(maxsize=_REMEMBERED_TEXTS)(self._count)

    @property
    def encodings(self) -> tuple[str, ...]:
        return tuple(sorted(_VOCABULARIES))

    def count(self, text: str, encoding: str) -> int:
        counted = self._remembered if len(text) <= _SHORT_CHARS else self._count
        return counted(text, encoding)

    def _count(self, text: str, encoding: str) -> int:
        tokenizer = self._tokenizer(encoding)
        if len(text) > MAX_TEXT_CHARS:
            raise TooLargeError(
                f"A text of {len(text)} characters is too long to count: "
                f"the limit is {MAX_TEXT_CHARS}."
            )
        try:
            # An array, not a list: building millions of Python integers would hold the GIL.
            return tokenizer.encode_to_numpy(text, disallowed_special=()).size
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"The text holds a lone surrogate at character {error.start}, "
                f"which UTF-8 cannot express."
            ) from error

    def encoding_for_model(self, model: str) -> str:
        try:
            encoding = encoding_name_for_model(model)
        except KeyError:
            encoding = None
        if encoding not in _VOCABULARIES:
            raise InvalidRequestError(
                f"The encoding of model {model!r} is not known here; known models: "
                f"{', '.join(_known_models())}. Or name budget.encoding instead.",
                pointers=("/budget/model",),
            )
        return encoding

    def _tokenizer(self, encoding: str) -> Encoding:
        vocabulary = _VOCABULARIES.get(encoding)
        if vocabulary is None:
            raise InvalidRequestError(
                f"Encoding {encoding!r} is not known here; known encodings: "
                f"{', '.join(self.encodings)}.",
                pointers=("/budget/encoding",),
            )
        with self._lock:
            tokenizer = self._loaded.get(vocabulary.name)
            if tokenizer is None:
                tokenizer = self._loaded[vocabulary.name] = _load(vocabulary, self._folder)
        return tokenizer


def _known_models() -> tuple[str, ...]:
    """Names, and beginnings of names marked by `*`, sorted."""
    exact = {model for model, name in MODEL_TO_ENCODING.items() if name in _VOCABULARIES}
    begins = {f"{m}*" for m, name in MODEL_PREFIX_TO_ENCODING.items() if name in _VOCABULARIES}
    return tuple(sorted(exact | begins))
