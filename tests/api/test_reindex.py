"""Reindexing: what an earlier engine prepared is prepared anew, and stays what it was."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from app.adapters.postgres.database import Database
from app.adapters.tokens import TiktokenCounter
from app.api.parts import Parts
from app.api.source_schemas import PutSourcesBody
from app.bootstrap import source_preparer
from app.indexing.index import IndexChange
from app.indexing.preparation import ENGINE
from app.scope.grant import Grant
from app.scope.vocabulary import (
    ALL_PROJECTS,
    Classification,
    KnowledgeClass,
    Permission,
    TrustTier,
)
from tests.api.service import Api, Json, assert_problem, chunks, question, source, source_ids

LONG = "\n\n".join(f"Paragraph {at} says that order {at} may be cancelled." for at in range(40))
CUT_SMALL = source_preparer(TiktokenCounter(), 16)


def grant_of(tenant: str) -> Grant:
    return Grant(
        tenant=tenant,
        subject="ana",
        agent=None,
        projects=(ALL_PROJECTS,),
        groups=(),
        classes=tuple(KnowledgeClass),
        max_classification=Classification.RESTRICTED,
        max_trust_tier=TrustTier.SYSTEM_POLICY,
        permissions=frozenset(Permission),
    )


async def put_earlier(api: Api, parts: Parts, *sources: Json) -> IndexChange:
    """Index sources as an earlier release would have, that cut texts smaller."""
    grant = grant_of(api.tenant)
    body = PutSourcesBody.model_validate({"sources": sources})
    prepared = [
        replace(CUT_SMALL.prepare(draft), engine="analyzer 0, chunker 0")
        for draft in body.to_core(grant)
    ]
    return await parts.index.put_sources(grant, prepared)


async def reindex(api: Api, limit: int | None = None, **claims: Any) -> Json:
    parameters = {} if limit is None else {"limit": limit}
    answer = await api.client.post(
        "/index/reindex", params=parameters, headers=api.headers(**claims)
    )
    assert answer.status_code == 200, answer.text
    change: Json = answer.json()
    return change


async def listed(api: Api) -> list[Json]:
    return list((await api.read("/sources"))["sources"])


FULL: Json = {
    "text": LONG,
    "sourceRevision": "7",
    "mediaType": "text/markdown",
    "classification": "confidential",
    "trustTier": "skill",
    "acl": {"allow": ["group:eng", "user:ana"], "deny": ["user:bob"]},
    "language": "en",
    "provenance": "git",
    "expiresAt": "2099-01-01T02:00:00+02:00",
    "links": ["b.md", "a.md"],
}


async def test_a_text_is_cut_anew_and_is_then_as_if_it_had_just_been_sent(
    api: Api, parts: Parts
) -> None:
    sent, fresh = source("a.md", **FULL), api.elsewhere()
    (before,) = (await put_earlier(api, parts, sent)).sources
    (directly,) = (await fresh.index(sent))["sources"]
    assert before.chunks > directly["chunks"] > 1
    old = await api.post(question("cancelled order 7"))
    assert await reindex(api) == {"reindexed": 1, "remaining": 0, "indexVersion": 2}
    assert await api.visible_version() == await fresh.visible_version()
    assert await listed(api) == await listed(fresh)
    assert (await api.index(sent))["sources"][0]["unchanged"] is True
    new = await api.assemble(question("cancelled order 7"))
    theirs = await fresh.assemble(question("cancelled order 7"))
    assert new["items"] == theirs["items"]
    assert {one["sourceRevision"] for one in new["items"]} == {"7"}
    # The access list is the one that was sent.
    assert source_ids(await api.assemble(question("order"), sub="bob", groups=["eng"])) == []
    path = f"/snapshots/{old.json()['hash']}"
    assert (await api.get(path)).content == old.content
    verified = await api.read(f"{path}/verify")
    assert [one for one in verified["checks"] if not one["ok"]] == []
    assert await reindex(api) == {"reindexed": 0, "remaining": 0, "indexVersion": 2}


async def test_chunks_keep_the_ids_and_texts_that_their_writer_gave(api: Api, parts: Parts) -> None:
    pieces = [
        {"chunkId": name, "text": text}
        for name, text in (
            ("z", "  cancel\n"),
            ("intro", ""),
            ("a", "日本 \U0001f40b 'x' \"y\" \\"),
        )
    ]
    await put_earlier(api, parts, source("a.md", chunks=pieces), source("b.md", chunks=[]))
    assert (await reindex(api))["reindexed"] == 2
    pinned = question(None, pins=[{"project": "booking", "sourceId": "a.md"}])
    snapshot = await api.assemble(pinned)
    contents = await api.read(f"/snapshots/{snapshot['hash']}/contents")
    found = zip(snapshot["items"], contents["contents"], strict=True)
    assert [{"chunkId": one["chunkId"], "text": held["text"]} for one, held in found] == pieces


async def test_a_call_is_a_batch_and_one_version_and_says_how_many_are_left(
    api: Api, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}.md" for number in range(6)]
    await put_earlier(api, parts, *(source(name, f"cancel {name}") for name in names[:5]))
    await put_earlier(api, parts, source(names[5], LONG))
    await api.index(source("now.md", "cancel"))
    assert await reindex(api, 2) == {"reindexed": 2, "remaining": 4, "indexVersion": 4}
    # A large source ends a batch, by its chunks or by its bytes.
    monkeypatch.setattr("app.adapters.postgres.reindexer._CHUNKS_PER_BATCH", 2)
    assert await reindex(api) == {"reindexed": 2, "remaining": 2, "indexVersion": 5}
    monkeypatch.undo()
    monkeypatch.setattr("app.adapters.postgres.reindexer._BYTES_PER_BATCH", 1)
    assert await reindex(api) == {"reindexed": 1, "remaining": 1, "indexVersion": 6}
    assert await reindex(api) == {"reindexed": 1, "remaining": 0, "indexVersion": 7}
    assert sorted(one["sourceId"] for one in await listed(api)) == [*names, "now.md"]
    first, *_ = [
        one for one in (await api.read("/audit"))["events"] if one["action"] == "reindexSources"
    ]
    assert first["outcome"] == "allowed"
    assert first["targets"] == {
        "count": 1,
        "sources": [{"project": "booking", "sourceId": "5.md"}],
    }


@pytest.mark.parametrize(
    "claims",
    [
        {"projects": ["billing"]},
        {"projects": []},
        {"max_classification": "internal"},
        {"max_trust_tier": "user"},
        {"classes": ["code"]},
    ],
    ids=lambda claims: next(iter(claims)),
)
async def test_what_a_writer_may_not_replace_is_neither_touched_nor_counted(
    api: Api, parts: Parts, claims: Json
) -> None:
    await put_earlier(api, parts, source("a.md", **FULL))
    await put_earlier(api.elsewhere(), parts, source("a.md", "x"))
    assert await reindex(api, **claims) == {"reindexed": 0, "remaining": 0, "indexVersion": 1}
    assert (await reindex(api))["reindexed"] == 1


async def test_reindexing_needs_the_right_to_write(api: Api) -> None:
    answer = await api.client.post("/index/reindex", headers=api.headers(scope="index:read"))
    assert_problem(answer, 403, "permission-missing")
    for limit in ("0", "1001", "x"):
        answer = await api.client.post(
            "/index/reindex", params={"limit": limit}, headers=api.headers()
        )
        assert_problem(answer, 422, "invalid-request")


async def test_a_source_that_is_changed_meanwhile_keeps_the_change(api: Api, parts: Parts) -> None:
    grant = grant_of(api.tenant)
    await put_earlier(
        api, parts, *(source(name, f"cancel {name}") for name in ("a.md", "b.md", "c.md"))
    )
    outdated = await parts.index.outdated_sources(grant, ENGINE, 10)
    assert outdated.count == 3
    prepared = [(one, parts.preparer.prepare(one.draft)) for one in outdated.sources]
    await api.index(source("a.md", "refund", sourceRevision="2"))
    await api.delete("booking", "b.md")
    change = await parts.index.reindex(grant, prepared)
    assert (change.sources, change.index_version) == (1, 4)
    assert source_ids(await api.assemble(question("cancel"))) == ["c.md"]
    assert source_ids(await api.assemble(question("refund"))) == ["a.md"]
    # All were changed by now: no version is made.
    assert (await parts.index.reindex(grant, prepared)).index_version == 4


async def test_a_row_from_before_engines_were_kept_is_taken_for_outdated(
    api: Api, owner: Database
) -> None:
    await api.index(source("a.md", chunks=chunks("cancel", "refund")))
    async with owner.transaction(api.tenant) as (connection, _):
        await connection.execute(sa.text("UPDATE source_versions SET engine = NULL"))
    assert (await reindex(api))["reindexed"] == 1
    assert len((await api.assemble(question("cancel refund")))["items"]) == 2
