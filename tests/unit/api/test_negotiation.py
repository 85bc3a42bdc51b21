"""Which representation a caller gets, for what it says it accepts."""

import pytest

from app.api.negotiation import prefers_text


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain",
        "TEXT/Plain; charset=utf-8",
        "text/*",
        "text/plain, application/json;q=0.9",
        "application/json;q=0.1,text/*;q=0.2",
        "text/plain;q=0.001",
        "*/*;q=0.1, text/plain",
        "application/*;q=0, */*",
        "text/html, text/plain;q=0.5",
    ],
)
def test_text_goes_to_who_wants_it_more(accept: str) -> None:
    assert prefers_text([accept])


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/json",
        "application/json, text/plain",
        "text/plain;q=0.5, application/json",
        "text/plain;q=0",
        "text/plain;q=0, */*",
        "text/*, text/plain;q=0",
        "text/plain;q=0.5, */*;q=0.5",
        "text/plain;q=2",
        "text/plain;q=",
        "text/plain;q=high",
        "image/png",
        "text/html",
        "text",
        ",;,",
    ],
)
def test_json_goes_to_everybody_else(accept: str) -> None:
    assert not prefers_text([accept])


def test_the_field_may_come_in_parts() -> None:
    assert prefers_text(["application/json;q=0.5", "text/plain"])
    assert not prefers_text([])
