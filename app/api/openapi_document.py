"""The OpenAPI document: what FastAPI derives, made whole for those who generate clients.

Guarantees: every problem is described as one problem document under its own media type;
the contract's schemas are bundled with local references; every call but the public ones
wants a bearer token.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.operations import PUBLIC_PATHS
from app.api.problem_document import Problem
from app.api.responses import PROBLEMS

Json = dict[str, Any]

_SCHEMAS = Path(__file__).parents[2] / "openapi" / "schemas"
_CONTRACTS = {
    "ContextSnapshot": "context-snapshot.schema.json",
    "ExecutionScope": "execution-scope.schema.json",
}
_PREFIX = "#/components/schemas/"
SNAPSHOT_SCHEMA: Json = {"schema": {"$ref": f"{_PREFIX}ContextSnapshot"}}
TEXT_SCHEMA: Json = {"schema": {"type": "string"}}


def install_openapi(app: FastAPI) -> None:
    """Let `app.openapi()` give the whole document."""

    def document() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _describe(app: FastAPI) -> Json:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        openapi_version="3.1.0",
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = Problem.model_json_schema(ref_template=_PREFIX + "{model}")
    schemas |= {**problem.pop("$defs", {}), "Problem": problem, **_contracts()}
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    }
    for path, operation in _operations(document):
        if path not in PUBLIC_PATHS:
            operation["security"] = [{"bearer": []}]
            _describe_problems(operation)
    return document


def _operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _describe_problems(operation: Json) -> None:
    # An unknown query parameter is refused everywhere.
    statuses = {"422", *(status for status in operation["responses"] if status >= "400")}
    operation["responses"] |= {
        status: {
            "description": PROBLEMS[int(status)],
            "content": {"application/problem+json": {"schema": {"$ref": f"{_PREFIX}Problem"}}},
        }
        for status in sorted(statuses)
    }


def _contracts() -> Json:
    """The contract's schemas, as they are but for their ids and references."""
    bundled = {}
    for name, file in _CONTRACTS.items():
        text = (_SCHEMAS / file).read_text(encoding="utf-8")
        for other, other_file in _CONTRACTS.items():
            text = text.replace(f'"$ref": "{other_file}"', f'"$ref": "{_PREFIX}{other}"')
        schema = json.loads(text)
        del schema["$id"], schema["$schema"]
        bundled[name] = schema
    return bundled
