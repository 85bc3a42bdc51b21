"""Expansion: which sources are followed, what is left of a score, what comes in."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.retrieval.candidate import Candidate, Retrieval
from app.retrieval.expansion import (
    ExpansionRules,
    GraphRetriever,
    Reached,
    Seeds,
    best_reached,
    choose_seeds,
    damped,
    with_neighbours,
)
from app.retrieval.fusion import UNIT, FusedCandidate
from app.retrieval.retriever import ScopedQuery
from tests.unit.retrieval.chunks import SCOPE, VIEW, chunk, retrieval

RULES = ExpansionRules(hops=4, damping_permille=500)
QUERY = ScopedQuery(SCOPE, VIEW, "cancel", None, 20)


def candidate(source_id: str, score: int, ordinal: int = 0) -> FusedCandidate:
    return FusedCandidate(chunk(source_id, ordinal), score, "lexical", "v1")


def test_the_sources_of_the_best_candidates_are_seeds_at_their_best_score() -> None:
    ranked = [candidate("a", 9), candidate("b", 8), candidate("a", 7, 1), candidate("c", 6)]
    seeds = choose_seeds(ranked, (), 3)
    assert seeds.scores == {("booking", "a"): 9, ("booking", "b"): 8}
    assert seeds.known == {one.chunk.identity for one in ranked}


def test_a_pinned_source_counts_like_the_best_candidate() -> None:
    ranked = [candidate("a", 9), candidate("b", 8)]
    pinned = [chunk("b", 3), chunk("z")]
    seeds = choose_seeds(ranked, pinned, 1)
    assert seeds.scores == {("booking", name): 9 for name in "abz"}
    assert seeds.known == {one.identity for one in (*(one.chunk for one in ranked), *pinned)}


def test_pins_without_a_query_count_one_unit() -> None:
    assert choose_seeds((), [chunk("z")], 10).scores == {("booking", "z"): UNIT}
    assert choose_seeds((), (), 10) == Seeds({}, frozenset())


@pytest.mark.parametrize(
    ("hops", "damping_permille", "left"),
    [(1, 500, 500), (2, 500, 250), (1, 1000, 1001), (4, 1000, 1001), (3, 999, 998), (1, 1, 1)],
)
def test_a_score_is_damped_hop_by_hop_and_rounded_down_once(
    hops: int, damping_permille: int, left: int
) -> None:
    assert damped(1001, hops, damping_permille) == left


def reached(source_id: str, hops: int, score: int, ordinal: int = 0, key: int = 0) -> Reached:
    name = ("booking", source_id, str(ordinal))
    return Reached(key or ord(source_id) * 10 + ordinal, name, ordinal, hops, score)


def test_the_best_path_counts_also_where_it_is_longer() -> None:
    paths = [reached("a", 1, 100), reached("a", 2, 300), reached("a", 3, 500)]
    assert best_reached(paths, (), RULES, 9) == {970: 75}
    assert best_reached(paths[::-1], (), RULES, 9) == {970: 75}


def test_the_best_come_first_and_ties_in_the_order_of_names() -> None:
    paths = [
        reached("c", 1, 100),
        reached("b", 1, 100, 1),
        reached("b", 1, 100),
        reached("a", 1, 90),
        replace(reached("b", 1, 100), key=5, name=("alpha", "b", "0")),
    ]
    assert list(best_reached(paths, (), RULES, 9)) == [5, 980, 981, 990, 970]
    assert list(best_reached(paths, (), RULES, 2)) == [5, 980]


def test_known_chunks_take_no_place() -> None:
    paths = [reached("a", 1, 100), reached("b", 1, 90)]
    assert best_reached(paths, {("booking", "a", "0")}, RULES, 1) == {980: 45}


names = st.tuples(
    st.sampled_from(("alpha", "booking")), st.sampled_from("abcé"), st.sampled_from("01")
)


@given(
    paths=st.lists(st.tuples(names, st.integers(1, 4), st.integers(0, 2**50)), max_size=20),
    known=st.frozensets(names, max_size=4),
    damping=st.integers(1, 1000),
    limit=st.integers(1, 9),
    data=st.data(),
)
def test_what_is_reached_does_not_depend_on_the_order_of_paths(
    paths: list[tuple[tuple[str, str, str], int, int]],
    known: frozenset[tuple[str, str, str]],
    damping: int,
    limit: int,
    data: st.DataObject,
) -> None:
    keys = {name: at for at, name in enumerate(sorted({name for name, _, _ in paths}))}
    found = [Reached(keys[name], name, int(name[2]), hops, score) for name, hops, score in paths]
    rules = ExpansionRules(4, damping)
    chosen = best_reached(found, known, rules, limit)
    again = best_reached(data.draw(st.permutations(found)), known, rules, limit)
    assert list(chosen.items()) == list(again.items())
    worth = {
        name: max(
            int(score * Fraction(damping, 1000) ** hops)
            for other, hops, score in paths
            if other == name
        )
        for name in keys
        if name not in known
    }
    best = sorted(worth, key=lambda name: (-worth[name], name[1], name[0], int(name[2])))
    assert list(chosen.items()) == [(keys[name], worth[name]) for name in best[:limit]]
    # A shorter limit gives the beginning of the same list.
    assert list(best_reached(found, known, rules, 1)) == list(chosen)[:1]


@given(score=st.integers(0, 2**60), hops=st.integers(1, 3), damping=st.integers(1, 1000))
def test_a_longer_path_from_the_same_seed_is_never_worth_more(
    score: int, hops: int, damping: int
) -> None:
    assert 0 <= damped(score, hops + 1, damping) <= damped(score, hops, damping) <= score
    assert damped(score + 1, hops, damping) >= damped(score, hops, damping)


def test_neighbours_stand_at_their_own_score_in_the_ranking() -> None:
    ranked = [candidate("a", 9), candidate("z", 3)]
    answer = retrieval((chunk("n"), 5), (chunk("m"), 3), (chunk("b"), 1), version="v2")
    merged = with_neighbours(ranked, answer)
    assert [(one.chunk.source_id, one.score, one.found_by) for one in merged] == [
        ("a", 9, "lexical"),
        ("n", 5, "graph"),
        ("m", 3, "graph"),
        ("z", 3, "lexical"),
        ("b", 1, "graph"),
    ]
    assert {one.visible_version for one in merged if one.found_by == "graph"} == {"v2"}


def test_a_candidate_that_the_graph_returns_again_stays_as_it_was() -> None:
    ranked = (candidate("a", 2), candidate("b", 1))
    assert with_neighbours(ranked, retrieval((chunk("b"), 99))) == ranked


class OneNeighbour:
    """A graph that has been asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[ScopedQuery, Seeds, ExpansionRules]] = []

    async def neighbours(
        self, query: ScopedQuery, seeds: Seeds, rules: ExpansionRules
    ) -> Retrieval:
        self.asked.append((query, seeds, rules))
        return Retrieval((Candidate(chunk("n"), 1, 1),), "v1")


async def test_the_leg_asks_the_graph_with_the_scope_and_nothing_where_nothing_leads() -> None:
    graph, seeds = OneNeighbour(), Seeds({("booking", "a"): 1}, frozenset())
    found = await GraphRetriever(graph, seeds, RULES).retrieve(QUERY)
    assert [one.chunk.source_id for one in found.candidates] == ["n"]
    assert graph.asked == [(QUERY, seeds, RULES)]
    nothing = await GraphRetriever(graph, Seeds({}, frozenset()), RULES).retrieve(QUERY)
    assert nothing == Retrieval((), VIEW.visible_version)
    assert len(graph.asked) == 1


def test_the_leg_is_called_graph() -> None:
    assert GraphRetriever(OneNeighbour(), Seeds({}, frozenset()), RULES).name == "graph"
