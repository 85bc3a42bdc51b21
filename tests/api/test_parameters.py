"""Query parameters and cursors: known by name, once, in one spelling, and never a 500."""

import base64
import json
from typing import Any

import pytest
from fastapi import FastAPI

from tests.api.service import Api, assert_problem, question, source

REF = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/snapshots?runid=x", "runid"),
        ("GET", f"/snapshots/{REF}?include=contents", "include"),
        ("GET", f"/snapshots/{REF}/verify?x=", "x"),
        ("GET", "/sources?source_id=x", "source_id"),
        ("GET", "/sources?limit=1&limit=2", "limit"),
        ("GET", "/index?x=1", "x"),
        ("GET", "/strategies?x=1", "x"),
        ("GET", "/sources?project=%00", "project"),
        ("GET", "/sources?prefix=%ff", "query"),
        ("GET", "/sources?prefix=%ed%a0%bd", "query"),
        ("POST", "/snapshots?dryrun=true", "dryrun"),
        ("POST", "/snapshots?refresh=maybe", "refresh"),
        ("PUT", "/sources?force=true", "force"),
        ("DELETE", "/sources?project=a", "sourceId"),
        ("DELETE", "/sources?project=a&sourceId=", "sourceId"),
    ],
)
async def test_an_unknown_or_unfit_parameter_is_named(
    api: Api, method: str, path: str, name: str
) -> None:
    body = question(None) if method == "POST" else {"sources": [source("a.md", "x")]}
    answer = await api.client.request(method, path, json=body, headers=api.headers())
    problem = assert_problem(answer, 422, "invalid-request")
    assert [error["parameter"] for error in problem["errors"]] == [name]


def _typed_parameters(app: FastAPI) -> list[tuple[str, str, str, str]]:
    """Method, path, name and type of each query parameter that is no text."""
    document: Any = app.openapi()
    return [
        (method.upper(), path.replace("{ref}", REF), parameter["name"], schema["type"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for parameter in operation.get("parameters", [])
        for schema in parameter["schema"].get("anyOf", [parameter["schema"]])
        if parameter["in"] == "query" and schema.get("type") in ("integer", "boolean")
    ]


UNFIT = {
    "integer": ["1.0", "true", "+1", " 1", "1_0", "1e1", "0x1", "\u0661", "", "5,", "--1"],
    "boolean": ["1", "0", "True", "on", "yes", "t", " true", "", "null"],
}


async def test_integers_are_digits_and_booleans_are_words_in_every_query(
    api: Api, app: FastAPI
) -> None:
    parameters = _typed_parameters(app)
    assert {"limit", "refresh"} <= {name for _, _, name, _ in parameters}
    assert sum(kind == "integer" for _, _, _, kind in parameters) >= 4
    for method, path, name, kind in parameters:
        sent = {"json": question(None)} if method == "POST" else {}
        for value in UNFIT[kind]:
            answer = await api.client.request(
                method,
                path,
                params={name: value},
                headers=api.headers(),
                **sent,  # type: ignore[arg-type]
            )
            problem = assert_problem(answer, 422, "invalid-request")
            assert [error["parameter"] for error in problem["errors"]] == [name], (path, value)


def _cursor(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        _cursor(),
        _cursor("2030-01-01T00:00:00Z"),
        _cursor("2030-01-01T00:00:00", REF),
        _cursor("2030-01-01T00:00:00Z", "sha256:xyz"),
        _cursor("2030-01-01T00:00:00Z", REF + "\n"),
        _cursor("soon", REF),
        _cursor("2030-01-01T00:00:00+23:59:59.5", REF),
        _cursor("0001-01-01T00:00:00+23:59", REF),
        _cursor("9999-12-31T23:59:59-23:59", REF),
        _cursor("2030-01-01T00:00:00Z", 7),
        _cursor(*["x"] * 3),
        base64.urlsafe_b64encode(b"[" * 300).decode(),
        "é" * 10,
    ],
)
async def test_a_cursor_that_was_not_given_out_is_refused_or_harmless(
    api: Api, cursor: str
) -> None:
    answer = await api.get("/snapshots", {"cursor": cursor})
    if answer.status_code != 200:
        assert "cursor" in assert_problem(answer, 422, "invalid-cursor")["detail"]
