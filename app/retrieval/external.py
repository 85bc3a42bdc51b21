"""Answers of retrievers that search outside of the built-in index.

Guarantees: what such a retriever answered is recorded whole, as far as the scope admits it, so
that a replay asks nobody; texts are in the record by their digests, and are kept beside it.
Tokens and signatures are taken from the text here, and not from the answer.

Not handled: whether the retriever applied the scope before it ranked. What it returns is
checked (`fan_out`), what it leaves out is its own word.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.canonical import Digest, JsonObject, JsonValue
from app.indexing.signature import sign
from app.retrieval.candidate import Candidate, Chunk, InvalidAnswerError, Retrieval
from app.retrieval.retriever import Retriever, ScopedQuery
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier

EXTERNAL = "external"
"""The member of a leg's report, and of its recorded answer, that tells of such a retriever."""

ChunkName = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ExternalRetriever:
    """Implements `Retriever`: the answers of another one, whose chunks are not in the index.

    Raises InvalidAnswerError for a chunk of more trust than `max_trust_tier`.
    """

    retriever: Retriever
    max_trust_tier: TrustTier

    @property
    def name(self) -> str:
        return self.retriever.name

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        answer = await self.retriever.retrieve(query)
        for one in answer.candidates:
            self._check_trust(one.chunk.label)
        candidates = await asyncio.to_thread(_ours, answer.candidates)
        # The order of an answer has no influence: chunks without an ordinal have their ids.
        candidates.sort(
            key=lambda one: (
                -one.score,
                one.chunk.tie_break,
                one.chunk.chunk_id,
                one.chunk.content_hash,
            )
        )
        return replace(answer, candidates=tuple(candidates), external=True)

    def _check_trust(self, label: Label) -> None:
        if label.trust_tier.rank < self.max_trust_tier.rank:
            raise InvalidAnswerError("a trust tier is above what the settings allow")
        is_policy = label.knowledge_class is KnowledgeClass.POLICY
        if is_policy and label.trust_tier is not TrustTier.SYSTEM_POLICY:
            raise InvalidAnswerError("a policy is not of the tier of policies")


def _ours(candidates: Sequence[Candidate]) -> list[Candidate]:
    """With what is to be taken from the text alone."""
    return [
        replace(
            one,
            chunk=replace(
                one.chunk,
                body_tokens={},
                signature=sign(one.chunk.text),
                external=True,
                media_type=None,
                language=None,
            ),
        )
        for one in candidates
    ]


@dataclass(frozen=True, slots=True)
class RecordedRetriever:
    """Implements `Retriever` in a replay, from a recorded answer and its texts by digest.

    Raises KeyError for a text that is missing.
    """

    name: str
    recorded: JsonObject
    texts: Mapping[str, str]

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        answer: Any = self.recorded[EXTERNAL]
        candidates = tuple(
            Candidate(_chunk(one, query.scope.tenant, self.texts), one["score"], rank)
            for rank, one in enumerate(answer["candidates"], start=1)
        )
        facts, version = answer["facts"], answer["visibleVersion"]
        return Retrieval(candidates, version, facts=facts, external=True)


def record(answer: Retrieval) -> JsonObject:
    """What `RecordedRetriever` is given in a replay."""
    return {
        EXTERNAL: {
            "visibleVersion": answer.visible_version,
            "facts": answer.facts,
            "candidates": [_recorded(one) for one in answer.candidates],
        }
    }


def is_external(recorded: JsonObject | None) -> bool:
    return recorded is not None and EXTERNAL in recorded


def recorded_digests(answers: Mapping[str, JsonObject]) -> frozenset[Digest]:
    """The texts of all recorded answers."""
    return frozenset(Digest(one["contentHash"]) for _, one in _candidates(answers))


def recorded_labels(answers: Mapping[str, JsonObject]) -> dict[tuple[str, *ChunkName], Label]:
    """The labels that were recorded, by retriever, project, source id and chunk id."""
    return {
        (name, one["label"]["project"], one["sourceId"], one["chunkId"]): _label(one["label"])
        for name, one in _candidates(answers)
    }


def external_legs(report: Mapping[str, Any]) -> frozenset[str]:
    """The retrievers of a report that search outside of the index."""
    return frozenset(one["name"] for one in report["retrievers"] if one.get(EXTERNAL) is True)


def leg_of(index_version: str) -> str:
    """The retriever that an item's `indexVersion` names."""
    return index_version.partition(":")[0]


def external_chunks(answers: Iterable[Retrieval | None]) -> tuple[Chunk, ...]:
    """All chunks that came from outside of the index."""
    return tuple(
        one.chunk
        for answer in answers
        if answer is not None and answer.external
        for one in answer.candidates
    )


def _candidates(answers: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, answer in answers.items():
        if is_external(answer):
            yield from ((name, one) for one in answer[EXTERNAL]["candidates"])


def _recorded(candidate: Candidate) -> JsonObject:
    chunk = candidate.chunk
    members: dict[str, JsonValue] = {
        "sourceId": chunk.source_id,
        "sourceRevision": chunk.revision,
        "chunkId": chunk.chunk_id,
        "ordinal": chunk.ordinal,
        "label": chunk.label.canonical(),
        "contentHash": chunk.content_hash,
        "score": candidate.score,
        "provenance": chunk.provenance,
        # Beyond what JSON holds exactly.
        "signature": None if chunk.signature is None else str(chunk.signature),
        "expiresAt": None if chunk.expires_at is None else chunk.expires_at.isoformat(),
        "headRevision": chunk.head_revision,
    }
    return {name: value for name, value in members.items() if value is not None}


def _chunk(one: Mapping[str, Any], tenant: str, texts: Mapping[str, str]) -> Chunk:
    label, expires_at, signature = _label(one["label"]), one.get("expiresAt"), one.get("signature")
    return Chunk(
        tenant=tenant,
        project=label.project,
        source_id=one["sourceId"],
        revision=one["sourceRevision"],
        chunk_id=one["chunkId"],
        ordinal=one["ordinal"],
        label=label,
        content_hash=Digest(one["contentHash"]),
        text=texts[one["contentHash"]],
        provenance=one.get("provenance"),
        expires_at=None if expires_at is None else datetime.fromisoformat(expires_at),
        head_revision=one.get("headRevision"),
        signature=None if signature is None else int(signature),
        external=True,
    )


def _label(document: Mapping[str, Any]) -> Label:
    allow = document["allow"]
    return Label(
        project=document["project"],
        knowledge_class=KnowledgeClass(document["class"]),
        classification=Classification(document["classification"]),
        trust_tier=TrustTier(document["trustTier"]),
        allow=None if allow is None else tuple(allow),
        deny=tuple(document["deny"]),
    )
