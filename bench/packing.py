"""How good, how well proven and how fast packing is, and how much that is relevant it keeps.

Candidates are the first 100 (for speed up to 10,000) of exact BM25 over real collections, with
scores as the recipes fuse them, least 0 and best 10^9, and the tokens of their blocks. The
optimum comes from HiGHS, an exact solver for mixed-integer programmes. Relevance is measured on
the second half of each collection's queries; the rules for values were chosen on the first half.

`python -m bench.packing [quality|knapsack|speed|relevance]...` exits 1 when a floor is missed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import highspy
import numpy as np

from app.adapters.tokens import TiktokenCounter
from app.indexing.analysis import analyze
from app.packing.filling import ClassShare, Entry, Filling, PackingRules
from app.packing.packer import pack
from app.packing.rendering import framed_body
from app.packing.value import ValueRule, values_of
from app.scope.vocabulary import KnowledgeClass, TrustTier
from bench.bm25 import Bm25Index, Collection, load_collection

NAMES = ("scifact", "cosqa")
BUDGETS = (500, 1000, 2000, 4000)
SIZES = (100, 1000, 10_000)
SPEED_BUDGETS = (4_000, 8_000, 32_000, 200_000)
FLOOR_REAL, FLOOR_INSTANCE = 0.999, 0.995

_DEPTH = 100
_QUERIES = 25
_REPEATS = 15
_FRAME_TOKENS = 60
"""A block's header and footer, about."""
_ENVELOPES = dict.fromkeys(TrustTier, 40)
_TIER = TrustTier.TRUSTED_KNOWLEDGE
_CODE, _DOCUMENTS, _MEMORY = (
    KnowledgeClass.CODE,
    KnowledgeClass.DOCUMENTS,
    KnowledgeClass.MEMORY,
)
RULES = {
    "plain": PackingRules(),
    "caps": PackingRules(max_chunks_per_source=2),
    "shares": PackingRules({_CODE: ClassShare(500), _MEMORY: ClassShare(0, 200)}),
    "both": PackingRules({_CODE: ClassShare(500), _MEMORY: ClassShare(0, 200)}, 2),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A query's candidates, best first: id, score and tokens; and what is relevant to it."""

    candidates: Sequence[tuple[str, int, int]]
    relevant: frozenset[str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.packing", description=__doc__)
    parser.add_argument("parts", nargs="*", help="what to measure; all when left out")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    parts = options.parts or ["knapsack", "quality", "speed", "relevance"]
    is_good = "knapsack" not in parts or knapsack(options.data / "knapsack")
    if parts == ["knapsack"]:
        return 0 if is_good else 1
    questions = {
        name: list(read_questions(load_collection(options.data / "collections" / name)))
        for name in NAMES
    }
    if "quality" in parts:
        is_good &= quality(questions)
    if "speed" in parts:
        speed([one for found in questions.values() for one in found])
    if "relevance" in parts:
        relevance(questions)
    return 0 if is_good else 1


def read_questions(collection: Collection) -> Iterator[Question]:
    counter = TiktokenCounter()
    tokens = {
        doc.id: counter.count(framed_body(doc.text), "o200k_base") + _FRAME_TOKENS
        for doc in collection.docs
    }
    index = Bm25Index.build(collection.docs, partial(analyze, language=collection.language))
    for query in collection.queries:
        found = index.scored(query.text, _DEPTH)
        if query.id not in collection.qrels or not found:
            continue
        best, least = found[0][1], found[-1][1]
        span = best - least or 1.0
        yield Question(
            [(name, round((score - least) / span * 10**9), tokens[name]) for name, score in found],
            frozenset(collection.qrels[query.id]),
        )


def entries_of(question: Question, rule: ValueRule) -> list[Entry]:
    """Candidates of three classes, eight to a source, as shares and caps need them."""
    values = values_of([score for _, score, _ in question.candidates], rule)
    classes = (_DOCUMENTS, _CODE, _DOCUMENTS, _MEMORY)
    return [
        Entry(tokens, value, _TIER, classes[at % 4], at % 12)
        for at, ((_, _, tokens), value) in enumerate(zip(question.candidates, values, strict=True))
    ]


def knapsack(folder: Path) -> bool:
    """Instances of 13 kinds whose optimum is known."""
    worst, gaps, exact, proven = 1.0, [], 0, 0
    lines = (folder / "instances-kplib.jsonl").read_text(encoding="utf-8").splitlines()
    for instance in map(json.loads, lines):
        entries = [
            Entry(weight, profit, _TIER, _DOCUMENTS, at)
            for at, (weight, profit) in enumerate(
                zip(instance["weights"], instance["profits"], strict=True)
            )
        ]
        found = pack(entries, instance["capacity"], dict.fromkeys(TrustTier, 0), PackingRules())
        if not found.value <= instance["optimum"] <= found.upper_bound:
            raise RuntimeError(f"The bound of {instance['name']} is no bound.")
        worst = min(worst, found.value / instance["optimum"])
        gaps.append((found.upper_bound - found.value) / found.value)
        exact += found.value == instance["optimum"]
        proven += found.value == found.upper_bound
    print(
        f"knapsack: {len(lines)} instances, {exact} at the optimum, {proven} proven; "
        f"the worst {worst:.5f} of it, the largest stated gap {max(gaps):.5f}"
    )
    return worst >= FLOOR_INSTANCE


def quality(questions: Mapping[str, Sequence[Question]]) -> bool:
    """Against the optimum, on the first queries of the second halves."""
    print(f"\n{'value of the optimum':<22}{'worst':>9}{'mean':>9}{'proven':>9}{'largest gap':>13}")
    is_good = True
    for name, found in questions.items():
        some = found[len(found) // 2 :][:_QUERIES]
        for rules_name, rules in RULES.items():
            shares, gaps = [], []
            for budget in BUDGETS:
                for question in some:
                    entries = entries_of(question, "scores")
                    packing = pack(entries, budget, _ENVELOPES, rules)
                    best = optimum(Filling(entries, budget, _ENVELOPES, rules))
                    if not packing.value <= best <= packing.upper_bound:
                        raise RuntimeError(f"{packing.value} {best} {packing.upper_bound}")
                    shares.append(packing.value / best if best else 1.0)
                    gaps.append(packing.upper_bound / packing.value - 1 if packing.value else 0.0)
            print(
                f"{name:<10}{rules_name:<12}{min(shares):>9.5f}{np.mean(shares):>9.5f}"
                f"{np.mean([gap == 0 for gap in gaps]):>9.3f}{max(gaps):>13.6f}"
            )
            is_good &= min(shares) >= FLOOR_REAL
    return is_good


def optimum(filling: Filling) -> int:
    """The exact one, where all entries are of one tier."""
    entries = filling.entries
    able = [at for at in range(len(entries)) if filling.fits_alone(at)]
    if not able:
        return 0
    room = filling.room - filling.envelope(_TIER)
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.silent()
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_abs_gap", 0.4)
    takes = {at: model.addBinary() for at in able}
    worth = model.qsum(entries[at].value * take for at, take in takes.items())
    bounded = filling.bounded_classes(room)
    kept = []
    for name in bounded:
        own = [at for at in able if entries[at].knowledge_class is name]
        tokens = model.qsum(entries[at].cost_tokens * takes[at] for at in own)
        model.addConstr(tokens <= min(filling.limit(name), room))
        claim = model.addVariable(lb=filling.reserve(name, room) / 1000)
        model.addConstr(claim - tokens >= 0)
        kept.append(claim)
    free = [at for at in able if entries[at].knowledge_class not in bounded]
    kept += [entries[at].cost_tokens * takes[at] for at in free]
    model.addConstr(model.qsum(kept) <= room)
    cap = filling.binding_cap(able)
    if cap is not None:
        for source in {entries[at].cap_key for at in able}:
            held = [take for at, take in takes.items() if entries[at].cap_key == source]
            model.addConstr(model.qsum(held) <= cap)
    model.maximize(worth)
    return round(model.getInfo().objective_function_value)


def speed(questions: Sequence[Question]) -> None:
    """Processor time of this thread, so that what else runs does not count."""
    pool = [(tokens, score) for question in questions for _, score, tokens in question.candidates]
    print(f"\n{'rules':<8}{'candidates':>10}{'budget':>9}{'ms p50':>9}{'p99':>9}{'to greedy':>11}")
    for rules_name in ("plain", "caps", "both"):
        for size in SIZES:
            found = sorted(pool[:: max(len(pool) // size, 1)][:size], key=lambda one: -one[1])
            question = Question([("", score, tokens) for tokens, score in found], frozenset())
            entries = [
                replace(one, source=at % max(size // 8, 1))
                for at, one in enumerate(entries_of(question, "scores"))
            ]
            for budget in SPEED_BUDGETS:
                rules = RULES[rules_name]
                taken = _timed(partial(pack, entries, budget, _ENVELOPES, rules))
                greedy = _timed(partial(_greedy, entries, budget, rules))
                print(
                    f"{rules_name:<8}{size:>10,}{budget:>9,}{np.median(taken) * 1e3:>9.2f}"
                    f"{np.quantile(taken, 0.99) * 1e3:>9.2f}"
                    f"{np.median(taken) / np.median(greedy):>11.1f}"
                )


def _greedy(entries: Sequence[Entry], budget: int, rules: PackingRules) -> set[int]:
    """Under the same rules, in the order of the ranks, whatever still fits."""
    filling = Filling(entries, budget, _ENVELOPES, rules)
    filling.reasons(range(len(entries)))
    return filling.taken


def _timed(work: Callable[[], object]) -> list[float]:
    spent = []
    for _ in range(_REPEATS):
        begun = time.thread_time()
        work()
        spent.append(time.thread_time() - begun)
    return spent


def relevance(questions: Mapping[str, Sequence[Question]]) -> None:
    """The share of a query's relevant texts that is packed; a packing here has no envelope."""
    print("\nshare of relevant texts at a budget of" + "".join(f"{one:>8,}" for one in BUDGETS))
    for name, found in questions.items():
        middle = len(found) // 2
        for half, part in (("first", found[:middle]), ("second", found[middle:])):
            for method, choose in METHODS.items():
                figures = [
                    np.mean([_share(one, choose(one, budget)) for one in part])
                    for budget in BUDGETS
                ]
                row = f"{name:<9}{half:<8}{method:<21}"
                print(row + "".join(f"{figure:>8.3f}" for figure in figures))


def _share(question: Question, chosen: Sequence[int]) -> float:
    names = {question.candidates[at][0] for at in chosen}
    return len(names & question.relevant) / len(question.relevant)


def _until_full(question: Question, budget: int) -> list[int]:
    sums = np.cumsum([tokens for _, _, tokens in question.candidates])
    return list(range(int(np.searchsorted(sums, budget, side="right"))))


def _by_rank(question: Question, budget: int) -> list[int]:
    chosen = []
    for at, (_, _, tokens) in enumerate(question.candidates):
        if tokens <= budget:
            chosen.append(at)
            budget -= tokens
    return chosen


def _packed(rule: ValueRule, question: Question, budget: int) -> list[int]:
    entries = [replace(one, knowledge_class=_DOCUMENTS) for one in entries_of(question, rule)]
    return list(pack(entries, budget, dict.fromkeys(TrustTier, 0), PackingRules()).chosen)


METHODS: Mapping[str, Callable[[Question, int], Sequence[int]]] = {
    "until full": _until_full,
    "whatever fits": _by_rank,
    "packed by scores": partial(_packed, "scores"),
    "packed by ranks": partial(_packed, "ranks"),
}

if __name__ == "__main__":
    sys.exit(main())
