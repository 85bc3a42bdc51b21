"""The service held to its own OpenAPI document, by calls that are generated from it.

What the document allows is taken, but for the rules that JSON Schema cannot say (`acceptable`);
what it forbids is refused; and every answer is as it is described: status, media type, headers
and schema. A 504 is never met, since deadlines that are drawn are made long ones.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.api.middleware.deadline import HEADER
from app.api.operations import PUBLIC_PATHS
from app.api.snapshot_examples import CREATE_SNAPSHOT_EXAMPLES
from app.api.source_examples import PUT_SOURCES_EXAMPLES, PUT_SOURCES_LINES_EXAMPLES
from app.api.strict_route import NDJSON
from app.config import Settings
from app.main import create_app
from tests.api.service import Api, question, source
from tests.property.sizes import sized
from tests.tokens import TokenFactory

Case = schemathesis.Case[Any]

AS_DESCRIBED = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
PROJECT = "booking"
# Refusals of what no schema can tell: they depend on what is stored, or on several members.
MEANT = {
    "as-of-unavailable",
    "budget-too-small",
    "idempotency-key-reused",
    "not-found",
    "pin-unavailable",
    "scope-exceeds-grant",
    "unknown-strategy",
    "version-not-kept",
}
STARTS = [
    "createSnapshot", "listAuditEvents", "listAuditSeals", "listSnapshots", "listSources",
    "listStrategies", "putSources",
]  # fmt: skip
MOST_STEPS = 4
BODIES = {
    "createSnapshot": [one["value"] for one in CREATE_SNAPSHOT_EXAMPLES.values()],
    "putSources": [one["value"] for one in PUT_SOURCES_EXAMPLES.values()],
}
BODIES_IN_FULL = {
    "createSnapshot": question("cancel", scope={"projects": [PROJECT]}),
    "putSources": {"sources": [source("a.md", "cancel")]},
}
CONFIG = {
    # NUL is refused everywhere, which patterns of every field would have to say.
    "generation": {"allow-x00": False, "with-security-parameters": False},
}


@dataclass(frozen=True)
class Described:
    """The service in this process, and its description."""

    schema: Any
    session: Any
    headers: dict[str, str]
    allowed: st.SearchStrategy[Case]
    forbidden: st.SearchStrategy[Case]

    def operation(self, name: str) -> Any:
        return self.schema.find_operation_by_id(name)

    def links(self, name: str) -> dict[str, dict[str, str]]:
        """The operations that an answer of this one leads to, with their parameters."""
        answer = self.operation(name).definition.raw["responses"]["200"]
        return {
            link["operationId"]: link["parameters"] for link in answer.get("links", {}).values()
        }

    def call(self, case: Case) -> Response:
        allow_time(case)
        response = case.call(session=self.session, headers=dict(self.headers))
        case.validate_response(response, checks=AS_DESCRIBED, headers=dict(self.headers))
        return response


@pytest.fixture(scope="module")
def described(
    service_settings: Settings, token: TokenFactory, make_tenant: Callable[[], str]
) -> Iterator[Described]:
    app: Any = create_app(service_settings)
    config = schemathesis.Config.from_dict(CONFIG)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config)
    with asgi.get_client(app) as session:
        yield Described(
            schema,
            session,
            token.headers(make_tenant()),
            calls(schema, GenerationMode.POSITIVE),
            calls(schema, GenerationMode.NEGATIVE),
        )
    asgi.shutdown_lifespans()


def calls(schema: Any, mode: GenerationMode) -> st.SearchStrategy[Case]:
    """Of every operation that takes something; the public ones take nothing."""
    operations = [found.ok() for found in schema.get_all_operations()]
    return st.one_of(
        *(
            operation.as_strategy(generation_mode=mode)
            for operation in operations
            if operation.path not in PUBLIC_PATHS
        )
    )


def allow_time(case: Case) -> None:
    if case.headers.get(HEADER, "").isdigit() and int(case.headers[HEADER]) > 0:
        case.headers[HEADER] = "300000"


def acceptable(case: Case) -> None:
    """Bring a call that fits its schema under the rules that no schema tells."""
    query = case.query
    body: Any = case.body
    query.pop("cursor", None)
    if "include" in query:
        query["include"] = ",".join(dict.fromkeys(query["include"].split(",")))
    if str(query.get("dryRun")).lower() == "true":
        case.headers.pop("Idempotency-Key", None)
    if case.media_type == NDJSON:
        case.body = PUT_SOURCES_LINES_EXAMPLES["lines"]["value"].encode()
    elif isinstance(body, dict):
        in_one_project(body)
        for name in ("sources", "heads"):
            if name in body:
                body[name] = list({one["sourceId"]: one for one in body[name]}.values())
        for source in body.get("sources", []):
            cut_by_one(source)
        for one in (*body.get("sources", []), *body.get("items", [])):
            if one["class"] == "policy":
                one["trustTier"] = "system-policy"
        if "budget" in body:
            body["budget"] = known_budget(body["budget"])
        if body.get("asOf") is not None:
            body["asOf"] = {"indexVersion": 0}
        case.body = body


def in_one_project(body: dict[str, Any]) -> None:
    """It may be left out only where the scope has exactly one."""
    if "runId" in body:
        body["scope"] = {**body.get("scope", {}), "projects": [PROJECT]}
    for name in ("sources", "heads", "items", "pins"):
        for one in body.get(name, []):
            one["project"] = PROJECT


def known_budget(budget: dict[str, Any]) -> dict[str, Any]:
    """In an encoding that is known, with something left; to JSON Schema 5.0 is an integer."""
    kept = {
        name: int(value) if isinstance(value, float) else value
        for name, value in budget.items()
        if name not in ("encoding", "model")
    }
    if kept.get("reservedForOutput") is not None:
        kept["maxTokens"] = kept.get("maxTokens") or 1
        kept["reservedForOutput"] = min(kept["reservedForOutput"], kept["maxTokens"] - 1)
    return kept


def cut_by_one(source: dict[str, Any]) -> None:
    """By the service, or by the writer with an id for each chunk."""
    if source.get("chunks") is None:
        source["text"] = source.get("text") or "words"
    else:
        source["chunks"] = list({one["chunkId"]: one for one in source["chunks"]}.values())
        source.pop("text", None)


@sized(1400, full=9000)
@given(data=st.data())
def test_what_the_document_allows_is_taken(described: Described, data: st.DataObject) -> None:
    case = data.draw(described.allowed)
    acceptable(case)
    response = described.call(case)
    assert response.status_code < 400 or response.json()["code"] in MEANT, response.text


@sized(400, full=8000)
@given(data=st.data())
def test_what_the_document_forbids_is_refused(described: Described, data: st.DataObject) -> None:
    described.call(data.draw(described.forbidden))


async def test_every_link_names_a_value_of_the_answer(described: Described, api: Api) -> None:
    await api.index(source("a.md", "cancel"), source("b.md", "cancel"))
    for _ in range(2):
        await api.assemble(question("cancel"))
        await api.read("/audit/seals")
    schema = described.schema.raw_schema
    followed = set()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            links = described.links(operation["operationId"])
            if not links:
                continue
            body = BODIES_IN_FULL.get(operation["operationId"])
            limited = any(one["name"] == "limit" for one in operation["parameters"])
            parameters = {"limit": "1"} if limited else {}
            answer = await api.client.request(
                method, path, json=body, params=parameters, headers=api.headers()
            )
            assert answer.status_code < 300, answer.text
            for target, values in links.items():
                found = {name: linked(value, answer.json()) for name, value in values.items()}
                assert None not in found.values(), (operation["operationId"], target)
                followed.add(target)
    assert len(followed) >= 12


@sized(60, full=1000)
@given(data=st.data())
def test_links_lead_to_what_is_there(described: Described, data: st.DataObject) -> None:
    # All is drawn first: what is drawn may not depend on what is stored by now.
    cases = [start(described, data)]
    while len(cases) < MOST_STEPS and (links := described.links(name_of(cases[-1]))):
        target = data.draw(st.sampled_from(sorted(links)))
        cases.append(data.draw(described.operation(target).as_strategy()))
    answer: Any = {}
    for before, case in zip([None, *cases], cases, strict=False):
        acceptable(case)
        if before is not None and not follow(described, before, answer, case):
            return
        response = described.call(case)
        if response.status_code == 304:
            return
        # An erased text is told so in place of a prompt.
        assert response.status_code < 400 or response.json()["code"] == "content-erased"
        answer = json.loads(response.content) if is_json(response) else None


def start(described: Described, data: st.DataObject) -> Case:
    name = data.draw(st.sampled_from(STARTS))
    bodies = BODIES.get(name)
    if bodies is None:
        return data.draw(described.operation(name).as_strategy())
    body = json.loads(json.dumps(data.draw(st.sampled_from(bodies))))
    strategy = described.operation(name).as_strategy(body=body, media_type="application/json")
    return data.draw(strategy.map(without_parts))


def without_parts(case: Case) -> Case:
    """A new snapshot, and that alone: links are into it, and parts would stand beside it."""
    case.headers.pop("Idempotency-Key", None)
    for name in ("include", "dryRun"):
        case.query.pop(name, None)
    return case


def follow(described: Described, before: Case, answer: Any, case: Case) -> bool:
    """Give the case what the link takes from the answer; False where that is not in it."""
    for name, expression in described.links(name_of(before))[name_of(case)].items():
        value = linked(expression, answer)
        if value is None:
            return False
        place = case.path_parameters if f"{{{name}}}" in case.path else case.query
        place[name] = value
    return True


def linked(expression: str, answer: Any) -> Any:
    """The value that a link's expression names in an answer; None where it has none."""
    value = answer
    for step in expression.removeprefix("$response.body#/").split("/"):
        try:
            value = value[int(step) if isinstance(value, list) else step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def name_of(case: Case) -> str:
    return str(case.operation.definition.raw["operationId"])


def is_json(response: Response) -> bool:
    return response.headers["content-type"] == ["application/json"]
