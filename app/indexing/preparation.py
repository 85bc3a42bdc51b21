"""From a source as written to what is stored: cut, analysed, counted. Pure and blocking."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.canonical import digest_text
from app.indexing.analysis import ANALYZER_VERSION, analyze, term_key
from app.indexing.chunking import CHUNKER_VERSION, chunk
from app.indexing.signature import SIGNATURE_VERSION, sign
from app.indexing.source import ChunkDraft, PreparedChunk, PreparedSource, SourceDraft

ENGINE = f"analyzer {ANALYZER_VERSION}, chunker {CHUNKER_VERSION}, signature {SIGNATURE_VERSION}"
"""Recorded with every source, index version and snapshot: another engine, another result."""


@dataclass(frozen=True, slots=True)
class SourcePreparer:
    """Prepares sources; `count_tokens` sizes chunks, `count_body` what a fenced text costs.

    Both are exact and thread-safe; `count_body` answers per encoding.
    """

    max_chunk_tokens: int
    count_tokens: Callable[[str], int]
    count_body: Callable[[str], Mapping[str, int]]

    def prepare(self, draft: SourceDraft) -> PreparedSource:
        """Deterministic for equal drafts. Time grows with the text's length."""
        return PreparedSource(
            draft=draft,
            chunks=tuple(self._prepare_chunk(piece, draft.language) for piece in self._cut(draft)),
            engine=ENGINE,
        )

    def _cut(self, draft: SourceDraft) -> tuple[ChunkDraft, ...]:
        if draft.chunks is not None:
            return draft.chunks
        pieces = chunk(
            draft.text or "",
            draft.media_type,
            max_tokens=self.max_chunk_tokens,
            count_tokens=self.count_tokens,
        )
        return tuple(ChunkDraft(str(at), text) for at, text in enumerate(pieces))

    def _prepare_chunk(self, piece: ChunkDraft, language: str | None) -> PreparedChunk:
        frequencies: Counter[int] = Counter()
        for term, times in Counter(analyze(piece.text, language)).items():
            frequencies[term_key(term)] += times
        return PreparedChunk(
            chunk_id=piece.chunk_id,
            text=piece.text,
            content_hash=digest_text(piece.text),
            body_tokens=self.count_body(piece.text),
            terms=tuple(sorted(frequencies.items())),
            length=frequencies.total(),
            signature=sign(piece.text),
        )
