"""The OpenAPI document: what client generators need to make pleasant clients from it."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator

import app as application
from app.api.operations import PUBLIC_PATHS
from app.api.problem_codes import PROBLEM_CODES
from app.api.problems import problem_response
from app.errors import BudgetTooSmallError, RequestError, ServiceError
from tests.api.service import Api, assert_problem

Json = dict[str, Any]

METHODS = {"get", "put", "post", "delete", "patch", "head", "options"}
CODE = Path(application.__file__).parent
CONTRACTS = {
    "ContextSnapshot": "context-snapshot.schema.json",
    "ExecutionScope": "execution-scope.schema.json",
}


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
    components = document["components"]
    known = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "headers")
        for name in components[kind]
    }
    assert set(references) <= known


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
        and answer["content"]
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
        if status != "304"
        and not all(media.get("schema") for media in answer.get("content", {"none": {}}).values())
    ]
    assert wrong == []


async def test_every_example_of_a_body_is_taken(document: Json, api: Api) -> None:
    sent = 0
    for method, path, operation in _operations(document):
        for media_type, media in operation.get("requestBody", {}).get("content", {}).items():
            assert media["examples"], path
            for example in media["examples"].values():
                value = example["value"]
                answer = await api.client.request(
                    method,
                    path,
                    content=value if isinstance(value, str) else json.dumps(value),
                    headers={**api.headers(), "Content-Type": media_type},
                )
                assert answer.status_code in (200, 201), answer.text
                described = operation["responses"][str(answer.status_code)]["content"]
                _with_components(document, described["application/json"]["schema"]).validate(
                    answer.json()
                )
                sent += 1
    assert sent >= 6


def _codes_in_the_code() -> set[str]:
    """Each code of a class of errors, and each that is given to one where it is raised."""
    found = set()
    for file in sorted(CODE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Assign(targets=[ast.Name("code")], value=ast.Constant(str(code))):
                    found.add(code)
                case ast.keyword("code", ast.Constant(str(code))):
                    found.add(code)
    return found


def _error_classes(root: type[ServiceError] = ServiceError) -> Iterator[type[ServiceError]]:
    """Those that a call can end with: not the commands' own, and not the class of many alone."""
    if root is not RequestError:
        yield root
    for kind in root.__subclasses__():
        if kind.__module__.startswith("app.") and not kind.__module__.startswith("app.cli."):
            yield from _error_classes(kind)


def _reported(kind: type[ServiceError]) -> tuple[int, str]:
    """The status and code with which an error of this class goes out."""
    error = BudgetTooSmallError(2, 1) if kind is BudgetTooSmallError else kind("A sentence.")
    answer = problem_response(error, instance=None, request_id=None)
    return answer.status_code, json.loads(bytes(answer.body))["code"]


def test_every_class_of_errors_goes_out_with_a_code_and_status_of_the_document() -> None:
    kinds = list(_error_classes())
    assert len(kinds) >= 20
    wrong = [
        (kind.__name__, status, code)
        for kind in kinds
        for status, code in [_reported(kind)]
        if code not in PROBLEM_CODES[status]
    ]
    assert wrong == []


def test_the_document_names_every_code_that_is_raised_and_no_other(document: Json) -> None:
    named = set(document["components"]["schemas"]["Problem"]["properties"]["code"]["examples"])
    told_as_internal = {kind.code for kind in _error_classes() if _reported(kind)[0] == 500}
    by_the_framework = {"method-not-allowed", "internal"}
    assert named == (_codes_in_the_code() - told_as_internal) | by_the_framework


def test_every_problem_names_its_codes(document: Json) -> None:
    for _, path, operation in _operations(document):
        for status, answer in operation["responses"].items():
            if status >= "400" and path not in PUBLIC_PATHS:
                named = answer["description"].rpartition(" (")[2].rstrip(")").split(", ")
                assert tuple(named) == PROBLEM_CODES[int(status)]


def test_the_contracts_are_bundled_as_they_are_but_for_ids_and_references(document: Json) -> None:
    def without_names(node: Any) -> Any:
        if isinstance(node, dict):
            named = {"$id", "$schema", "$ref"}
            return {key: without_names(part) for key, part in node.items() if key not in named}
        return [without_names(part) for part in node] if isinstance(node, list) else node

    for name, file in CONTRACTS.items():
        text = (CODE.parent / "openapi" / "schemas" / file).read_text(encoding="utf-8")
        bundled = document["components"]["schemas"][name]
        assert without_names(bundled) == without_names(json.loads(text))
        assert bundled["properties"]


async def test_without_a_token_every_call_is_401(document: Json, client: httpx.AsyncClient) -> None:
    for method, path, _ in _operations(document):
        if path not in PUBLIC_PATHS:
            answer = await client.request(method, path)
            assert_problem(answer, 401, "authentication-failed", path=quote(path, safe="/"))
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_method_that_is_not_described_is_405_with_those_that_are(
    document: Json, api: Api
) -> None:
    for path, item in document["paths"].items():
        for method in sorted(METHODS - set(item)):
            answer = await api.client.request(method, path, headers=api.headers())
            assert answer.status_code == 405, (method, path)
            allowed = answer.headers["allow"].split(", ")
            assert sorted(allowed) == sorted(name.upper() for name in item), (method, path)
            if method != "head":
                assert_problem(answer, 405, "method-not-allowed")


def test_the_bearer_token_is_described(document: Json) -> None:
    schemes = document["components"]["securitySchemes"].values()
    assert {("http", "bearer")} == {(one["type"], one["scheme"]) for one in schemes}
    for _, path, operation in _operations(document):
        described = operation.get("security", document.get("security", []))
        assert bool(described) is (path not in PUBLIC_PATHS), path
