"""Recipes load whole or not at all, and names resolve to the version that is meant."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.canonical import digest_value
from app.errors import ConfigurationError, InvalidRequestError
from app.packing.packer import ClassShare, PackingRules
from app.scope.vocabulary import KnowledgeClass
from app.strategy.strategy import Strategy, StrategyCatalog, load_strategy

KNOWN = frozenset({"lexical", "vector"})
RECIPE: dict[str, Any] = {
    "id": "own",
    "version": 1,
    "description": "For tests.",
    "retrievers": [{"name": "lexical"}],
}


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
    catalog = StrategyCatalog.load(None, frozenset({"lexical"}))
    assert [one.name for one in catalog.all()] == ["default@1", "lexical-only@1"]
    default = catalog.resolve("default")
    assert default.budget.max_tokens == 8000
    assert default.budget.reserved_for_output == 1000
    assert default.budget.encoding == "o200k_base"
    assert default.packing.rules() == PackingRules(max_chunks_per_source=8)
    assert [step.on_failure for step in default.retrievers] == ["fail"]


def test_what_a_recipe_leaves_out_has_the_stated_defaults(tmp_path: Path) -> None:
    strategy = load_strategy(write(tmp_path))
    (step,) = strategy.retrievers
    assert (step.limit, step.weight, step.deadline_ms, step.on_failure) == (100, 1, 5000, "fail")
    assert strategy.fusion.k == 60
    assert strategy.packing.rules() == PackingRules()
    assert strategy.budget.format == "text"


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
    return StrategyCatalog.load(folder, KNOWN)


def test_a_plain_id_means_the_newest_version_by_number(tmp_path: Path) -> None:
    catalog = versions(tmp_path, own=[9, 10, 2])
    assert catalog.resolve("own").version == 10
    assert catalog.resolve("own@9").version == 9
    assert catalog.resolve("own@10") == catalog.resolve("own")


def test_strategies_are_listed_once_by_id_and_by_number(tmp_path: Path) -> None:
    write(tmp_path, "prefix.yaml", id="own-other", version=1)
    catalog = versions(tmp_path, own=[10, 9, 100])
    assert [one.name for one in catalog.all()] == [
        "default@1",
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
        StrategyCatalog.load(tmp_path, KNOWN)


def test_a_retriever_that_is_not_configured_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, retrievers=[{"name": "lexical"}, {"name": "graph"}])
    with pytest.raises(ConfigurationError, match=r"own@1 .*'graph'.*lexical, vector"):
        StrategyCatalog.load(tmp_path, KNOWN)


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
