"""Chunks and scopes for tests of the retrieval stage; what is not named is ordinary."""

from dataclasses import replace

from app.canonical import digest_text
from app.retrieval.candidate import Candidate, Chunk, Retrieval
from app.retrieval.retriever import IndexView
from app.scope.access import AccessScope, Predicate, SourcePatterns
from app.scope.label import Label
from app.scope.vocabulary import EVERY_CLASS, Classification, KnowledgeClass, TrustTier

LABEL = Label(
    "booking", KnowledgeClass.DOCUMENTS, Classification.INTERNAL, TrustTier.TRUSTED_KNOWLEDGE
)
SCOPE = AccessScope(
    subject="ana",
    agent=None,
    groups=(),
    predicate=Predicate(
        tenant="acme",
        projects=("booking",),
        allow_principals=("user:ana",),
        deny_principals=("user:ana",),
        classes=EVERY_CLASS,
        max_classification=Classification.INTERNAL,
        min_trust_tier=None,
        sources=SourcePatterns(deny=("drafts/*",)),
    ),
)

VIEW = IndexView(
    index_version=7,
    last_chunk_key=70,
    label_keys=(1, 2),
    languages=("", "en"),
    chunks=10,
    terms=100,
    visible_version="v1",
)


def chunk(
    source_id: str,
    ordinal: int = 0,
    *,
    text: str | None = None,
    project: str = "booking",
    label: Label = LABEL,
) -> Chunk:
    content = f"text of {project} {source_id} {ordinal}" if text is None else text
    return Chunk(
        tenant="acme",
        project=project,
        source_id=source_id,
        revision="1",
        chunk_id=str(ordinal),
        ordinal=ordinal,
        label=replace(label, project=project),
        content_hash=digest_text(content),
        text=content,
    )


def retrieval(*found: tuple[Chunk, int], version: str = "v1") -> Retrieval:
    """An answer as given, ranks in the order of the arguments."""
    return Retrieval(
        tuple(Candidate(one, score, rank) for rank, (one, score) in enumerate(found, start=1)),
        version,
    )
