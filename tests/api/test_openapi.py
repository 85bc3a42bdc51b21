"""The OpenAPI document: what client generators need to make pleasant clients from it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator

from app.api.operations import PUBLIC_PATHS

Json = dict[str, Any]

METHODS = {"get", "put", "post", "delete", "patch", "head", "options"}


@pytest.fixture(scope="module")
def document(app: FastAPI) -> Json:
    return app.openapi()


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            yield method, path, item[method]


def _nodes(node: Any) -> Iterator[Json]:
    if isinstance(node, dict):
        yield node
        for part in node.values():
            yield from _nodes(part)
    elif isinstance(node, list):
        for part in node:
            yield from _nodes(part)


def _with_components(document: Json, schema: Json) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


def test_operation_ids_are_unique_and_in_camel_case(document: Json) -> None:
    ids = [operation["operationId"] for _, _, operation in _operations(document)]
    assert len(ids) == len(set(ids)) >= 14
    assert [name for name in ids if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name)] == []


def test_every_operation_says_what_it_does(document: Json) -> None:
    for method, path, operation in _operations(document):
        assert operation["summary"], (method, path)
        assert operation["tags"], (method, path)


def test_every_operation_describes_the_problems_it_can_answer(document: Json) -> None:
    expected = {
        "createSnapshot": {"400", "401", "403", "409", "413", "415", "422", "429", "503", "504"},
        "putSources": {"400", "401", "403", "413", "415", "422", "503"},
        "putSourceHeads": {"400", "401", "403", "413", "415", "422", "503"},
        "deleteSource": {"401", "403", "404", "422", "503"},
        "listSources": {"401", "403", "422", "503"},
        "listSnapshots": {"401", "403", "422", "503"},
        "getSnapshot": {"401", "403", "404", "503"},
    }
    for method, path, operation in _operations(document):
        if path in PUBLIC_PATHS:
            continue
        answers = set(operation["responses"])
        assert answers >= {"401", "403", "503"} | expected.get(operation["operationId"], set())
        if "{ref}" in path:
            assert "404" in answers, (method, path)


def test_there_is_nothing_outside_to_be_fetched(document: Json) -> None:
    references = [node["$ref"] for node in _nodes(document) if isinstance(node.get("$ref"), str)]
    assert references
    assert [name for name in references if not name.startswith("#/components/schemas/")] == []
    schemas = document["components"]["schemas"]
    assert {name.rsplit("/", 1)[1] for name in references} <= set(schemas)


def test_every_schema_is_one(document: Json) -> None:
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_the_examples_of_every_body_fit_its_schema(document: Json) -> None:
    checked = 0
    for _, _, operation in _operations(document):
        for media in operation.get("requestBody", {}).get("content", {}).values():
            validator = _with_components(document, media["schema"])
            for example in media.get("examples", {}).values():
                validator.validate(example["value"])
                checked += 1
    assert checked >= 2


def test_the_examples_of_every_schema_fit_it(document: Json) -> None:
    checked = 0
    for node in _nodes(document["components"]["schemas"]):
        if isinstance(node.get("examples"), list):
            for example in node["examples"]:
                _with_components(document, node).validate(example)
                checked += 1
    assert checked > 0


def test_a_schema_refuses_what_the_service_refuses(document: Json) -> None:
    """The validation above can fail."""
    body = document["components"]["schemas"]["CreateSnapshotBody"]
    assert not _with_components(document, body).is_valid({"runId": "x", "colour": "red"})


def test_problems_are_described_as_problem_documents(document: Json) -> None:
    wrong = [
        (operation["operationId"], status, sorted(answer.get("content", {})))
        for _, path, operation in _operations(document)
        for status, answer in operation["responses"].items()
        if status >= "400"
        and path not in PUBLIC_PATHS
        and answer.get("content")
        != {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    ]
    assert wrong == []


def test_every_call_describes_422_since_unknown_parameters_are_refused(document: Json) -> None:
    wrong = [
        operation["operationId"]
        for _, path, operation in _operations(document)
        if path not in PUBLIC_PATHS and "422" not in operation["responses"]
    ]
    assert wrong == []


def test_every_answer_has_a_schema(document: Json) -> None:
    wrong = [
        (operation["operationId"], status)
        for _, _, operation in _operations(document)
        for status, answer in operation["responses"].items()
        if not answer.get("content")
        or any(not media.get("schema") for media in answer["content"].values())
    ]
    assert wrong == []


def test_the_bearer_token_is_described(document: Json) -> None:
    schemes = document["components"]["securitySchemes"].values()
    assert {("http", "bearer")} == {(one["type"], one["scheme"]) for one in schemes}
    for _, path, operation in _operations(document):
        described = operation.get("security", document.get("security", []))
        assert bool(described) is (path not in PUBLIC_PATHS), path
