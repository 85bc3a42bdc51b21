"""Erasing a source: nothing of its texts is left, and every snapshot still holds."""

import hashlib
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.adapters.postgres.database import Database
from app.indexing.analysis import analyze, term_key
from tests.api.service import (
    Api,
    Json,
    assert_problem,
    chunks,
    item,
    question,
    source,
    source_ids,
    without_request,
)
from tests.contract.changes import explaining_changes, forget_statistics, rows_of

SECRET = ("The zyzzyva weevil was seen at Quxford.", "Xylograph number seventeen is theirs.")
LATER = ("The zyzzyva weevil has left Quxford.", "Vexillology is what they do now.")
TEXT_COLUMNS = {
    ("source_contents", "text"),
    ("source_originals", "text"),
    ("snapshot_contents", "text"),
    ("chunks", "terms"),
    ("source_versions", "provenance"),
    ("source_versions", "links"),
    ("vectors", "embedding"),
    ("ended_vectors", "embedding"),
}


async def erase(
    api: Api, source_id: str, project: str = "booking", **claims: Any
) -> httpx.Response:
    return await api.client.delete(
        "/sources",
        params={"project": project, "sourceId": source_id, "erase": "true"},
        headers=api.headers(**claims),
    )


async def contents(api: Api, snapshot: Json) -> list[tuple[str | None, bool]]:
    found = await api.read(f"/snapshots/{snapshot['hash']}/contents")
    return [(one["text"], one["erased"]) for one in found["contents"]]


async def test_an_erased_source_is_gone_and_its_snapshots_say_so(api: Api) -> None:
    await api.index(source("b.md", "weevil of another source"))
    before = await api.visible_version()
    await api.index(source("a.md", chunks=chunks(*SECRET)))
    old = await api.post(question("weevil xylograph"))
    await api.index(source("a.md", chunks=chunks(*LATER), sourceRevision="2"))
    new = await api.post(question("weevil vexillology", items=[item("t", "Look.")]))
    assert len(old.json()["items"]) == 3
    assert len(new.json()["items"]) == 4
    answer = await erase(api, "a.md")
    assert (answer.status_code, answer.json()) == (200, {"indexVersion": 4})
    assert source_ids(await api.read("/sources"), "sources") == ["b.md"]
    assert await api.visible_version() == before
    found = await api.assemble(question("weevil xylograph vexillology"))
    assert source_ids(found) == ["b.md"]
    assert found["exclusions"] == []
    for posted in (old, new):
        snapshot = posted.json()
        path = f"/snapshots/{snapshot['hash']}"
        assert (await api.get(path)).content == posted.content
        texts = dict(zip(source_ids(snapshot), await contents(api, snapshot), strict=True))
        assert texts.pop("a.md") == (None, True)
        assert all(text and not erased for text, erased in texts.values())
        assert_problem(await api.get(f"{path}/prompt"), 404, "content-erased")
        verified = await api.read(f"{path}/verify")
        assert verified["ok"]
        details = {check["name"]: check["detail"] for check in verified["checks"]}
        assert details["contents"].endswith(" 2 are erased")
        assert "not counted again" in details["budget"]
    events = (await api.read("/audit"))["events"]
    (event,) = [one for one in events if one["action"] == "deleteSource"]
    assert (event["outcome"], event["code"]) == ("allowed", "erased")
    assert event["targets"] == {"project": "booking", "sourceId": "a.md"}


async def test_a_source_that_was_deleted_before_is_erased_as_well_and_once(api: Api) -> None:
    await api.index(source("a.md", SECRET[0]))
    snapshot = await api.assemble(question("weevil"))
    await api.delete("booking", "a.md")
    assert await contents(api, snapshot) == [(SECRET[0], False)]
    assert (await erase(api, "a.md")).json() == {"indexVersion": 3}
    assert await contents(api, snapshot) == [(None, True)]
    assert (await erase(api, "a.md")).json() == {"indexVersion": 3}
    assert await api.index_version() == 3
    assert_problem(await api.delete("booking", "a.md"), 404, "not-found")


async def test_what_is_not_there_or_not_for_this_caller_is_answered_the_same_and_kept(
    api: Api,
) -> None:
    other = api.elsewhere()
    await api.index(
        source("a.md", SECRET[0], classification="confidential", trustTier="skill"),
        source("c.py", SECRET[1], class_="code"),
    )
    await other.index(source("a.md", SECRET[0]))
    unknown = without_request(assert_problem(await erase(api, "x.md"), 404, "not-found"))
    refused = [
        await erase(api, "a.md", project="billing"),
        await erase(api, "a.md", projects=["billing"]),
        await erase(api, "a.md", projects=[]),
        await erase(api, "a.md", max_classification="internal"),
        await erase(api, "a.md", max_trust_tier="user"),
        await erase(api, "c.py", classes=["documents"]),
        await erase(api, "", project="booking", projects=["billing"]),
    ]
    for answer in refused[:-1]:
        assert without_request(assert_problem(answer, 404, "not-found")) == unknown
    assert_problem(refused[-1], 422, "invalid-request")
    assert_problem(await erase(api, "a.md", scope="index:read"), 403, "permission-missing")
    assert (await erase(api.elsewhere(), "a.md")).status_code == 404
    assert source_ids(await api.read("/sources"), "sources") == ["a.md", "c.py"]
    # Deleted, it is still above the same ceilings by its last label.
    await api.delete("booking", "a.md")
    assert (await erase(api, "a.md", max_classification="internal")).status_code == 404
    assert (await erase(api, "a.md")).status_code == 200
    assert source_ids(await other.assemble(question("weevil"))) == ["a.md"]


async def test_another_source_project_or_tenant_with_the_same_text_loses_nothing(
    api: Api,
) -> None:
    other = api.elsewhere()
    same = source("a.md", SECRET[0])
    await api.index(same, {**same, "project": "billing"}, {**same, "sourceId": "b.md"})
    await other.index(same)
    pins = [{"project": "billing", "sourceId": "a.md"}, {"project": "booking", "sourceId": "b.md"}]
    kept = [await api.assemble(question(None, pins=[pin])) for pin in pins]
    gone = await api.assemble(question(None, pins=[{"project": "booking", "sourceId": "a.md"}]))
    theirs = await other.assemble(question("weevil"))
    assert (await erase(api, "a.md")).status_code == 200
    assert await contents(api, gone) == [(None, True)]
    for snapshot in kept:
        assert await contents(api, snapshot) == [(SECRET[0], False)]
    assert await contents(other, theirs) == [(SECRET[0], False)]
    again = await api.assemble(question("weevil"))
    assert [(one["project"], one["sourceId"]) for one in again["items"]] == [("billing", "a.md")]
    assert [(one["project"], one["reason"]) for one in again["exclusions"]] == [
        ("booking", "duplicate")
    ]


async def test_a_source_that_is_put_again_after_its_erasure_is_new(api: Api) -> None:
    await api.index(source("a.md", chunks=chunks(*SECRET)))
    old = await api.assemble(question("xylograph"))
    await erase(api, "a.md")
    put = await api.index(source("a.md", chunks=chunks(LATER[0])))
    assert put["sources"][0]["unchanged"] is False
    new = await api.assemble(question("weevil xylograph"))
    assert await contents(api, new) == [(LATER[0], False)]
    assert await contents(api, old) == [(None, True)]
    assert (await erase(api, "a.md")).json() == {"indexVersion": 4}
    assert await contents(api, new) == [(None, True)]
    # A text is known by its digest: sent again, it is there again.
    await api.index(source("a.md", LATER[0]))
    assert await contents(api, new) == [(LATER[0], False)]
    assert await contents(api, old) == [(None, True)]


async def test_who_may_not_see_the_last_label_reads_no_snapshot_of_an_erased_source(
    api: Api,
) -> None:
    await api.index(source("a.md", SECRET[0]))
    path = f"/snapshots/{(await api.assemble(question('weevil')))['hash']}"
    await api.index(source("a.md", SECRET[0], classification="restricted"))
    await erase(api, "a.md")
    assert (await api.get(path)).status_code == 200
    assert (await api.get(path, max_classification="internal")).status_code == 404


def traces(*texts: str) -> set[str]:
    """What would give a text away: its words, its digest and bytes, and its terms."""
    words = {word.strip(".").lower() for text in texts for word in text.split()}
    terms = {term_key(term) for text in texts for term in analyze(text, None)}
    return {
        *(word for word in words if len(word) > 6),
        *(word.encode().hex() for word in words if len(word) > 6),
        *(hashlib.sha256(text.encode()).hexdigest() for text in texts),
        *(str(term) for term in terms),
    }


def found_in(rows: dict[str, list[str]], wanted: set[str]) -> set[tuple[str, str]]:
    return {
        (table, trace)
        for table, texts in rows.items()
        for text in texts
        for trace in wanted
        if trace in text.lower()
    }


async def add_vectors(owner: Database, tenant: str) -> str:
    """A vector for each live chunk, and the beginning of all of them as it is written."""
    async with owner.transaction(tenant) as (connection, key):
        await connection.exec_driver_sql(
            """
            INSERT INTO vectors (tenant_key, profile, label_key, chunk_key, valid_from, embedding)
            SELECT $1, p, s.label_key, c.chunk_key, s.valid_from, '[0.40625,0.0625]'
            FROM chunks c JOIN source_versions s USING (tenant_key, source_key)
            CROSS JOIN (VALUES (-5), (7)) AS known (p)
            WHERE c.tenant_key = $1 AND s.valid_to = 9223372036854775807
            ON CONFLICT DO NOTHING
            """,
            (key,),
        )
        await connection.exec_driver_sql(
            """
            INSERT INTO vector_states (tenant_key, profile, label_key, valid_from, vectors,
                lane_0, lane_1, lane_2, lane_3)
            SELECT $1, p, label_key, min(valid_from), 9, 0, 0, 0, 0
            FROM source_versions CROSS JOIN (VALUES (-5), (7)) AS known (p)
            WHERE tenant_key = $1 GROUP BY p, label_key ON CONFLICT DO NOTHING
            """,
            (key,),
        )
    return "0.40625"


async def test_no_row_of_any_table_holds_a_text_a_term_or_a_vector_of_it(
    api: Api, owner: Database
) -> None:
    await api.index(source("a.md", "\n\n".join(SECRET), provenance="the zyzzyva archive"))
    vector = await add_vectors(owner, api.tenant)
    await api.assemble(question("weevil"))
    await api.index(source("a.md", chunks=chunks(*LATER), sourceRevision="2"))
    await add_vectors(owner, api.tenant)
    await api.assemble(question("vexillology", pins=[{"project": "booking", "sourceId": "a.md"}]))
    wanted = traces(*SECRET, *LATER) | {vector}
    rows = await rows_of(owner, api.tenant)
    assert {table for table, _ in found_in(rows, wanted)} >= {
        "source_contents",
        "chunks",
        "postings",
        "ended_postings",
        "vectors",
        "ended_vectors",
    }
    assert {trace for _, trace in found_in(rows, wanted)} >= {
        str(term_key(term)) for text in (*SECRET, *LATER) for term in analyze(text, None)
    }
    await erase(api, "a.md")
    rows = await rows_of(owner, api.tenant)
    # What was asked is kept with the snapshots that it was asked for, and provenance in them.
    asked = {("snapshot_contents", "vexillology")}
    told = {("snapshots", b"zyzzyva".hex())}
    assert found_in(rows, wanted) - told == asked
    for table in ("chunks", "postings", "ended_postings", "vectors", "ended_vectors"):
        assert rows[table] == []
    assert len(rows["source_versions"]) == 2


async def test_an_original_is_kept_for_live_texts_alone(api: Api, owner: Database) -> None:
    async def originals() -> list[str]:
        return (await rows_of(owner, api.tenant))["source_originals"]

    await api.index(source("a.md", SECRET[0]), source("b.md", chunks=chunks(SECRET[1])))
    (first,) = await originals()
    assert SECRET[0] in first
    await api.index(source("a.md", LATER[0], sourceRevision="2"))
    (second,) = await originals()
    assert LATER[0] in second
    await api.index(source("a.md", chunks=chunks(LATER[0]), sourceRevision="3"))
    assert await originals() == []
    await api.index(source("a.md", " \n", sourceRevision="4"))
    assert len(await originals()) == 1
    await api.delete("booking", "a.md")
    assert await originals() == []


async def test_the_planner_keeps_no_samples_of_texts(owner: Database) -> None:
    async with owner.engine.connect() as connection:
        found = await connection.execute(
            sa.text(
                "SELECT attrelid::regclass::text, attname FROM pg_attribute "
                "WHERE attstattarget = 0 AND attrelid::regclass::text NOT LIKE 'pg_%'"
            )
        )
    assert {tuple(row) for row in found} == TEXT_COLUMNS


async def test_many_chunks_and_texts_are_erased_in_several_statements(
    api: Api, owner: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.adapters.postgres.ended_chunks._CHUNKS_AT_A_TIME", 3)
    monkeypatch.setattr("app.adapters.postgres.eraser._TEXTS_PER_STATEMENT", 4)
    texts = [f"weevil number {number}" for number in range(10)]
    await api.index(source("a.md", chunks=chunks(*texts)), source("b.md", "weevil kept"))
    await api.index(source("a.md", chunks=chunks(*texts[:4], "weevil"), sourceRevision="2"))
    await api.index(source("empty.md", ""), source("c.md", chunks=chunks(*texts[:2])))
    await erase(api, "a.md")
    rows = await rows_of(owner, api.tenant)
    assert [len(rows[name]) for name in ("chunks", "source_contents", "ended_postings")] == [
        3,
        3,
        0,
    ]
    assert sorted(source_ids(await api.assemble(question("weevil")))) == ["b.md", "c.md", "c.md"]


# On a database of its own run: what hundreds of other tenants leave behind changes the plans.
@pytest.mark.long
@pytest.mark.parametrize("statistics", [False, True], ids=["blind", "analyzed"])
async def test_no_statement_reads_rows_of_other_sources(
    api: Api, owner: Database, statistics: bool
) -> None:
    others = [
        source(f"{number}.md", chunks=chunks(f"weevil {number}", f"weevil of {number}"))
        for number in range(400)
    ]
    await api.index(*others)
    await api.index(*({**one, "sourceRevision": "2"} for one in others[:40]))
    await api.index(source("a.md", chunks=chunks("weevil one", "weevil two")))
    await api.index(source("a.md", chunks=chunks("weevil three"), sourceRevision="2"))
    await add_vectors(owner, api.tenant)
    await forget_statistics(owner)
    if statistics:
        async with owner.engine.connect() as connection:
            for table in ("postings", "ended_postings", "chunks", "source_versions", "vectors"):
                await connection.execute(sa.text(f"ANALYZE {table}"))
            await connection.commit()
    with explaining_changes() as plans:
        assert (await erase(api, "a.md")).status_code == 200
    read = dict.fromkeys(("chunks", "postings", "ended_postings", "source_contents"), 0.0)
    for statement, found in plans:
        for scan in found:
            assert scan.kind != "Seq Scan", (scan, statement)
            assert (scan.rows or 0) + scan.dropped_rows <= 8, (scan, statement)
            if scan.table in read:
                read[scan.table] += scan.rows or 0
    assert all(read.values()), read


async def test_the_parameter_is_a_truth_value(api: Api) -> None:
    await api.index(source("a.md", SECRET[0]))
    for value, status in (("perhaps", 422), ("", 422), ("false", 200)):
        answer = await api.client.delete(
            "/sources",
            params={"project": "booking", "sourceId": "a.md", "erase": value},
            headers=api.headers(),
        )
        assert answer.status_code == status, value
    assert (await erase(api, "a.md")).json() == {"indexVersion": 3}
