"""A retriever that lies, asked through the whole service: only truth gets into a snapshot."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

import pytest

from app.api.parts import Parts
from app.canonical import digest_text
from app.retrieval.candidate import Candidate, Retrieval
from app.retrieval.fan_out import MAX_TEXT_CHARS
from app.retrieval.retriever import Retriever, ScopedQuery
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier
from tests.api.service import Api, Json, assert_problem, question, source, source_ids

Lie = Callable[[Retrieval], Retrieval]


@dataclass(frozen=True)
class LyingRetriever:
    """The real retriever with its answers changed."""

    real: Retriever
    lie: Lie

    @property
    def name(self) -> str:
        return self.real.name

    async def retrieve(self, query: ScopedQuery) -> Retrieval:
        return self.lie(await self.real.retrieve(query))


@pytest.fixture
def lie_with(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Callable[[Lie], None]:
    """Let the lexical leg lie until the test ends."""
    retrievers = cast("dict[str, Retriever]", parts.services.retrievers)
    real = retrievers["lexical"]

    def start(lie: Lie) -> None:
        monkeypatch.setitem(retrievers, "lexical", LyingRetriever(real, lie))

    return start


def _of_b(change: Callable[[Candidate], Candidate]) -> Lie:
    """Change the candidates of the source `b.md` and leave the others true."""
    return lambda answer: replace(
        answer,
        candidates=tuple(
            change(one) if one.chunk.source_id == "b.md" else one for one in answer.candidates
        ),
    )


def chunk(**members: Any) -> Lie:
    return _of_b(lambda one: replace(one, chunk=replace(one.chunk, **members)))


def label(**members: Any) -> Lie:
    return _of_b(
        lambda one: replace(
            one, chunk=replace(one.chunk, label=replace(one.chunk.label, **members))
        )
    )


def score(value: Any) -> Lie:
    return _of_b(lambda one: replace(one, score=value))


def _text(text: str) -> Lie:
    """A text with its true digest, of which nobody has counted the tokens."""
    return chunk(text=text, content_hash=digest_text(text), body_tokens={})


def _endless(answer: Retrieval) -> Retrieval:
    return chunk(text="a" * (MAX_TEXT_CHARS + 1))(answer)


OUT_OF_SCOPE: dict[str, Lie] = {
    "another tenant": chunk(tenant="another"),
    "a tenant that looks alike": chunk(tenant="tenаnt"),
    "another project": chunk(project="billing"),
    "a label of another project": label(project="billing"),
    "above the ceiling": label(classification=Classification.RESTRICTED),
    "another class": label(knowledge_class=KnowledgeClass.MEMORY),
    "below the floor of trust": label(trust_tier=TrustTier.UNTRUSTED_EXTERNAL),
    "an access list without the caller": label(allow=("user:bob", "group:ana")),
    "an access list of nobody": label(allow=()),
    "a denial": label(deny=("user:ana",)),
    "a source that the patterns leave out": chunk(source_id="drafts/b.md"),
}
CANNOT_BE: dict[str, Lie] = {
    "a text that is not its digest's": chunk(text="something else"),
    "no digest": chunk(content_hash="sha256:zz"),
    "half a surrogate pair for a text": chunk(text="\ud800"),
    "NUL in a text": chunk(text="\0", content_hash=digest_text("\0")),
    "a text without an end": _endless,
    "a score that is no number": score(math.nan),
    "an infinite score": score(math.inf),
    "a score of 1.0": score(1.0),
    "true for a score": score(True),
    "a number in quotes for a score": score("9"),
    "a score that JSON does not hold exactly": score(2**53),
    "a score of 400 digits": score(10**400),
    "no source id": chunk(source_id=None),
    "an empty source id": chunk(source_id=""),
    "a source id with NUL": chunk(source_id="b\0"),
    "half a surrogate pair for a source id": chunk(source_id="\ud800"),
    "a number for a source id": chunk(source_id=7),
    "a source id of 10 MB": chunk(source_id="b" * 10_000_000),
    "a number for a revision": chunk(revision=1),
    "no chunk id": chunk(chunk_id=None),
    "an array for a chunk id": chunk(chunk_id=["0"]),
    "an ordinal that is no number": chunk(ordinal=math.nan),
    "a number for a provenance": chunk(provenance=7),
    "a head revision without an end": chunk(head_revision="1" * 10_000),
    "a signature in quotes": chunk(signature="1"),
    "an expiry in quotes": chunk(expires_at="2030-01-01T00:00:00Z"),
    "an expiry without a zone": chunk(expires_at=datetime(2030, 1, 1)),  # noqa: DTZ001
    "no label": chunk(label=None),
    "half a surrogate pair in an access list": label(allow=("user:ana", "\ud800")),
    "NUL in a denial": label(deny=("\0",)),
    "a class that is no word of the contract": label(knowledge_class="novel"),
    "a class of another type": label(knowledge_class="documents"),
    "a tier of another type": label(trust_tier="user"),
    "tokens below nothing": chunk(body_tokens={"o200k_base": -5000}),
    "no tokens": chunk(body_tokens={"o200k_base": 0}),
    "tokens in quotes": chunk(body_tokens={"o200k_base": "9"}),
    "no counts of tokens": chunk(body_tokens=None),
    "no version": lambda answer: replace(answer, visible_version=cast("str", None)),
    "half a surrogate pair for a version": lambda answer: replace(answer, visible_version="\ud800"),
    "facts that no report can hold": lambda answer: replace(
        answer, facts=cast("Json", {"x": math.nan})
    ),
    "inputs that cannot be stored": lambda answer: replace(answer, inputs={"x": "\ud800"}),
    "no candidates": lambda answer: replace(answer, candidates=cast("tuple[Candidate]", None)),
    "other things than candidates": lambda answer: replace(
        answer, candidates=cast("tuple[Candidate]", ("b.md",))
    ),
    "no answer": lambda answer: cast("Retrieval", None),
}
REQUEST: Json = {
    "scope": {
        "maxClassification": "confidential",
        "classes": ["documents", "code"],
        "minTrustTier": "tool-result",
        "sources": {"deny": ["drafts/*"]},
        "projects": ["booking"],
    }
}


async def _filled(api: Api) -> None:
    await api.index(source("a.md", "cancel a booking"), source("b.md", "cancel another booking"))


async def _dropped(api: Api) -> float:
    """How many candidates were dropped so far, as the operator sees it."""
    text = (await api.client.get("/metrics")).text
    found = re.search(
        r'^ctxsnap_out_of_scope_candidates_total\{retriever="lexical"\} (\S+)$', text, re.MULTILINE
    )
    return float(found[1]) if found else 0


async def _is_true(api: Api, snapshot: Json) -> bool:
    """Whether every check holds, the stored labels and texts included."""
    verified = await api.read(f"/snapshots/{snapshot['hash']}/verify")
    return bool(verified["ok"])


async def test_what_is_out_of_scope_is_dropped_and_counted(
    api: Api, lie_with: Callable[[Lie], None]
) -> None:
    await _filled(api)
    assert source_ids(await api.assemble(question("cancel", **REQUEST))) == ["a.md", "b.md"]
    before = await _dropped(api)
    for name, lie in OUT_OF_SCOPE.items():
        lie_with(lie)
        snapshot = await api.assemble(question("cancel", **REQUEST))
        assert source_ids(snapshot) == ["a.md"], name
        assert snapshot["exclusions"] == [], name
    assert await _is_true(api, snapshot)
    assert await _dropped(api) == before + len(OUT_OF_SCOPE)


async def test_an_answer_that_cannot_be_is_a_failed_leg_and_nothing_is_stored(
    api: Api, lie_with: Callable[[Lie], None]
) -> None:
    await _filled(api)
    for name, lie in CANNOT_BE.items():
        lie_with(lie)
        answer = await api.post(question("cancel", **REQUEST))
        assert answer.status_code == 503, (name, answer.text)
        assert "lexical" in assert_problem(answer, 503, "retriever-unavailable")["detail"]
        assert answer.headers["retry-after"]
    assert (await api.read("/snapshots"))["snapshots"] == []


async def test_a_chunk_that_is_sent_a_thousand_times_stands_once_and_is_charged_once(
    api: Api, lie_with: Callable[[Lie], None]
) -> None:
    await _filled(api)
    asked = question("cancel", **REQUEST)
    honest = await api.assemble(asked)
    lie_with(lambda answer: replace(answer, candidates=answer.candidates * 1000))
    again = await api.post(asked, {"refresh": "true"})
    assert (again.status_code, again.json()) == (200, honest)


async def test_the_order_and_the_ranks_of_an_answer_are_not_believed(
    api: Api, lie_with: Callable[[Lie], None]
) -> None:
    await _filled(api)
    asked = question("cancel", **REQUEST)
    honest = await api.assemble(asked)
    lie_with(
        lambda answer: replace(
            answer, candidates=tuple(replace(one, rank=7) for one in answer.candidates[::-1])
        )
    )
    again = await api.post(asked, {"refresh": "true"})
    assert (again.status_code, again.json()) == (200, honest)


async def test_ten_megabytes_of_text_are_left_out_and_the_rest_is_kept(
    api: Api, lie_with: Callable[[Lie], None]
) -> None:
    await _filled(api)
    lie_with(_text("cancel " * (10_000_000 // 7)))
    snapshot = await api.assemble(question("cancel", **REQUEST))
    assert source_ids(snapshot) == ["a.md"]
    [excluded] = snapshot["exclusions"]
    assert (excluded["sourceId"], excluded["reason"]) == ("b.md", "budget")
    assert await _is_true(api, snapshot)


@pytest.mark.parametrize(
    "lie",
    [_text("an invented text"), chunk(source_id="never-indexed.md")],
    ids=["a text of its own making", "a source of its own making"],
)
async def test_what_a_retriever_makes_up_never_reaches_a_model(
    api: Api, lie_with: Callable[[Lie], None], lie: Lie
) -> None:
    """In scope by its own word, so that it is chosen; but texts come from the store alone."""
    await _filled(api)
    lie_with(lie)
    snapshot = await api.assemble(question("cancel", **REQUEST))
    path = f"/snapshots/{snapshot['hash']}"
    assert_problem(await api.get(f"{path}/prompt"), 404, "content-erased")
    texts = [one["text"] for one in (await api.read(f"{path}/contents"))["contents"]]
    assert sorted(texts, key=str) == [None, "cancel a booking"]


async def test_a_label_that_was_made_up_shows_nobody_a_text_and_does_not_verify(
    api: Api, lie_with: Callable[[Lie], None]
) -> None:
    """The stored label decides who reads back, whatever a retriever says."""
    await api.index(source("b.md", "cancel another booking", acl={"allow": ["user:bob"]}))
    seen: list[Retrieval] = []

    def overhear(answer: Retrieval) -> Retrieval:
        seen.append(answer)
        return answer

    lie_with(overhear)
    await api.assemble(question("cancel", **REQUEST), sub="bob")
    lie_with(lambda _: label(allow=None)(seen[0]))
    snapshot = await api.assemble(question("cancel", **REQUEST))
    assert source_ids(snapshot) == ["b.md"]
    for part in ("", "/prompt", "/contents", "/report", "/verify"):
        assert_problem(await api.get(f"/snapshots/{snapshot['hash']}{part}"), 404, "not-found")
    checks = (await api.read(f"/snapshots/{snapshot['hash']}/verify", sub="bob"))["checks"]
    assert [check["name"] for check in checks if not check["ok"]] == ["access"]
