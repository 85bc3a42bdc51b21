"""Property 11: bad input gets a problem document that names the field, never a 500."""

import json
from typing import Any
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import Caller, Json, requests, sources

_EVERYONE = Caller("ana", ["*"], [], None, "restricted")

_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["*", "\x00", "\ud83d", "'; DROP TABLE snapshots --", "x' OR '1'='1' --", "😀" * 300]
    ),
    st.just([]),
    st.just({}),
    st.lists(st.text(max_size=3), max_size=3),
)


@st.composite
def _spoiled(draw: st.DrawFn, document: Json) -> Any:
    """The document with one member, somewhere, replaced, removed, renamed or added."""
    spoiled = json.loads(json.dumps(document))
    at: Any = spoiled
    while True:
        keys = list(at.keys()) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return spoiled
        key = draw(st.sampled_from(keys))
        inner = at[key]
        if isinstance(inner, dict | list) and inner and draw(st.booleans()):
            at = inner
            continue
        what = draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "replace" or isinstance(at, list):
            at[key] = draw(_VALUES)
        elif what == "remove":
            del at[key]
        else:
            at[draw(st.text(max_size=8))] = draw(_VALUES)
        return spoiled


@sized(80, full=10_000)
@given(data=st.data())
async def test_a_spoiled_request_is_refused_with_a_problem_or_is_fine(
    service: Service, data: st.DataObject
) -> None:
    tenant = "no-surprise"
    kind = data.draw(st.sampled_from(["snapshots", "sources"]))
    if kind == "snapshots":
        body = data.draw(_spoiled(data.draw(requests(_EVERYONE))))
    else:
        body = data.draw(_spoiled({"sources": [data.draw(sources())]}))
    method = "POST" if kind == "snapshots" else "PUT"
    answer = await service.client.request(
        method,
        f"/{kind}",
        content=json.dumps(body).encode("utf-8", "surrogatepass"),
        headers={**service.token.headers(tenant), "Content-Type": "application/json"},
    )
    if answer.status_code in (200, 201):
        return
    assert answer.status_code in (400, 403, 409, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"]
    assert problem["requestId"]
    assert problem["detail"]


@sized(60, full=2_000)
@given(body=st.binary(max_size=200))
async def test_any_bytes_for_a_body_are_answered(service: Service, body: bytes) -> None:
    headers = {**service.token.headers("no-surprise"), "Content-Type": "application/json"}
    answer = await service.client.post("/snapshots", content=body, headers=headers)
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


_URL_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@sized(60, full=2_000)
@given(ref=_URL_TEXT, cursor=_URL_TEXT)
async def test_any_reference_and_any_parameter_are_answered(
    service: Service, ref: str, cursor: str
) -> None:
    for path in (f"/snapshots/{quote(ref, safe='')}", f"/snapshots?cursor={quote(cursor)}"):
        answer = await service.get("no-surprise", path)
        assert answer.status_code in (200, 400, 404, 405, 422), answer.text
