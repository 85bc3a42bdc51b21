"""Strict JSON: what is accepted, which faults are 400 and which 422, and how fast."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from app.api.strict_json import parse_json, parse_ndjson
from app.errors import InvalidRequestError, MalformedRequestError, RequestError

_VECTORS = Path(__file__).resolve().parents[4] / "shared" / "data" / "vectors"
_needs_vectors = pytest.mark.skipif(
    not _VECTORS.is_dir(), reason="needs ../shared/data/vectors beside the checkout"
)


def refusal(parse: Callable[[bytes], object], body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body)
    return caught.value


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)
_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_values = st.recursive(
    _scalars, lambda held: st.lists(held) | st.dictionaries(_names, held), max_leaves=20
)


@given(_values, st.booleans())
def test_whatever_is_acceptable_reads_back_equal_and_of_the_same_types(
    value: JsonValue, ascii_only: bool
) -> None:
    read = parse_json(json.dumps(value, ensure_ascii=ascii_only).encode())
    assert repr(read) == repr(value)


@given(st.binary(max_size=200) | st.text('[]{}",:\\u0d8e1-. \n').map(str.encode))
def test_arbitrary_bytes_are_read_or_refused_and_nothing_else(body: bytes) -> None:
    try:
        value = parse_json(body)
    except (MalformedRequestError, InvalidRequestError):
        return
    assert repr(value) == repr(json.loads(body))


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_does_not_have_are_malformed_and_located(literal: bytes) -> None:
    error = refusal(parse_json, b'{"a":[1,{"b":' + literal + b"}]}")
    assert type(error) is MalformedRequestError
    assert error.pointers == ("/a/1/b",)
    assert literal.decode() in error.detail


@pytest.mark.parametrize(
    ("body", "pointer", "told"),
    [
        pytest.param(b'{"a":{"x/~":1,"x\\u002f~":2}}', "/a/x~1~0", "twice", id="duplicate"),
        pytest.param(b"[0,9007199254740992]", "/1", "9007199254740991", id="big-integer"),
        pytest.param(b"[-9007199254740993]", "/0", "9007199254740991", id="big-negative"),
        pytest.param(b"[" + b"1" * 5_000 + b"]", "/0", "9007199254740991", id="5000-digits"),
        pytest.param(b'{"n":1e400}', "/n", "double", id="overflow"),
        pytest.param(b'{"n":-1e400}', "/n", "double", id="negative-overflow"),
        pytest.param(b'{"s":"\\ud83d"}', "/s", "surrogate", id="high-surrogate"),
        pytest.param(b'["ok","\\ude00\\ud83d"]', "/1", "surrogate", id="swapped-surrogates"),
        pytest.param(b'{"a":{"\\ud83d":1}}', "/a/\ud83d", "surrogate", id="surrogate-name"),
        pytest.param(b'{"s":"a\\u0000b"}', "/s", "U+0000", id="nul"),
        pytest.param(b'{"\\u0000":1}', "/\0", "U+0000", id="nul-name"),
        pytest.param(b"[" * 65 + b"]" * 65, "/0" * 64, "64", id="depth-65"),
        pytest.param(b"[" * 200 + b"]" * 200, "/0" * 64, "64", id="depth-200"),
        pytest.param(b'[1,{"a":' + b"[" * 63 + b"]" * 63 + b"}]", "/1/a" + "/0" * 62, "64"),
    ],
)
def test_what_readers_take_differently_is_invalid_and_located(
    body: bytes, pointer: str, told: str
) -> None:
    error = refusal(parse_json, body)
    assert type(error) is InvalidRequestError
    assert error.pointers == (pointer,)
    assert told in error.detail


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{"a":1}'.encode("utf-16"), id="utf-16"),
        pytest.param('{"a":1}'.encode("utf-16-le"), id="utf-16-le"),
        pytest.param('{"a":1}'.encode("utf-16-be"), id="utf-16-be"),
        pytest.param('{"a":1}'.encode("utf-32"), id="utf-32"),
        pytest.param(b'\xef\xbb\xbf{"a":1}', id="utf-8-with-mark"),
        pytest.param('{"a":"ü"}'.encode("latin-1"), id="latin-1"),
        pytest.param(b'"\xed\xa0\xbd"', id="surrogate-in-utf-8"),
        pytest.param(b'"\xc0\x80"', id="overlong-nul"),
        pytest.param(b'"\x00"', id="raw-nul"),
        pytest.param(b"", id="empty"),
        pytest.param(b"  ", id="white-space"),
        pytest.param(b"{'a':1}", id="single-quotes"),
        pytest.param(b"[1,]", id="trailing-comma"),
        pytest.param(b"{} {}", id="two-values"),
        pytest.param(b"[01]", id="leading-zero"),
        pytest.param(b'{"a":1,"a":2', id="unclosed-with-duplicate"),
    ],
)
def test_what_is_not_json_in_utf_8_is_malformed(body: bytes) -> None:
    assert type(refusal(parse_json, body)) is MalformedRequestError


def test_malformed_outranks_invalid_in_whatever_order_they_come() -> None:
    assert type(refusal(parse_json, b"[1e400,NaN]")) is MalformedRequestError
    assert type(refusal(parse_json, b"[NaN,1e400]")) is MalformedRequestError
    assert type(refusal(parse_json, b'{"a":NaN,"a":1}')) is MalformedRequestError


def test_the_first_of_several_faults_is_the_one_that_is_located() -> None:
    assert refusal(parse_json, b"[0,1e400,[1e400],99999999999999999]").pointers == ("/1",)
    assert refusal(parse_json, b"[0,[NaN],NaN]").pointers == ("/1/0",)


def test_the_limits_themselves_are_within() -> None:
    body = b"[9007199254740991,-9007199254740991,1.7976931348623157e308,-0]"
    assert parse_json(body) == [2**53 - 1, -(2**53) + 1, 1.7976931348623157e308, 0]
    assert json.dumps(parse_json(b"[" * 64 + b"]" * 64)) == "[" * 64 + "]" * 64


def test_floats_stay_floats_and_pairs_of_surrogates_become_one_character() -> None:
    value = parse_json(b'[1.0, 1e2, "\\ud83d\\ude00", "\\\\u0000"]')
    assert repr(value) == "[1.0, 100.0, '😀', '\\\\u0000']"


def test_names_that_differ_in_normalisation_only_are_different_names() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    body = f'{{"{composed}":1,"{decomposed}":2}}'.encode()
    assert parse_json(body) == {composed: 1, decomposed: 2}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 900 + b"]" * 900, id="900-arrays"),
        pytest.param(b"[" * 100_000, id="arrays-left-open"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="arrays"),
        pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="objects"),
        pytest.param(b"9" * 2_000_000, id="one-long-integer"),
    ],
)
def test_hostile_shapes_are_refused_at_once(body: bytes) -> None:
    start_s = time.process_time()
    error = refusal(parse_json, body)
    assert type(error) is InvalidRequestError
    assert "64" in error.detail or "integer" in error.detail
    assert time.process_time() - start_s < 1


@pytest.mark.long
def test_time_grows_no_faster_than_the_text() -> None:
    def cost_s(count: int) -> float:
        body = b'{"k":["\\ud83d\\ude00",' + b'{"a":[1.5,"x"]},' * count + b"NaN]}"
        start_s = time.process_time()
        refusal(parse_json, body)
        return time.process_time() - start_s

    cost_s(1_000)
    assert cost_s(80_000) < 8 * 4 * max(cost_s(10_000), 0.005)


def test_ndjson_gives_one_value_a_line_and_allows_empty_lines_at_the_end_only() -> None:
    assert parse_ndjson(b'{"a":1}\r\n[2]\n"3"') == [{"a": 1}, [2], "3"]
    assert parse_ndjson(b"1\n2\n\n \t\r\n") == [1, 2]
    error = refusal(parse_ndjson, b"1\n\n2")
    assert type(error) is MalformedRequestError
    assert error.extra == {"line": 2}
    assert type(refusal(parse_ndjson, b" \n\n")) is MalformedRequestError


@pytest.mark.parametrize(
    ("line", "kind", "pointer"),
    [
        (b'{"a":}', MalformedRequestError, "/2"),
        (b"[1],[2]", MalformedRequestError, "/2"),
        (b'{"t":NaN}', MalformedRequestError, "/2/t"),
        (b'{"t":1e400}', InvalidRequestError, "/2/t"),
        (b'{"t":"\\u0000"}', InvalidRequestError, "/2/t"),
    ],
)
def test_errors_in_ndjson_name_the_line_and_begin_their_pointer_with_its_index(
    line: bytes, kind: type[RequestError], pointer: str
) -> None:
    error = refusal(parse_ndjson, b"{}\n{}\n" + line + b"\n{}\n")
    assert type(error) is kind
    assert error.pointers == (pointer,)
    assert error.extra["line"] == 3
    assert error.detail.startswith("Line 3: ")


# Valid JSON texts of the suite that I-JSON (RFC 7493) or storage forbids, and why.
_RESTRICTED = {
    "y_object_duplicated_key.json": "a name stands twice",
    "y_object_duplicated_key_and_value.json": "a name stands twice, with the same value",
    "y_object_escaped_null_in_key.json": "U+0000, which PostgreSQL's text cannot hold",
    "y_string_null_escape.json": "U+0000, which PostgreSQL's text cannot hold",
}
# Refused before their syntax is found to be wrong.
_DEEP = {"n_structure_100000_opening_arrays.json", "n_structure_open_array_object.json"}


@pytest.mark.shared_data
@_needs_vectors
def test_the_json_parsing_suite_is_answered_as_it_demands() -> None:
    files = sorted((_VECTORS / "json-test-suite" / "test_parsing").glob("*.json"))
    assert len(files) > 300
    outcomes: dict[str, str] = {}
    for file in files:
        body = file.read_bytes()
        start_s = time.process_time()
        try:
            parse_json(body)
            outcomes[file.name] = "read"
        except (MalformedRequestError, InvalidRequestError) as error:
            outcomes[file.name] = error.code
        assert time.process_time() - start_s < 1, file.name
    wrong = {
        name: outcome
        for name, outcome in outcomes.items()
        if (name.startswith("y_") and (outcome == "read") == (name in _RESTRICTED))
        or (name.startswith("n_") and outcome == "read")
        or (name.startswith("n_") and (outcome == "invalid-request") != (name in _DEEP))
    }
    assert wrong == {}
    assert {outcomes[name] for name in _RESTRICTED} == {"invalid-request"}


@pytest.mark.shared_data
@_needs_vectors
def test_the_transform_suite_is_refused_or_read_without_loss() -> None:
    files = sorted((_VECTORS / "json-test-suite" / "test_transform").glob("*.json"))
    assert files
    for file in files:
        try:
            value = parse_json(file.read_bytes())
        except (MalformedRequestError, InvalidRequestError):
            continue
        again = parse_json(json.dumps(value).encode())
        assert repr(again) == repr(value), file.name


@pytest.mark.shared_data
@_needs_vectors
@pytest.mark.parametrize("ascii_only", [True, False])
def test_naughty_strings_come_through_unchanged(ascii_only: bool) -> None:
    strings = json.loads((_VECTORS / "naughty-strings" / "blns.json").read_bytes())
    assert len(strings) > 500
    body = json.dumps({text: text for text in strings}, ensure_ascii=ascii_only).encode()
    assert parse_json(body) == {text: text for text in strings}
    lines = "\n".join(json.dumps(text, ensure_ascii=ascii_only) for text in strings)
    assert parse_ndjson(lines.encode()) == strings
