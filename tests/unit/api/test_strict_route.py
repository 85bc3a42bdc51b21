"""The strict route end to end on a small application, and the models behind it."""

import json
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from app.api.problems import ProblemMiddleware, install_problem_handlers
from app.api.strict_model import (
    MAX_IDENTIFIER_CHARS,
    MAX_MEMBERS,
    MAX_TOKENS,
    Identifier,
    Instant,
    StrictModel,
    Tokens,
    Uuid,
)
from app.api.strict_route import StrictJsonRoute, accepts_ndjson

_VECTORS = Path(__file__).resolve().parents[4] / "shared" / "data" / "vectors"
_JSON = {"content-type": "application/json"}
_NDJSON = {"content-type": "application/x-ndjson"}


class Tier(StrEnum):
    USER = "user"
    AGENT = "agent"


class Part(StrictModel):
    chunk_id: Identifier
    tier: Tier = Tier.USER
    parts: "tuple[Part, ...]" = ()


class Order(StrictModel):
    run_id: Uuid | None = None
    at: Instant | None = None
    max_tokens: Tokens = 0
    ratio: float | None = None
    flag: bool = False
    text: str | None = None
    tiers: tuple[Tier, ...] | None = None
    parts: tuple[Part, ...] = ()
    notes: Annotated[dict[str, tuple[int, ...]], Field(max_length=3)] | None = None


class Chapter(StrictModel):
    page: "Page | None" = None


class Page(StrictModel):
    chapters: tuple[Chapter, ...]
    tier: Tier = Tier.USER


Chapter.model_rebuild()


class Load(StrictModel):
    sources: tuple[Part, ...]


class Filter(BaseModel):
    prefix: str | None = None
    kinds: list[str] | None = Field(default=None, alias="kind")


threads: list[str] = []


class Witness(StrictModel):
    text: Annotated[str, Field(min_length=1)]

    def model_post_init(self, context: Any, /) -> None:
        threads.append(threading.current_thread().name)


def page(cursor: str | None = None) -> str | None:
    return cursor


def forbid(role: str = "user") -> None:
    if role == "nobody":
        raise HTTPException(403)


@pytest.fixture
def app() -> FastAPI:
    router = APIRouter(route_class=StrictJsonRoute)

    @router.post("/orders", dependencies=[Depends(forbid)])
    async def post_order(order: Order) -> dict[str, Any]:
        return order.model_dump(mode="json", by_alias=True)

    @router.post("/optional")
    async def post_optional(order: Order | None = None) -> bool:
        return order is None

    @router.put("/sources")
    @accepts_ndjson("sources")
    async def put_sources(load: Load, request: Request) -> list[Any]:
        return [[part.chunk_id for part in load.sources], len(await request.body())]

    @router.post("/witness")
    async def post_witness(witness: Witness) -> int:
        return len(witness.text)

    @router.post("/two")
    async def post_two(one: Part, two: Part) -> list[str]:
        return [one.chunk_id, two.chunk_id]

    @router.get("/list/{name}")
    async def read_list(
        name: str,
        filters: Annotated[Filter, Query()],
        cursor: Annotated[str | None, Depends(page)],
    ) -> list[Any]:
        return [name, filters.prefix, filters.kinds, cursor]

    @router.delete("/items")
    async def delete_items(
        source_id: Annotated[list[str], Query(alias="sourceId")],
        limit: int | None = None,
        erase: bool = False,
    ) -> list[Any]:
        return [source_id, limit, erase]

    @router.get("/healthz")
    async def healthz() -> str:
        return "ok"

    app = FastAPI()
    app.include_router(router)
    install_problem_handlers(app)
    app.add_middleware(ProblemMiddleware)
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def post(client: httpx.AsyncClient, body: bytes | str) -> httpx.Response:
    return await client.post("/orders", content=body, headers=_JSON)


async def test_a_good_body_is_read_in_full(client: httpx.AsyncClient) -> None:
    body = {
        "runId": "6F1C0C5E-0A57-4A3E-9D7E-2F6F5F0B8A11",
        "at": "2025-01-31t09:30:00.5+02:00",
        "maxTokens": 8000,
        "ratio": 1,
        "tiers": ["agent"],
        "parts": [{"chunkId": "a", "tier": "agent", "parts": [{"chunkId": "b"}]}],
        "notes": {"x": [1]},
    }
    response = await client.post("/orders", json=body)
    assert response.status_code == 200
    read = response.json()
    assert read["runId"] == "6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11"
    assert read["at"] == "2025-01-31T07:30:00.500000Z"
    assert read["parts"][0]["parts"][0] == {"chunkId": "b", "tier": "user", "parts": []}
    assert read["tiers"] == ["agent"]


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        pytest.param(b'{"text":"\\u0000"}', 422, "/text", id="nul"),
        pytest.param(b'{"text":"\\ud83d"}', 422, "/text", id="lone-surrogate"),
        pytest.param(b'{"ratio":NaN}', 400, "/ratio", id="nan"),
        pytest.param(b'{"ratio":1e400}', 422, "/ratio", id="overflow"),
        pytest.param(b'{"maxTokens":9007199254740993}', 422, "/maxTokens", id="big-integer"),
        pytest.param(b'{"flag":true,"flag":true}', 422, "/flag", id="duplicate"),
        pytest.param(b"[" * 100 + b"]" * 100, 422, "/0" * 64, id="100-arrays"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, 422, "", id="100000-arrays"),
        pytest.param('{"flag":true}'.encode("utf-16"), 400, None, id="utf-16"),
        pytest.param(b'\xef\xbb\xbf{"flag":true}', 400, None, id="byte-order-mark"),
        pytest.param(b"{", 400, None, id="syntax"),
        pytest.param(b"", 400, None, id="empty"),
        pytest.param(b"null", 422, "", id="null"),
        pytest.param(b"[]", 422, "", id="array"),
        pytest.param(b'"x"', 422, "", id="string"),
        pytest.param(b'{"maxTokens":true}', 422, "/maxTokens", id="true-for-integer"),
        pytest.param(b'{"maxTokens":"5"}', 422, "/maxTokens", id="string-for-integer"),
        pytest.param(b'{"maxTokens":1.0}', 422, "/maxTokens", id="float-for-integer"),
        pytest.param(b'{"maxTokens":-1}', 422, "/maxTokens", id="negative"),
        pytest.param(b'{"maxTokens":2147483648}', 422, "/maxTokens", id="above"),
        pytest.param(b'{"flag":1}', 422, "/flag", id="integer-for-boolean"),
        pytest.param(b'{"flag":"true"}', 422, "/flag", id="string-for-boolean"),
        pytest.param(b'{"text":5}', 422, "/text", id="integer-for-string"),
        pytest.param(b'{"ratio":"1"}', 422, "/ratio", id="string-for-number"),
        pytest.param(b'{"at":"2025-01-31T09:30:00"}', 422, "/at", id="naive-time"),
        pytest.param(b'{"at":"2025-02-30T09:30:00Z"}', 422, "/at", id="no-such-day"),
        pytest.param(b'{"at":"0001-01-01T00:00:00+01:00"}', 422, "/at", id="before-year-1"),
        pytest.param(b'{"at":"2025-01-31"}', 422, "/at", id="date"),
        pytest.param(b'{"at":1738315800}', 422, "/at", id="seconds"),
        pytest.param(b'{"runId":"6f1c0c5e"}', 422, "/runId", id="short-uuid"),
        pytest.param(
            b'{"runId":"{6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11}"}', 422, "/runId", id="braced-uuid"
        ),
        pytest.param(b'{"max_tokens":1}', 422, "/max_tokens", id="snake-case"),
        pytest.param(b'{"unknown":1}', 422, "/unknown", id="unknown-field"),
        pytest.param(b'{"tiers":["owner"]}', 422, "/tiers/0", id="no-such-name"),
        pytest.param(b'{"tiers":"user"}', 422, "/tiers", id="string-for-array"),
        pytest.param(b'{"tiers":{"0":"user"}}', 422, "/tiers", id="object-for-array"),
        pytest.param(b'{"parts":[{"tier":"user"}]}', 422, "/parts/0/chunkId", id="missing"),
        pytest.param(b'{"parts":[{"chunkId":""}]}', 422, "/parts/0/chunkId", id="too-short"),
        pytest.param(b'{"notes":{"a":["1"]}}', 422, "/notes/a/0", id="strict-inside"),
    ],
)
async def test_what_stock_fastapi_takes_or_fails_at_is_refused_and_located(
    client: httpx.AsyncClient, body: bytes, status: int, pointer: str | None
) -> None:
    response = await post(client, body)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    pointers = [fault["pointer"] for fault in response.json().get("errors", [])]
    assert pointers == ([] if pointer is None else [pointer])


async def test_900_nested_arrays_are_refused_with_the_limit(client: httpx.AsyncClient) -> None:
    response = await post(client, b"[" * 900 + b"]" * 900)
    assert response.status_code == 422
    assert "64" in response.json()["detail"]


async def test_the_limits_are_named(client: httpx.AsyncClient) -> None:
    response = await post(client, json.dumps({"maxTokens": MAX_TOKENS + 1}))
    assert str(MAX_TOKENS) in response.json()["detail"]
    long = json.dumps({"parts": [{"chunkId": "s" * (MAX_IDENTIFIER_CHARS + 1)}]})
    response = await post(client, long)
    assert str(MAX_IDENTIFIER_CHARS) in response.json()["detail"]
    assert "sss" not in response.text


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/jsonx",
        "text/json",
        "application/x-ndjson",
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
        "application/json; charset=latin-1",
        "multipart/form-data; boundary=x",
        "",
        ";",
    ],
)
async def test_other_media_types_are_415(client: httpx.AsyncClient, content_type: str) -> None:
    response = await client.post("/orders", content=b"{}", headers={"content-type": content_type})
    assert response.status_code == 415
    assert response.json()["code"] == "unsupported-media-type"
    assert "application/json" in response.json()["detail"]


async def test_a_body_without_a_type_or_with_two_or_compressed_is_415(
    client: httpx.AsyncClient,
) -> None:
    assert (await client.post("/orders", content=b"{}")).status_code == 415
    twice = [("content-type", "application/json"), ("content-type", "text/plain")]
    assert (await client.post("/orders", content=b"{}", headers=twice)).status_code == 415
    zipped = {**_JSON, "content-encoding": "gzip"}
    assert (await client.post("/orders", content=b"{}", headers=zipped)).status_code == 415


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON; Charset=UTF-8",
        'application/json;charset="utf-8"',
        "application/merge-patch+json",
        "application/ld+json; profile=x",
    ],
)
async def test_json_by_any_of_its_names_is_read(
    client: httpx.AsyncClient, content_type: str
) -> None:
    headers = {"content-type": content_type, "content-encoding": "identity"}
    response = await client.post("/orders", content=b"{}", headers=headers)
    assert response.status_code == 200, response.text


async def test_an_optional_body_may_be_left_out(client: httpx.AsyncClient) -> None:
    assert (await client.post("/optional")).json() is True
    assert (await client.post("/optional", json={})).json() is False
    assert (await client.post("/optional", content=b"{", headers=_JSON)).status_code == 400


async def test_a_body_on_get_is_not_looked_at(client: httpx.AsyncClient) -> None:
    response = await client.request("GET", "/healthz", content=b"\xff{", headers=_JSON)
    assert response.status_code == 200


async def test_several_body_parameters_are_read_as_members_of_one_object(
    client: httpx.AsyncClient,
) -> None:
    filler = "x" * 70_000
    body = {"one": {"chunkId": "a"}, "two": {"chunkId": "b"}}
    assert (await client.post("/two", json=body)).json() == ["a", "b"]
    body["one"]["tier"] = filler
    response = await client.post("/two", json=body)
    assert [fault["pointer"] for fault in response.json()["errors"]] == ["/one/tier"]


async def test_ndjson_lines_become_the_array_of_the_same_model(client: httpx.AsyncClient) -> None:
    lines = b'{"chunkId":"a"}\n{"chunkId":"b"}\n'
    response = await client.put("/sources", content=lines, headers=_NDJSON)
    assert response.json() == [["a", "b"], len(lines)]
    response = await client.put("/sources", json={"sources": [{"chunkId": "a"}]})
    assert response.json()[0] == ["a"]


@pytest.mark.parametrize(
    ("lines", "status", "pointer"),
    [
        (b'{"chunkId":"a"}\n{"chunkId":}', 400, "/sources/1"),
        (b'{"chunkId":"a"}\n{"chunkId":"\\u0000"}', 422, "/sources/1/chunkId"),
        (b'{"chunkId":"a"}\n{"chunkId":5}', 422, "/sources/1/chunkId"),
        (b'{"chunkId":"a"}\n[]', 422, "/sources/1"),
    ],
)
async def test_faults_in_ndjson_are_located_by_line(
    client: httpx.AsyncClient, lines: bytes, status: int, pointer: str
) -> None:
    response = await client.put("/sources", content=lines, headers=_NDJSON)
    assert response.status_code == status
    assert response.json()["errors"][0]["pointer"] == pointer


async def test_ndjson_without_lines_is_malformed(client: httpx.AsyncClient) -> None:
    for body in (b"", b"\n\n"):
        response = await client.put("/sources", content=body, headers=_NDJSON)
        assert response.status_code == 400


@pytest.mark.parametrize(
    ("query", "parameter", "told"),
    [
        ("sourceId=a&source_id=b", "source_id", "erase, limit, sourceId"),
        ("sourceId=a&limit=1&limit=2", "limit", "once"),
        ("sourceId=a&erase=true&erase=true", "erase", "once"),
        ("sourceId=a%00b", "sourceId", "NUL"),
        ("sourceId=%ff", "query", "UTF-8"),
        ("sourceId=a&limit=x", "limit", "integer"),
        ("sourceId=a&limit=1.0", "limit", "plain digits"),
        ("sourceId=a&limit=true", "limit", "plain digits"),
        ("sourceId=a&limit=%2B1", "limit", "plain digits"),
        ("sourceId=a&limit=1%20", "limit", "plain digits"),
        ("sourceId=a&limit=1_0", "limit", "plain digits"),
        ("sourceId=a&limit=%D9%A1", "limit", "plain digits"),
        ("sourceId=a&limit=", "limit", "plain digits"),
        ("sourceId=a&erase=1", "erase", "true or false"),
        ("sourceId=a&erase=True", "erase", "true or false"),
        ("sourceId=a&erase=", "erase", "true or false"),
        ("", "sourceId", "required"),
        ("sourceId=a&%F0%9F%98%80=1", "😀", "not known"),
    ],
)
async def test_faulty_query_parameters_are_422_and_named(
    client: httpx.AsyncClient, query: str, parameter: str, told: str
) -> None:
    response = await client.delete(f"/items?{query}")
    assert response.status_code == 422
    (fault,) = response.json()["errors"]
    assert fault["parameter"] == parameter
    assert told in fault["detail"]


async def test_repeatable_parameters_and_those_of_models_and_dependencies_are_known(
    client: httpx.AsyncClient,
) -> None:
    response = await client.delete("/items?sourceId=a&sourceId=b&erase=true")
    assert response.json() == [["a", "b"], None, True]
    response = await client.get("/list/x?prefix=p&kind=1&kind=2&cursor=c")
    assert response.json() == ["x", "p", ["1", "2"], "c"]
    response = await client.get("/list/x?prefix=p&prefix=q&kinds=1")
    assert {fault["parameter"] for fault in response.json()["errors"]} == {"prefix", "kinds"}


async def test_nul_in_the_path_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.get("/list/a%00b")
    assert response.status_code == 422
    assert response.json()["errors"][0]["parameter"] == "name"


async def test_a_dependency_that_refuses_comes_before_faults_of_the_body(
    client: httpx.AsyncClient,
) -> None:
    for text in (b"x", b"x" * 100_000):
        body = b'{"text":"' + text + b'","unknown":1}'
        response = await client.post("/orders?role=nobody", content=body, headers=_JSON)
        assert response.status_code == 403
        response = await client.post("/orders", content=body, headers=_JSON)
        assert response.json()["errors"][0]["pointer"] == "/unknown"


async def test_long_bodies_are_validated_once_and_off_the_event_loop(
    client: httpx.AsyncClient,
) -> None:
    threads.clear()
    assert (await client.post("/witness", json={"text": "x" * 100_000})).json() == 100_000
    assert (await client.post("/witness", json={"text": "x"})).json() == 1
    here = threading.current_thread().name
    assert [name == here for name in threads] == [False, True]


@pytest.mark.long
async def test_a_body_with_a_fault_in_every_entry_is_answered_quickly(
    client: httpx.AsyncClient,
) -> None:
    count = 200_000
    crowd = json.dumps({f"k{number}": 1 for number in range(count)})
    bodies = {
        "/tiers/0": '{"tiers":[' + ",".join(["1"] * count) + "]}",
        "/parts/0": '{"parts":[' + ",".join(["1"] * count) + "]}",
        "": crowd,
        "/parts/0/parts/0": '{"parts":[{"chunkId":"a","parts":[' + crowd + "]}]}",
    }
    for pointer, body in bodies.items():
        start_s = time.process_time()
        response = await post(client, body)
        assert time.process_time() - start_s < 3
        assert [fault["pointer"] for fault in response.json()["errors"]] == [pointer]
    assert str(MAX_MEMBERS) in (await post(client, crowd)).json()["detail"]


async def test_the_openapi_document_can_still_be_made(app: FastAPI) -> None:
    schemas = app.openapi()["components"]["schemas"]
    assert schemas["Part"]["properties"]["tier"]["$ref"] == "#/components/schemas/Tier"
    assert schemas["Order"]["properties"]["maxTokens"]["maximum"] == MAX_TOKENS
    assert schemas["Order"]["additionalProperties"] is False


@pytest.mark.shared_data
@pytest.mark.skipif(
    not _VECTORS.is_dir(), reason="needs ../shared/data/vectors beside the checkout"
)
async def test_naughty_strings_come_back_as_they_were_sent(client: httpx.AsyncClient) -> None:
    strings = json.loads((_VECTORS / "naughty-strings" / "blns.json").read_bytes())
    for text in strings:
        response = await client.post("/orders", json={"text": text})
        assert response.json()["text"] == text
        named = await client.delete("/items", params={"sourceId": text})
        assert named.json()[0] == [text]


def test_a_model_cannot_be_changed_and_takes_no_names_but_those_of_the_wire() -> None:
    part = Part.model_validate({"chunkId": "a"})
    with pytest.raises(ValidationError):
        part.tier = Tier.AGENT  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Part.model_validate({"chunk_id": "a"})


def test_models_that_refer_to_each_other_read_arrays_and_names_too() -> None:
    chapter = Chapter.model_validate({"page": {"chapters": [{"page": None}], "tier": "agent"}})
    assert chapter.page == Page.model_validate({"chapters": (Chapter(),), "tier": Tier.AGENT})
    with pytest.raises(ValidationError):
        Chapter.model_validate({"page": {"chapters": [{"page": {"chapters": [1]}}]}})


def test_the_text_of_a_validation_error_does_not_hold_the_input() -> None:
    with pytest.raises(ValidationError) as caught:
        Part.model_validate({"chunkId": "a", "tier": "secret"})
    assert "secret" not in str(caught.value)


def test_times_in_python_are_taken_with_a_zone_only_and_read_into_utc() -> None:
    order = Order.model_validate({"at": datetime.fromisoformat("2025-01-31T01:00:00+02:00")})
    assert order.at == datetime(2025, 1, 30, 23, tzinfo=UTC)
    assert order.at.tzinfo is UTC
    with pytest.raises(ValidationError):
        Order.model_validate({"at": datetime.fromisoformat("2025-01-31T01:00:00")})
