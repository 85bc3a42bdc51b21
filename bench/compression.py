"""What shortening adds to packing: the share of relevant texts in a budget, whole or shortened.

Candidates are the first 100 of exact BM25 over real collections, worth what their scores say, in
blocks as they are rendered. A text counts as present when any whole sentences of it are, which
says nothing about whether those are the ones that matter. The floor was chosen on first halves.

`python -m bench.compression` prints one line for each collection, half and floor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from app.adapters.tokens import TiktokenCounter
from app.indexing.analysis import analyze
from app.indexing.outline import Format
from app.packing.compression import shorten
from app.packing.filling import Entry, PackingRules
from app.packing.packer import pack
from app.packing.rendering import (
    Block,
    envelope_tokens,
    footer_tokens,
    framed_body,
    header_tokens,
)
from app.packing.value import values_of
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier
from bench.bm25 import Bm25Index, Collection, load_collection
from bench.packing import BUDGETS

FORMATS = {"scifact": Format.PLAIN, "cosqa": Format.CODE}
FLOORS = (None, 25, 50, 100, 200)
"""In per mille of a text's tokens; None: nothing is shortened."""

_DEPTH = 100
_COUNTER = TiktokenCounter()
_TIER = TrustTier.TRUSTED_KNOWLEDGE


@lru_cache(1 << 17)
def count_tokens(text: str) -> int:
    return _COUNTER.count(text, "o200k_base")


@dataclass(frozen=True, slots=True)
class Question:
    """A query's candidates, best first, with what their blocks cost around the text."""

    terms: frozenset[str]
    names: Sequence[str]
    texts: Sequence[str]
    entries: Sequence[Entry]
    wrapper_tokens: Sequence[int]
    relevant: frozenset[str]


def main() -> None:
    print("share of relevant texts at a budget of" + "".join(f"{one:>8,}" for one in BUDGETS))
    for name, format_ in FORMATS.items():
        collection = load_collection(Path("../shared/data/collections") / name)
        questions = list(_questions(collection))
        middle = len(questions) // 2
        for half, part in (("first", questions[:middle]), ("second", questions[middle:])):
            for floor in FLOORS:
                shares = [
                    np.mean([_share(one, budget, floor, format_) for one in part])
                    for budget in BUDGETS
                ]
                told = "whole only" if floor is None else f"floor {floor}"
                print(f"{name:<10}{half:<10}{told:<18}" + "".join(f"{x:>8.3f}" for x in shares))


def _questions(collection: Collection) -> Iterator[Question]:
    terms_of = partial(analyze, language=collection.language)
    index = Bm25Index.build(collection.docs, terms_of)
    texts = {doc.id: doc.text for doc in collection.docs}
    label = Label(collection.name, KnowledgeClass.DOCUMENTS, Classification.INTERNAL, _TIER)
    for query in collection.queries:
        found = index.scored(query.text, _DEPTH)
        if query.id not in collection.qrels or not found:
            continue
        best, least = found[0][1], found[-1][1]
        scores = [round((score - least) / (best - least or 1.0) * 10**9) for _, score in found]
        blocks = [Block(name, "1", "0", label, texts[name]) for name, _ in found]
        footer = footer_tokens(count_tokens)
        wrappers = [header_tokens(block, count_tokens) + footer for block in blocks]
        bodies = [count_tokens(framed_body(block.text)) for block in blocks]
        yield Question(
            terms=frozenset(terms_of(query.text)),
            names=[name for name, _ in found],
            texts=[block.text for block in blocks],
            entries=[
                Entry(wrapper + body, value, _TIER, label.knowledge_class, at)
                for at, (wrapper, body, value) in enumerate(
                    zip(wrappers, bodies, values_of(scores, "scores"), strict=True)
                )
            ],
            wrapper_tokens=wrappers,
            relevant=frozenset(collection.qrels[query.id]),
        )


def _share(question: Question, budget: int, floor: int | None, format_: Format) -> float:
    def shortened(at: int, room: int) -> int | None:
        wrapper = question.wrapper_tokens[at]
        body = question.entries[at].cost_tokens - wrapper
        found = shorten(
            question.texts[at],
            format_,
            question.terms,
            room_tokens=room - wrapper,
            floor_tokens=-(-body * (floor or 0) // 1000),
            terms_of=partial(analyze, language="en"),
            count_tokens=count_tokens,
        )
        return None if found is None else wrapper + found.body_tokens

    packing = pack(
        question.entries,
        budget,
        _envelopes(),
        PackingRules(),
        None if floor is None else shortened,
    )
    names = {question.names[at] for at in packing.chosen}
    return len(names & question.relevant) / len(question.relevant)


@lru_cache
def _envelopes() -> Mapping[TrustTier, int]:
    return {tier: envelope_tokens(tier, "text", count_tokens) for tier in TrustTier}


if __name__ == "__main__":
    main()
