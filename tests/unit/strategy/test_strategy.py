"""Recipes load whole or not at all, and names resolve to the version that is meant."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.canonical import digest_value
from app.errors import ConfigurationError, InvalidRequestError
from app.packing.filling import ClassShare, PackingRules
from app.scope.vocabulary import KnowledgeClass
from app.strategy.strategy import Strategy, StrategyCatalog, load_strategy

ENCODINGS = ("cl100k_base", "o200k_base")
RECIPE: dict[str, Any] = {
    "id": "own",
    "version": 1,
    "description": "For tests.",
    "retrievers": [{"name": "lexical"}],
}


def load(folder: Path | None, *retrievers: str) -> StrategyCatalog:
    known = retrievers or ("vector", "lexical")
    return StrategyCatalog.load(folder, retrievers=known, encodings=ENCODINGS)


def write(folder: Path, name: str = "own.yaml", **members: Any) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump({**RECIPE, **members}), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_strategy(path)
    assert path.name in caught.value.detail
    return caught.value.detail


def test_the_shipped_recipes_load_and_need_nothing_but_the_lexical_retriever() -> None:
    catalog = load(None, "lexical")
    assert [one.name for one in catalog.all()] == [
        "approximate@1",
        "code@1",
        "default@1",
        "documents@1",
        "lexical-only@1",
    ]
    default = catalog.resolve("default")
    assert default.budget.max_tokens == 8000
    assert default.budget.reserved_for_output == 1000
    assert default.budget.encoding == "o200k_base"
    assert default.packing.rules() == PackingRules(max_chunks_per_source=8, value="scores")
    assert [step.on_failure for step in default.retrievers if not step.optional] == ["fail"]


def test_what_a_recipe_leaves_out_has_the_stated_defaults(tmp_path: Path) -> None:
    strategy = load_strategy(write(tmp_path))
    (step,) = strategy.retrievers
    assert (step.limit, step.weight, step.deadline_ms, step.on_failure) == (100, 1, 5000, "fail")
    assert strategy.fusion.k == 60
    assert strategy.packing.rules() == PackingRules()
    assert strategy.budget.format == "text"


def test_texts_are_shortened_only_where_a_recipe_says_so(tmp_path: Path) -> None:
    assert load_strategy(write(tmp_path)).packing.rules().min_compressed_permille is None
    plain = load_strategy(write(tmp_path, packing={"compression": {}}))
    assert plain.packing.rules().min_compressed_permille == 25
    assert "minPermille" in refusal(write(tmp_path, packing={"compression": {"minPermille": 0}}))


def test_rules_carry_the_shares_and_the_cap(tmp_path: Path) -> None:
    packing = {
        "classShares": {"code": {"minPermille": 100, "maxPermille": 500}, "memory": {}},
        "maxChunksPerSource": 3,
    }
    assert load_strategy(write(tmp_path, packing=packing)).packing.rules() == PackingRules(
        class_shares={
            KnowledgeClass.CODE: ClassShare(100, 500),
            KnowledgeClass.MEMORY: ClassShare(0, 1000),
        },
        max_chunks_per_source=3,
    )


@pytest.mark.parametrize(
    ("members", "blamed"),
    [
        ({"unheard": 1}, "unheard"),
        ({"fusion": {"k": 60, "unheard": 1}}, "fusion.unheard"),
        ({"retrievers": [{"name": "lexical", "unheard": 1}]}, "retrievers.0.unheard"),
        ({"packing": {"unheard": 1}}, "packing.unheard"),
        ({"packing": {"classShares": {"code": {"unheard": 1}}}}, "unheard"),
        ({"packing": {"classShares": {"unheard": {}}}}, "unheard"),
        ({"budget": {"unheard": 1}}, "budget.unheard"),
        ({"retrievers": []}, "retrievers"),
        ({"retrievers": [{"name": "lexical", "limit": 0}]}, "limit"),
        ({"retrievers": [{"name": "lexical", "limit": 1001}]}, "limit"),
        ({"retrievers": [{"name": "lexical", "deadlineMs": 0}]}, "deadlineMs"),
        ({"retrievers": [{"name": "lexical", "onFailure": "ignore"}]}, "onFailure"),
        ({"fusion": {"k": 0}}, "fusion.k"),
        ({"fusion": {"k": 1.5}}, "fusion.k"),
        ({"packing": {"maxChunksPerSource": 0}}, "maxChunksPerSource"),
        ({"budget": {"format": "html"}}, "budget.format"),
        ({"budget": {"maxTokens": 0}}, "budget.maxTokens"),
        ({"version": 0}, "version"),
        ({"version": "1"}, "version"),
        ({"version": 1.0}, "version"),
        ({"version": True}, "version"),
        ({"version": 2**31}, "version"),
        ({"fusion": {"k": "60"}}, "fusion.k"),
        ({"packing": {"maxChunksPerSource": 2**31}}, "packing.maxChunksPerSource"),
        ({"budget": {"reservedForOutput": 2**31}}, "budget.reservedForOutput"),
        ({"packing": {"maxChunksPerSource": "3"}}, "packing.maxChunksPerSource"),
        ({"packing": {"classShares": {"code": {"minPermille": "1"}}}}, "code.minPermille"),
        ({"packing": {"max_chunks_per_source": 3}}, "packing.max_chunks_per_source"),
        ({"budget": {"maxTokens": "8000"}}, "budget.maxTokens"),
        ({"budget": {"maxTokens": 2**31}}, "budget.maxTokens"),
        ({"budget": {"reservedForOutput": False}}, "budget.reservedForOutput"),
        ({"retrievers": [{"name": "lexical", "limit": "9"}]}, "retrievers.0.limit"),
        ({"retrievers": [{"name": "lexical", "weight": True}]}, "retrievers.0.weight"),
        ({"retrievers": [{"name": "lexical"}, {"name": "lexical"}]}, "retrievers: "),
        ({"description": "NUL \0"}, "description"),
        ({"description": 1}, "description"),
        ({"id": "Own"}, "id"),
        ({"id": "own@2"}, "id"),
        ({"id": ""}, "id"),
        ({"id": "own\n"}, "id"),
    ],
)
def test_a_recipe_with_an_unknown_key_or_a_bad_value_is_refused_by_name(
    tmp_path: Path, members: dict[str, Any], blamed: str
) -> None:
    assert blamed in refusal(write(tmp_path, **members))


@pytest.mark.parametrize("missing", ["id", "version", "description", "retrievers"])
def test_a_recipe_without_a_required_key_is_refused(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "own.yaml"
    left = {name: value for name, value in RECIPE.items() if name != missing}
    path.write_text(yaml.safe_dump(left), encoding="utf-8")
    assert missing in refusal(path)


@pytest.mark.parametrize(
    "shares",
    [
        {"code": {"minPermille": 600}, "memory": {"minPermille": 401}},
        {"code": {"minPermille": 300, "maxPermille": 299}},
        {"code": {"maxPermille": 1001}},
        {"code": {"minPermille": -1}},
    ],
)
def test_shares_that_cannot_be_met_are_refused(tmp_path: Path, shares: dict[str, Any]) -> None:
    assert "packing" in refusal(write(tmp_path, packing={"classShares": shares}))


def test_shares_that_can_just_be_met_are_taken(tmp_path: Path) -> None:
    shares = {"code": {"minPermille": 600}, "memory": {"minPermille": 400, "maxPermille": 400}}
    assert load_strategy(write(tmp_path, packing={"classShares": shares})).packing.class_shares


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"just text", b"id: [unclosed", b"\xff\xfe\x00", b"!!python/object:x.Y {}"],
)
def test_a_file_that_is_no_recipe_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    refusal(path)


def versions(folder: Path, **of: list[int]) -> StrategyCatalog:
    for name, numbers in of.items():
        for number in numbers:
            write(folder, f"{name}-{number}.yaml", id=name, version=number)
    return load(folder)


def test_a_plain_id_means_the_newest_version_by_number(tmp_path: Path) -> None:
    catalog = versions(tmp_path, own=[9, 10, 2])
    assert catalog.resolve("own").version == 10
    assert catalog.resolve("own@9").version == 9
    assert catalog.resolve("own@10") == catalog.resolve("own")


def test_strategies_are_listed_once_by_id_and_by_number(tmp_path: Path) -> None:
    write(tmp_path, "prefix.yaml", id="own-other", version=1)
    catalog = versions(tmp_path, own=[10, 9, 100])
    assert [one.name for one in catalog.all()] == [
        "approximate@1",
        "code@1",
        "default@1",
        "documents@1",
        "lexical-only@1",
        "own@9",
        "own@10",
        "own@100",
        "own-other@1",
    ]


def test_an_own_recipe_may_be_a_newer_version_of_a_shipped_one(tmp_path: Path) -> None:
    assert versions(tmp_path, default=[2]).resolve("default").version == 2


@pytest.mark.parametrize("name", ["own", "default"])
def test_two_strategies_of_one_id_and_version_are_refused(tmp_path: Path, name: str) -> None:
    for number, file in enumerate(("one.yaml", "two.yaml")):
        write(tmp_path, file, id=name, description=f"Number {number}.")
    with pytest.raises(ConfigurationError, match=f"{name}@1"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("{}\nversion: 2\n", "version"),
        ('{}\n"version": 1\n', "version"),
        ("{}\nfusion: {{k: 60}}\nfusion: {{k: 61}}\n", "fusion"),
        ("{}\nfusion: {{k: 60, k: 61}}\n", "k"),
        ("{}\nbudget:\n  maxTokens: 9\n  maxTokens: 9\n", "maxTokens"),
        ("{}\nextra: &extra {{k: 60, k: 61}}\nfusion: *extra\n", "k"),
    ],
)
def test_a_key_that_stands_twice_is_refused_by_name(tmp_path: Path, content: str, key: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(content.format(yaml.safe_dump(RECIPE)), encoding="utf-8")
    assert f"the key {key} stands twice" in refusal(path)


def test_a_description_that_no_digest_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    text = yaml.safe_dump({**RECIPE, "description": "half"})
    path.write_text(text.replace("half", '"\\ud83d"'), encoding="utf-8")
    assert "description" in refusal(path)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        (
            {"retrievers": [{"name": "lexical"}, {"name": "graph"}]},
            r"own.yaml: retrievers.1.name: 'graph' .*: lexical, vector\.",
        ),
        (
            {"budget": {"encoding": "p50k_base"}},
            r"own.yaml: budget.encoding: 'p50k_base' .*: cl100k_base, o200k_base\.",
        ),
    ],
)
def test_what_this_service_does_not_have_is_refused_with_what_it_has(
    tmp_path: Path, members: dict[str, Any], sentence: str
) -> None:
    write(tmp_path, **members)
    with pytest.raises(ConfigurationError, match=sentence):
        load(tmp_path)


def test_a_folder_of_recipes_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="recipes does not exist"):
        load(tmp_path / "recipes")


@pytest.mark.parametrize("name", ["unheard", "own@2", "own@", "own@01", "OWN", "", "own@1 "])
def test_an_unknown_name_is_the_caller_s_error_and_tells_the_known_ones(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        versions(tmp_path, own=[1]).resolve(name)
    assert caught.value.code == "unknown-strategy"
    assert caught.value.pointers == ("/strategy",)
    assert "own@1" in caught.value.detail


def test_the_digest_covers_what_the_recipe_says_and_not_how_it_is_written(tmp_path: Path) -> None:
    written = load_strategy(write(tmp_path, "a.yaml"))
    explicit = load_strategy(write(tmp_path, "b.yaml", fusion={"k": 60}, packing={}))
    reordered = tmp_path / "c.yaml"
    reordered.write_text(yaml.safe_dump(dict(reversed(RECIPE.items())), sort_keys=False))
    assert written.digest() == explicit.digest() == load_strategy(reordered).digest()
    assert written.digest() == digest_value(written.canonical())


@pytest.mark.parametrize(
    "members",
    [
        {"version": 2},
        {"description": "Another."},
        {"fusion": {"k": 61}},
        {"retrievers": [{"name": "vector"}]},
        {"retrievers": [{"name": "lexical", "onFailure": "degrade"}]},
        {"packing": {"maxChunksPerSource": 1}},
        {"packing": {"classShares": {"code": {"maxPermille": 999}}}},
        {"budget": {"maxTokens": 7999}},
    ],
)
def test_whatever_a_recipe_says_changes_its_digest(tmp_path: Path, members: dict[str, Any]) -> None:
    changed = load_strategy(write(tmp_path, "a.yaml", **members))
    assert changed.digest() != load_strategy(write(tmp_path, "b.yaml")).digest()


def test_a_strategy_reads_its_own_canonical_form(tmp_path: Path) -> None:
    packing = {"classShares": {"code": {"minPermille": 1}}, "maxChunksPerSource": 3}
    strategy = load_strategy(write(tmp_path, packing=packing))
    assert Strategy.model_validate(strategy.canonical()) == strategy


def test_re_ranking_has_the_stated_defaults_and_needs_an_endpoint(tmp_path: Path) -> None:
    path = write(tmp_path, rerank={})
    step = load_strategy(path).rerank
    assert step is not None
    assert (step.limit, step.deadline_ms, step.on_failure) == (50, 5000, "fail")
    with pytest.raises(ConfigurationError, match=r"own\.yaml: rerank: .*CTXSNAP_RERANKING"):
        load(tmp_path)
    known = {"retrievers": ("vector", "lexical"), "encodings": ENCODINGS}
    assert StrategyCatalog.load(tmp_path, **known, reranks=True).resolve("own").rerank == step
    write(tmp_path, rerank={"optional": True})
    assert load(tmp_path).resolve("own").rerank is not None


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ({"limit": 0}, "rerank.limit"),
        ({"limit": 1001}, "rerank.limit"),
        ({"deadlineMs": "5"}, "rerank.deadlineMs"),
        ({"onFailure": "ignore"}, "rerank.onFailure"),
        ({"name": "x"}, "rerank.name"),
    ],
)
def test_a_re_ranking_that_is_not_acceptable_is_named(
    tmp_path: Path, step: dict[str, Any], field: str
) -> None:
    assert field in refusal(write(tmp_path, rerank=step))


def test_approximate_search_is_for_strategies_that_say_so(tmp_path: Path) -> None:
    steps = [{"name": "lexical"}, {"name": "vector-approximate", "optional": True}]
    detail = refusal(write(tmp_path, retrievers=steps))
    assert "'vector-approximate' is for strategies whose id contains 'approximate'" in detail
    named = write(tmp_path, retrievers=steps, id="own-approximate")
    assert load_strategy(named).name == "own-approximate@1"


def test_worth_by_scores_needs_scores_that_mean_something(tmp_path: Path) -> None:
    detail = refusal(write(tmp_path, packing={"value": "scores"}))
    assert "packing.value: scores needs fusion.method: normalised-scores" in detail
    fused = {"method": "normalised-scores"}
    assert load_strategy(write(tmp_path, packing={"value": "scores"}, fusion=fused))
