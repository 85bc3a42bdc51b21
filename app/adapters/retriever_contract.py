"""The retriever contract of openapi/retriever.json: what is asked, and answers in its form.

Guarantees: the predicate goes out whole; an answer that is not in the contract's form is an
error and never an empty list. What it says is judged by `retrieval.fan_out` and
`retrieval.external`.
"""

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from app.canonical import Digest, JsonValue
from app.retrieval.candidate import Candidate, Chunk, InvalidAnswerError, Retrieval
from app.retrieval.retriever import ScopedQuery
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier

CONTRACT = 1
"""The version of the contract that is spoken here."""

MOST_DEADLINE_S = 60.0
"""No strategy may set a longer one."""


def query_document(
    query: ScopedQuery, max_trust_tier: TrustTier, now: float
) -> dict[str, JsonValue]:
    """A query of the contract; `now` is the event loop's time."""
    within_s = query.remaining_s(now, at_most=MOST_DEADLINE_S)
    return {
        "contract": CONTRACT,
        "query": query.text,
        "language": query.language,
        "k": query.limit,
        "predicate": query.scope.predicate.canonical(),
        "maxTrustTier": max_trust_tier.value,
        "deadlineMs": max(int(within_s * 1000), 1),
    }


def filters_from(body: bytes) -> frozenset[str]:
    """What a backend says it filters by; raises InvalidAnswerError for another form."""
    try:
        told = _Capabilities.model_validate_json(body)
    except ValidationError:
        raise InvalidAnswerError("the capabilities are not in the contract's form") from None
    if told.contract != CONTRACT:
        raise InvalidAnswerError(f"the contract is not {CONTRACT}")
    return frozenset(told.filters)


def retrieval_from(body: bytes) -> Retrieval:
    """The candidates as they were sent; raises InvalidAnswerError for another form."""
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError:
        # It would tell what was answered.
        raise InvalidAnswerError("the body is not in the contract's form") from None
    ranked = (one.to_core(rank) for rank, one in enumerate(answer.candidates, start=1))
    return Retrieval(tuple(ranked), answer.visible_version)


class _Part(BaseModel):
    """Members that the contract does not have are left alone: it may grow."""

    model_config = ConfigDict(strict=True, alias_generator=to_camel)


class _Capabilities(_Part):
    contract: int
    filters: tuple[str, ...]


class _Acl(_Part):
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


class _Candidate(_Part):
    tenant_id: str
    project: str
    source_id: str
    source_revision: str
    chunk_id: str
    ordinal: int = 0
    knowledge_class: KnowledgeClass = Field(alias="class")
    classification: Classification
    trust_tier: TrustTier
    acl: _Acl = _Acl()
    text: str
    content_hash: str
    score: int
    provenance: str | None = None

    def to_core(self, rank: int) -> Candidate:
        allow = self.acl.allow
        label = Label(
            project=self.project,
            knowledge_class=self.knowledge_class,
            classification=self.classification,
            trust_tier=self.trust_tier,
            allow=None if allow is None else tuple(sorted(set(allow))),
            deny=tuple(sorted(set(self.acl.deny))),
        )
        chunk = Chunk(
            tenant=self.tenant_id,
            project=self.project,
            source_id=self.source_id,
            revision=self.source_revision,
            chunk_id=self.chunk_id,
            ordinal=self.ordinal,
            label=label,
            content_hash=Digest(self.content_hash),
            text=self.text,
            provenance=self.provenance,
        )
        return Candidate(chunk, self.score, rank)


class _Answer(_Part):
    visible_version: str
    candidates: tuple[_Candidate, ...]
