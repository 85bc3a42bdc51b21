"""SQL in every field of every call: kept as it came or refused, and it never runs.

The fields come from the OpenAPI document, so that one which is added is covered here.
"""

from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from app.adapters.postgres.database import Database
from app.api.operations import PUBLIC_PATHS
from tests.api.openapi_fields import Operation, Path, operations
from tests.api.service import PROBLEM, Api, Json, question, source, source_ids

EVERYTHING_AT_ONCE = (
    "x' OR '1'='1'); DROP TABLE snapshots; SELECT pg_sleep(60); -- \" $1 :name %s {columns} \\"
)
ONE_BY_ONE = {
    "always true": "x' OR '1'='1' --",
    "a statement behind": "'; DROP TABLE snapshots; --",
    "dollar quotes": "$$; DELETE FROM source_versions; $$",
    "no quotes": "1; SELECT pg_sleep(60)",
    "a parameter": "$1",
    "formats": "%s %(name)s :name {columns} {source_filter}",
    "a backslash before the quote": "\\'; SELECT 1; --",
    "a quote in Unicode": "U&'\\0027' OR 1=1 /*",
    "a quote in hexadecimal": "E'\\x27'",
    "JSON": '{"a":1}',
    "a word of SQL": "NULL",
}
INJECTIONS = [
    pytest.param(EVERYTHING_AT_ONCE, id="everything at once"),
    *(pytest.param(text, id=name, marks=pytest.mark.long) for name, text in ONE_BY_ONE.items()),
]
HEADERS = (
    "Accept",
    "Accept-Language",
    "Content-Type",
    "Cookie",
    "Host",
    "Idempotency-Key",
    "If-None-Match",
    "Prefer",
    "Traceparent",
    "X-Forwarded-For",
    "X-Request-Id",
    "X-Tenant-Id",
)
NOT_SHOWN = {
    ("heads", "*", "sourceRevision"),
    ("query",),
    ("sources", "*", "acl", "allow", "*"),
    ("sources", "*", "acl", "deny", "*"),
    ("sources", "*", "links", "*"),
}
"""Fields that no answer repeats, or only beside a source that is there."""
REF = "sha256:" + "0" * 64
SECRET = "the other tenant's words"


@pytest.fixture
async def other(api: Api) -> Api:
    """Another tenant, whose rows nobody else may see or touch."""
    other = api.elsewhere()
    await other.index(source("theirs.md", SECRET))
    await other.assemble(question("words"))
    return other


async def _all_rows(superuser: Database, api: Api) -> Counter[str]:
    """How many rows each table holds of a tenant."""
    async with superuser.engine.connect() as connection:
        tables = await connection.execute(
            sa.text(
                "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public'"
                " AND column_name = 'tenant_key'"
            )
        )
        rows: Counter[str] = Counter()
        for table in tables.scalars():
            counted = await connection.execute(
                sa.text(
                    f"SELECT count(*) FROM {table} WHERE tenant_key ="
                    " (SELECT tenant_key FROM tenants WHERE name = :name)"
                ),
                {"name": api.tenant},
            )
            rows[table] = counted.scalar_one()
        return rows


def _strings(node: Any) -> set[str]:
    if isinstance(node, str):
        return {node}
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return {text for part in parts for text in _strings(part)}


async def _told(api: Api, answers: list[Json]) -> set[str]:
    """Every string that the service tells after calls that it accepted."""
    listed = await api.read("/sources", {"limit": 1000})
    pins = [{"project": one["project"], "sourceId": one["sourceId"]} for one in listed["sources"]]
    everything = await api.assemble(question(None, pins=pins, budget={"maxTokens": 1_000_000}))
    told = _strings(listed) | _strings([*answers, everything])
    for snapshot in [one for one in (*answers, everything) if one.get("items")]:
        told |= _strings(await api.read(f"/snapshots/{snapshot['hash']}/contents"))
    return told


def _refused(answer: httpx.Response) -> bool:
    return 400 <= answer.status_code < 500 and answer.headers["content-type"] == PROBLEM


@pytest.mark.parametrize("injection", INJECTIONS)
async def test_sql_in_a_body_is_kept_as_it_came_or_refused(
    app: FastAPI, api: Api, other: Api, embedded_superuser: Database, injection: str
) -> None:
    before = await _all_rows(embedded_superuser, other)
    kept: dict[tuple[str, Path], str] = {}
    answers: list[Json] = []

    async def send(operation: Operation, body: Json) -> httpx.Response:
        method, path, headers = operation.method.upper(), operation.path, api.headers()
        return await api.client.request(method, path, json=body, headers=headers)

    tried = [one for one in operations(app.openapi()) if one.body and "{" not in one.path]
    for operation in tried:
        plain = await send(operation, operation.smallest_body())
        assert plain.status_code in (200, 201), (operation.name, plain.text)
        for path in operation.string_fields():
            # Of its own, so that another field cannot pass for it.
            value, name = f"{len(answers)} {injection}", f"plain-{len(answers)}"
            answer = await send(operation, operation.smallest_body(path, value, name=name))
            assert answer.status_code in (200, 201) or _refused(answer), (path, answer.text)
            assert SECRET not in answer.text
            if not _refused(answer):
                answers.append(answer.json())
                kept[operation.name, path] = value
    told = await _told(api, answers)
    lost = {path for (_, path), value in kept.items() if value not in told}
    assert lost <= NOT_SHOWN
    assert len(kept) >= 15
    assert {"createSnapshot", "putSources"} <= {name for name, _ in kept}
    assert await _all_rows(embedded_superuser, other) == before


@pytest.mark.parametrize("injection", INJECTIONS)
async def test_sql_in_an_address_finds_nothing_and_changes_nothing(
    app: FastAPI, api: Api, other: Api, embedded_superuser: Database, injection: str
) -> None:
    before, tried = await _all_rows(embedded_superuser, other), 0
    for operation in operations(app.openapi()):
        if operation.path in PUBLIC_PATHS:
            continue
        in_path = {one["name"] for one in operation.parameters("path")}
        in_query = {one["name"]: one for one in operation.parameters("query")}
        for name in [*in_path, *in_query]:
            path = operation.path
            for one in in_path:
                path = path.replace(f"{{{one}}}", quote(injection if one == name else REF, safe=""))
            query = {
                one: injection if one == name else "booking"
                for one, description in in_query.items()
                if one == name or description.get("required")
            }
            answer = await api.client.request(
                operation.method.upper(),
                path,
                params=query,
                headers=api.headers(),
                json=operation.smallest_body() if operation.body else None,
            )
            assert answer.status_code in (200, 201) or _refused(answer), (path, name, answer.text)
            assert SECRET not in answer.text
            assert "theirs.md" not in answer.text
            tried += 1
    assert tried > 20
    assert await _all_rows(embedded_superuser, other) == before


@pytest.mark.parametrize("injection", INJECTIONS)
async def test_sql_in_a_header_changes_no_answer(
    api: Api, other: Api, embedded_superuser: Database, injection: str
) -> None:
    await api.index(source("mine.md", "words"))
    before = await _all_rows(embedded_superuser, other)
    for name in HEADERS:
        headers = {**api.headers(), name: injection}
        listed = await api.client.get("/sources", headers=headers)
        assert listed.status_code == 200, (name, listed.text)
        assert source_ids(listed.json(), "sources") == ["mine.md"]
        assembled = await api.client.post("/snapshots", json=question("words"), headers=headers)
        refused = {"Content-Type": 415} | ({"Idempotency-Key": 422} if " " in injection else {})
        assert assembled.status_code == refused.get(name, 201), assembled.text
    for claim in ("sub", "tenant_id", "projects", "groups"):
        value = [injection] if claim in ("projects", "groups") else injection
        listed = await api.client.get("/sources", headers=api.token.headers("x", **{claim: value}))
        assert (listed.status_code, listed.json()["sources"]) == (200, []), (claim, listed.text)
    assert await _all_rows(embedded_superuser, other) == before
