"""Bad input and missing rights: a problem document that says what to mend, never a 500."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.api.service import (
    Api,
    assert_problem,
    item,
    question,
    source,
    source_ids,
)

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
UUIDS = (
    '"runId":"6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11",'
    '"attemptId":"0b8f3f0c-7a53-4f6a-8c3e-5a1d2b3c4d5e"'
)

# Each text is a member's value; it is put into a request of each call.
REFUSED_VALUES: dict[str, tuple[str, int]] = {
    "NUL": ('"a\\u0000b"', 422),
    "half of a pair": ('"\\ud83d"', 422),
    "the other half": ('"\\ude00x"', 422),
    "NaN": ("NaN", 400),
    "Infinity": ("-Infinity", 400),
    "1e400": ("1e400", 422),
    "2^53+1": ("9007199254740993", 422),
    "a thousand digits": ("1" * 1000, 422),
    "duplicate names": ('{"a":1,"a":2}', 422),
    "900 arrays": ("[" * 900 + "]" * 900, 422),
    "100,000 arrays": ("[" * 100_000 + "]" * 100_000, 422),
    "a raw control": ('"\x01"', 400),
    "single quotes": ("'x'", 400),
    "a comment": ("/**/1", 400),
    "a trailing comma": ("[1,]", 400),
    "true": ("true", 422),
    "null for a text": ("null", 422),
    "a number for a text": ("5", 422),
    "an array for a text": ("[]", 422),
}


async def _send(api: Api, method: str, path: str, body: bytes, **headers: str) -> httpx.Response:
    return await api.client.request(
        method, path, content=body, headers={**api.headers(), **JSON, **headers}
    )


def _post_body(value: str) -> str:
    return (
        f'{{{UUIDS},"items":[{{"class":"task","sourceId":"t","sourceRevision":"1","chunkId":"0",'
        f'"project":"booking","text":{value}}}]}}'
    )


def _put_body(value: str) -> str:
    return (
        '{"sources":[{"class":"task","sourceId":"t","sourceRevision":"1","project":"booking",'
        f'"text":{value}}}]}}'
    )


def _load_body(value: str) -> str:
    good = _put_body('"x"').removeprefix('{"sources":[').removesuffix("]}")
    return good.replace('"t"', '"first"') + "\n" + good.replace('"x"', value)


Call = tuple[str, str, dict[str, str], Callable[[str], str], str]
CALLS: dict[str, Call] = {
    "POST /snapshots": ("POST", "/snapshots", JSON, _post_body, "/items/0"),
    "PUT /sources": ("PUT", "/sources", JSON, _put_body, "/sources/0"),
    "PUT /sources, a load": ("PUT", "/sources", NDJSON, _load_body, "/sources/1"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", REFUSED_VALUES)
async def test_what_readers_take_differently_is_refused(api: Api, call: str, name: str) -> None:
    value, status = REFUSED_VALUES[name]
    method, path, media_type, body, pointer = CALLS[call]
    answer = await _send(api, method, path, body(value).encode(), **media_type)
    code = "invalid-request" if status == 422 else "malformed-request"
    problem = assert_problem(answer, status, code, path=path)
    if status == 422 and "thousand" not in name and "100,000" not in name:
        assert problem["errors"][0]["pointer"].startswith(pointer)
    assert await api.index_version() == 0
    assert (await api.read("/snapshots"))["snapshots"] == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.encode("utf-32"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("latin-1"),
        lambda text: text.replace("é", "\ud83d").encode("utf-8", "surrogatepass"),
        lambda text: b"",
        lambda text: b" ",
        lambda text: text.encode()[:-1],
        lambda text: text.encode() + b"x",
    ],
    ids=[
        "UTF-16",
        "UTF-16 without mark",
        "UTF-32",
        "byte order mark",
        "Latin-1",
        "encoded surrogate",
        "empty",
        "blank",
        "cut short",
        "trailing text",
    ],
)
async def test_what_is_no_json_in_utf_8_is_malformed(
    api: Api, call: str, encode: Callable[[str], bytes]
) -> None:
    method, path, media_type, body, _ = CALLS[call]
    answer = await _send(api, method, path, encode(body('"é"')), **media_type)
    assert_problem(answer, 400, "malformed-request", path=path)


@pytest.mark.parametrize("value", ["true", '"5"', "1.0", "5.0e2", "[]", "-0.0"])
@pytest.mark.parametrize("member", ["maxTokens", "reservedForOutput"])
async def test_only_an_integer_is_an_integer(api: Api, member: str, value: str) -> None:
    body = f'{{{UUIDS},"budget":{{"{member}":{value}}}}}'
    answer = await _send(api, "POST", "/snapshots", body.encode())
    assert_problem(answer, 422, "invalid-request", f"/budget/{member}")


@pytest.mark.parametrize("value", ["1", "0", '"true"', "null", "[]"])
async def test_only_a_boolean_is_a_boolean(api: Api, value: str) -> None:
    pin = f'{{"project":"booking","sourceId":"a.md","required":{value}}}'
    answer = await _send(api, "POST", "/snapshots", f'{{{UUIDS},"pins":[{pin}]}}'.encode())
    assert_problem(answer, 422, "invalid-request", "/pins/0/required")


@pytest.mark.parametrize(
    "when",
    [
        '"2030-01-01T00:00:00"',
        '"2030-01-01"',
        '"2030-02-30T00:00:00Z"',
        '"2030-01-01T24:30:00Z"',
        '"2030-01-01T00:00:60Z"',
        '"0001-01-01T00:00:00+01:00"',
        '"9999-12-31T23:59:59-01:00"',
        '"tomorrow"',
        '""',
        "1893456000",
    ],
)
async def test_a_time_without_a_zone_or_sense_is_refused(api: Api, when: str) -> None:
    body = _put_body('"x"').replace('"class"', f'"expiresAt":{when},"class"')
    answer = await _send(api, "PUT", "/sources", body.encode())
    assert_problem(answer, 422, "invalid-request", "/sources/0/expiresAt")
    since = await api.get("/audit", {"since": when.strip('"')})
    problem = assert_problem(since, 422, "invalid-request")
    assert [error["parameter"] for error in problem["errors"]] == ["since"]


@pytest.mark.parametrize(
    "when",
    ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2030-06-01t12:00:00.123456789z"],
)
async def test_the_bounds_of_time_are_stored(api: Api, when: str) -> None:
    await api.index(source("a.md", "cancel", expiresAt=when))
    [listed] = (await api.read("/sources"))["sources"]
    assert listed["expiresAt"][:19] == when[:19].upper()
    assert listed["expiresAt"].endswith(("Z", "+00:00"))
    found = await api.assemble(question("cancel"))
    assert source_ids(found) + source_ids(found, "exclusions") == ["a.md"]


async def test_ids_are_read_in_any_case_and_written_in_lower_case(api: Api) -> None:
    asked = {**question(None), "stepId": "8b0d4a9e-11aa-4c6e-8f00-ABCDEFabcdef"}
    ids = {name: asked[name].lower() for name in ("runId", "stepId", "attemptId")}
    snapshot = await api.assemble({name: value.upper() for name, value in asked.items()})
    assert {name: snapshot[name] for name in ids} == ids
    for name, value in ids.items():
        listed = (await api.read("/snapshots", {name: value.upper()}))["snapshots"]
        assert [one["hash"] for one in listed] == [snapshot["hash"]]
    for wrong in (asked["runId"].replace("-", ""), "{" + asked["runId"] + "}", "x", "", 7, None):
        answer = await api.post({**asked, "runId": wrong})
        assert_problem(answer, 422, "invalid-request", "/runId")


async def test_missing_and_unknown_members_are_all_named(api: Api) -> None:
    answer = await api.post({"query": "x", "Query": "y", "budget": {"max_tokens": 1}})
    problem = assert_problem(answer, 422, "invalid-request")
    assert {error["pointer"] for error in problem["errors"]} == {
        "/runId",
        "/attemptId",
        "/Query",
        "/budget/max_tokens",
    }


@pytest.mark.parametrize("body", ["[]", "null", "7", '"x"', '{"sources":{}}', '{"sources":null}'])
async def test_a_body_of_another_shape_is_refused(api: Api, body: str) -> None:
    for method, path in (("POST", "/snapshots"), ("PUT", "/sources")):
        assert_problem(await _send(api, method, path, body.encode()), 422, "invalid-request")


async def test_metadata_of_any_order_reads_back_as_it_was_hashed(api: Api) -> None:
    names = [f"{letter}{at}" for at in (10, 9, 1) for letter in "zaé"]
    items = [item(name, name, provenance=name) for name in names]
    asked = await api.post(question(None, items=items))
    ref = asked.json()["hash"]
    assert source_ids(asked.json()) == names
    assert (await api.get(f"/snapshots/{ref}")).content == asked.content
    assert (await api.read(f"/snapshots/{ref}/verify"))["ok"]


@pytest.mark.long
@pytest.mark.shared_data
async def test_naughty_strings_are_kept_as_they_are_or_refused(api: Api, shared_data: Path) -> None:
    texts: list[str] = json.loads(
        (shared_data / "vectors" / "naughty-strings" / "blns.json").read_text()
    )
    fit = [text for text in dict.fromkeys(texts) if text and "\0" not in text]
    sources = [
        source(text, chunks=[{"chunkId": text, "text": text}], sourceRevision=text, provenance=text)
        for text in fit
        if len(text) <= 256
    ]
    assert len(sources) > 400
    await api.index(*sources)
    listed = (await api.read("/sources", {"limit": 1000}))["sources"]
    assert [one["sourceId"] for one in listed] == sorted(one["sourceId"] for one in sources)
    pins = [{"project": "booking", "sourceId": one["sourceId"]} for one in sources]
    snapshot = await api.assemble(
        question(None, pins=pins, budget={"maxTokens": 1_000_000, "encoding": "cl100k_base"})
    )
    ref = snapshot["hash"]
    contents = (await api.read(f"/snapshots/{ref}/contents"))["contents"]
    assert [one["text"] for one in contents] == [one["sourceId"] for one in snapshot["items"]]
    assert (await api.read(f"/snapshots/{ref}/verify"))["ok"]
    patterns = [text[:1024] for text in fit]
    for text in fit[::25]:
        asked = question(text, scope={"sources": {"allow": patterns}}, budget={"maxTokens": 10**6})
        assert (await api.post(asked)).status_code == 201, text


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/xml",
        "",
    ],
)
async def test_another_media_type_is_415(api: Api, media_type: str) -> None:
    for method, path in (("POST", "/snapshots"), ("PUT", "/sources")):
        answer = await _send(api, method, path, b"{}", **{"content-type": media_type})
        assert_problem(answer, 415, "unsupported-media-type", path=path)
    ndjson = await _send(
        api, "POST", "/snapshots", b"{}", **{"content-type": "application/x-ndjson"}
    )
    assert_problem(ndjson, 415, "unsupported-media-type")
    packed = await _send(api, "POST", "/snapshots", b"{}", **{"content-encoding": "gzip"})
    assert_problem(packed, 415, "unsupported-media-type")


async def test_a_body_beyond_the_limit_is_413_and_names_it(api: Api) -> None:
    limit = 8 * 1024 * 1024
    for method, path in (("POST", "/snapshots"), ("PUT", "/sources")):
        answer = await _send(api, method, path, b" " * (limit + 1))
        problem = assert_problem(answer, 413, "too-large", path=path)
        assert problem["limitBytes"] == limit
        assert "CTXSNAP_MAX_BODY_BYTES" in problem["detail"]
    body = _put_body(json.dumps("x")).encode()
    padded = await _send(api, "PUT", "/sources", body + b" " * (limit - len(body)))
    assert padded.status_code == 200
