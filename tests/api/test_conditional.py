"""Conditional requests: a tag for each representation, and none for who may not read it."""

from typing import Any

import httpx
import pytest

from tests.api.service import Api, Json, question, source

PARTS = (
    "",
    "/contents",
    "/prompt",
    "/report",
    "/verify",
    "/explain?project=booking&sourceId=a.md",
    "/diff/{ref}",
)
LISTS = ("/snapshots", "/sources", "/index", "/strategies", "/strategies/default")
LOW: Json = {"max_classification": "internal"}


async def _stored(api: Api, **members: Any) -> str:
    await api.index(source("a.md", "cancel a booking"))
    snapshot = await api.assemble(question("cancel", **members))
    return str(snapshot["hash"])


def _paths(ref: str) -> list[str]:
    return [f"/snapshots/{ref}{part.format(ref=ref)}" for part in PARTS]


async def _conditional(api: Api, path: str, tag: str, **claims: Any) -> httpx.Response:
    headers = {**api.headers(**claims), "If-None-Match": tag}
    return await api.client.get(path, headers=headers)


async def test_every_call_that_reads_tags_its_answer_and_answers_304(api: Api) -> None:
    ref = await _stored(api)
    for path in (*_paths(ref), *LISTS):
        first = await api.get(path)
        assert first.status_code == 200, path
        tag = first.headers["etag"]
        for held in (tag, f"W/{tag}", f'"x", {tag}'):
            again = await _conditional(api, path, held)
            assert (again.status_code, again.content) == (304, b""), path
            assert again.headers["etag"] == tag
            assert "content-type" not in again.headers
        assert (await _conditional(api, path, '"x"')).content == first.content
        for answer in (first, again):
            assert answer.headers["cache-control"] == "private, no-cache"
            assert answer.headers["vary"] == "Accept, Authorization"


@pytest.mark.parametrize("path", ["/audit", "/audit/seals"])
async def test_the_audit_log_grows_with_each_call_and_is_tagged_all_the_same(
    api: Api, path: str
) -> None:
    first, second = [await api.get(path) for _ in range(2)]
    assert first.headers["etag"] != second.headers["etag"]
    assert (await _conditional(api, path, "*")).status_code == 304


@pytest.mark.parametrize("format_", ["text", "messages"])
async def test_each_representation_of_a_snapshot_has_a_tag_of_its_own(
    api: Api, format_: str
) -> None:
    ref = await _stored(api, budget={"format": format_})
    tags = [(await api.get(path)).headers["etag"] for path in _paths(ref)]
    assert len(set(tags)) == len(PARTS)
    assert tags[0] == f'"{ref}"'


async def test_who_may_not_read_gets_no_304_and_no_tag(api: Api) -> None:
    ref = await _stored(api)
    await api.index(source("a.md", "cancel a booking", classification="restricted"))
    for path in _paths(ref):
        tag = (await api.get(path)).headers["etag"]
        for value in (tag, "*"):
            for headers, status in (
                ({}, 401),
                (api.headers(scope="index:read"), 403),
                (api.headers(**LOW), 404),
                (api.elsewhere().headers(), 404),
            ):
                sent = {**headers, "If-None-Match": value}
                answer = await api.client.get(path, headers=sent)
                assert (answer.status_code, "etag" in answer.headers) == (status, False), path


async def test_what_changes_has_another_tag(api: Api) -> None:
    ref = await _stored(api)
    contents = f"/snapshots/{ref}/contents"
    paths = (contents, "/snapshots", "/sources", "/index")
    before = {path: (await api.get(path)).headers["etag"] for path in paths}
    parameters = {"project": "booking", "sourceId": "a.md", "erase": "true"}
    erased = await api.client.delete("/sources", params=parameters, headers=api.headers())
    assert erased.status_code == 200
    await api.assemble(question(None))
    for path, tag in before.items():
        answer = await _conditional(api, path, tag)
        assert answer.status_code == 200, path
        assert answer.headers["etag"] != tag
    assert (await _conditional(api, f"/snapshots/{ref}", f'"{ref}"')).status_code == 304
