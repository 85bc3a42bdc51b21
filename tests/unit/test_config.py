"""Settings from the environment: what is wrong is named, and no secret is told."""

import json
import traceback

import pytest

from app.config import read_settings
from app.errors import ConfigurationError

ENDPOINT = {"url": "https://endpoint/v1", "model": "e5", "dimensions": 384}
SECRET = "sk-very-secret"


def test_an_embedding_endpoint_needs_three_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTXSNAP_EMBEDDINGS", json.dumps([ENDPOINT | {"query_prefix": "query: "}]))
    (endpoint,) = read_settings().embeddings
    assert (endpoint.query_prefix, endpoint.passage_prefix) == ("query: ", "")
    assert endpoint.normalise
    assert not endpoint.input_type
    assert not endpoint.trust_env
    assert endpoint.key is None


@pytest.mark.parametrize("name", ENDPOINT)
def test_a_member_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rest = {key: value for key, value in ENDPOINT.items() if key != name}
    monkeypatch.setenv("CTXSNAP_EMBEDDINGS", json.dumps([ENDPOINT, rest | {"key": SECRET}]))
    with pytest.raises(ConfigurationError) as caught:
        read_settings()
    assert caught.value.detail == f"CTXSNAP_EMBEDDINGS[1].{name}: Field required"
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "endpoint/v1"),
        ("url", f"https://end point/{SECRET}"),
        ("model", ""),
        ("dimensions", 0),
        ("dimensions", 4001),
        ("batch", 0),
        ("deadline_ms", 0),
        ("keys", SECRET),
    ],
)
def test_a_member_that_is_not_acceptable_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setenv("CTXSNAP_EMBEDDINGS", json.dumps([ENDPOINT | {name: value}]))
    with pytest.raises(ConfigurationError) as caught:
        read_settings()
    assert caught.value.detail.startswith(f"CTXSNAP_EMBEDDINGS[0].{name}: ")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["embeddings", "issuers", "claim_names"])
def test_a_setting_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"CTXSNAP_{name.upper()}", '[{"key": "' + SECRET)
    with pytest.raises(ConfigurationError, match=f'not valid JSON.*"{name}"') as caught:
        read_settings()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_plain_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTXSNAP_PORT", "a lot")
    with pytest.raises(ConfigurationError, match=r"^CTXSNAP_PORT: "):
        read_settings()


RERANKER = {"url": "https://endpoint/v2", "model": "words"}


def test_a_re_ranking_endpoint_needs_two_members(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings().reranking is None
    monkeypatch.setenv("CTXSNAP_RERANKING", json.dumps(RERANKER))
    endpoint = read_settings().reranking
    assert endpoint is not None
    assert (endpoint.shape, endpoint.batch, endpoint.key) == ("cohere", 32, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "endpoint"),
        ("model", ""),
        ("shape", "other"),
        ("batch", 0),
        ("batch", 1001),
        ("deadline_ms", 0),
        ("keys", SECRET),
    ],
)
def test_a_member_of_it_that_is_not_acceptable_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setenv("CTXSNAP_RERANKING", json.dumps(RERANKER | {"key": SECRET, name: value}))
    with pytest.raises(ConfigurationError) as caught:
        read_settings()
    assert caught.value.detail.startswith(f"CTXSNAP_RERANKING.{name}: ")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
