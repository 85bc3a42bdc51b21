"""The OpenAPI document: what FastAPI derives, made whole for those who generate clients.

Guarantees: every problem is described as one problem document under its own media type, with
the codes that it can have; the contract's schemas are bundled with local references; every
call but the public ones wants a bearer token.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.api.middleware.deadline import HEADER
from app.api.openapi_headers import HEADERS, describe_conditional, describe_headers
from app.api.openapi_links import describe_links
from app.api.operations import PUBLIC_PATHS
from app.api.problem_codes import PROBLEM_CODES
from app.api.problem_document import Problem
from app.api.read_schemas import SnapshotWithParts
from app.api.responses import PROBLEMS
from app.api.text_tables import VIEWS

Json = dict[str, Any]

_SCHEMAS = Path(__file__).parents[2] / "openapi" / "schemas"
_CONTRACTS = {
    "ContextSnapshot": "context-snapshot.schema.json",
    "ExecutionScope": "execution-scope.schema.json",
}
_PREFIX = "#/components/schemas/"
SNAPSHOT_SCHEMA: Json = {"schema": {"$ref": f"{_PREFIX}ContextSnapshot"}}
# With parts where `include` names some, and in a dry run.
SNAPSHOT_ANSWER_SCHEMA: Json = {"schema": {"$ref": f"{_PREFIX}SnapshotAnswer"}}
TEXT_SCHEMA: Json = {"schema": {"type": "string"}}
_DEADLINE: Json = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "Milliseconds after which the answer is 504, unless it comes before.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
}


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
    for schema in schemas.values():
        _leave_out_defaults(schema)
    schemas |= {**_described(Problem), **_described(SnapshotWithParts), **_contracts()}
    schemas["SnapshotWithParts"]["properties"]["snapshot"] = SNAPSHOT_SCHEMA["schema"]
    # With a name: generators make one up otherwise.
    schemas["SnapshotAnswer"] = {
        "description": "The snapshot, or, with `include` and in a dry run, the snapshot and parts.",
        "anyOf": [SNAPSHOT_SCHEMA["schema"], {"$ref": f"{_PREFIX}SnapshotWithParts"}],
    }
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    }
    document["components"]["headers"] = HEADERS
    for path, method, operation in _operations(document):
        if path not in PUBLIC_PATHS:
            operation["security"] = [{"bearer": []}]
            if operation["operationId"] in VIEWS:
                operation["responses"]["200"]["content"]["text/plain"] = TEXT_SCHEMA
            operation.setdefault("parameters", []).append(_DEADLINE)
            _describe_problems(operation)
            if method == "get":
                describe_conditional(operation)
            describe_links(operation)
        describe_headers(operation, public=path in PUBLIC_PATHS)
    codes = schemas["Problem"]["properties"]["code"]
    codes["examples"] = sorted(code for some in PROBLEM_CODES.values() for code in some)
    return document


def _leave_out_defaults(schema: Json) -> None:
    """Tell of a member's default in words.

    Some generators take a member that has one for a member that has to be there.
    """
    for member in schema.get("properties", {}).values():
        default = member.pop("default", None)
        if isinstance(default, str | bool):
            said = member.get("description", "")
            member["description"] = f"{said} Absent: {json.dumps(default)}.".strip()


def _described(model: type[BaseModel]) -> Json:
    """The schemas of a model that no operation declares as its own, by name."""
    schema = model.model_json_schema(ref_template=_PREFIX + "{model}")
    return {**schema.pop("$defs", {}), model.__name__: schema}


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _describe_problems(operation: Json) -> None:
    # An unknown query parameter is refused everywhere, and every call has limits and a deadline.
    refusals = (status for status in operation["responses"] if status >= "400")
    statuses = {"422", "429", "500", "504", *refusals}
    operation["responses"] |= {
        status: {
            "description": f"{PROBLEMS[int(status)]} ({', '.join(PROBLEM_CODES[int(status)])})",
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
