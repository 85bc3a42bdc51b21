"""Verifying what somebody with all rights on the database has changed behind the service."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785
import sqlalchemy as sa

from app.adapters.postgres.database import Database
from tests.api.service import Api, Json, item, question, source

Change = Callable[[Json], None]


async def _stored(api: Api) -> Json:
    await api.index(source("a.md", "cancel a booking"))
    return await api.assemble(question("cancel", items=[item("t", "Add an endpoint.")]))


async def _overwrite(database: Database, column: str, digest: str, value: bytes) -> None:
    """As a superuser who first lifts the triggers that refuse it."""
    async with database.engine.begin() as connection:
        await connection.execute(sa.text("ALTER TABLE snapshots DISABLE TRIGGER immutable_rows"))
        changed = await connection.execute(
            sa.text(f"UPDATE snapshots SET {column} = :value WHERE hash = :hash"),
            {"value": value, "hash": bytes.fromhex(digest.removeprefix("sha256:"))},
        )
        await connection.execute(
            sa.text("ALTER TABLE snapshots ENABLE ALWAYS TRIGGER immutable_rows")
        )
    assert changed.rowcount == 1


async def _failed_checks(api: Api, digest: str) -> set[str]:
    answer = await api.read(f"/snapshots/{digest}/verify")
    failed = {check["name"] for check in answer["checks"] if not check["ok"]}
    assert answer["ok"] is (not failed)
    return failed


def _set(*path: str | int, to: Any) -> Change:
    def change(document: Json) -> None:
        target: Any = document
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = to

    return change


def _drop(*path: str | int) -> Change:
    def change(document: Json) -> None:
        target: Any = document
        for step in path[:-1]:
            target = target[step]
        del target[path[-1]]

    return change


CHANGES: dict[str, tuple[Change, str]] = {
    "a higher budget": (_set("budget", "maxTokens", to=9000), "hash"),
    "fewer tokens used": (_set("budget", "usedTokens", to=1), "budget"),
    "cheaper item": (_set("items", 0, "tokens", to=1), "budget"),
    "another rank": (_set("items", 0, "rank", to=2), "budget"),
    "another source": (_set("items", 1, "sourceId", to="b.md"), "hash"),
    "another text": (_set("items", 1, "contentHash", to="sha256:" + "0" * 64), "hash"),
    "another subject": (_set("scope", "subject", to="bob"), "scope"),
    "another classification": (_set("items", 1, "classification", to="restricted"), "hash"),
    "an item gone": (_drop("items", 1), "budget"),
    "another id": (_set("snapshotId", to="6f1c0c5e-0a57-8a3e-9d7e-2f6f5f0b8a11"), "id"),
    "another hash": (_set("hash", to="sha256:" + "0" * 64), "hash"),
    "NUL": (_set("items", 1, "project", to="\0"), "hash"),
    "no text for a digest": (_set("items", 1, "contentHash", to=7), "hash"),
    "a fraction": (_set("budget", "price", to=0.5), "canonical"),
    "an unknown member": (_set("note", to="x"), "schema"),
    "no hash": (_drop("hash"), "schema"),
    "no content hash": (_drop("items", 1, "contentHash"), "hash"),
    "no trust tier": (_drop("items", 1, "trustTier"), "hash"),
    "no project": (_drop("items", 1, "project"), "hash"),
    "no encoding": (_drop("budget", "encoding"), "hash"),
    "another encoding": (_set("budget", "encoding", to="p50k_base"), "hash"),
    "another format": (_set("budget", "format", to="html"), "hash"),
    "no digests": (_drop("budget", "assembly"), "report"),
    "digests of another kind": (_set("budget", "assembly", to=[]), "report"),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_changed_document_is_found_out(
    api: Api, embedded_superuser: Database, name: str
) -> None:
    change, check = CHANGES[name]
    document = await _stored(api)
    digest = document["hash"]
    change(document)
    await _overwrite(embedded_superuser, "canonical", digest, rfc8785.dumps(document))
    assert check in await _failed_checks(api, digest)


async def test_a_forger_who_recomputes_hash_and_id_is_found_out(
    api: Api, embedded_superuser: Database
) -> None:
    """The document is consistent in itself; but it is not the one of this hash."""
    document = await _stored(api)
    digest = document["hash"]
    document["budget"]["maxTokens"] = 9000
    covered = {name: document[name] for name in document if name not in ("hash", "snapshotId")}
    forged = hashlib.sha256(rfc8785.dumps(covered))
    raw = bytearray(forged.digest()[:16])
    raw[6], raw[8] = raw[6] & 0x0F | 0x80, raw[8] & 0x3F | 0x80
    plain = raw.hex()
    document["hash"] = f"sha256:{forged.hexdigest()}"
    document["snapshotId"] = "-".join(
        (plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:])
    )
    await _overwrite(embedded_superuser, "canonical", digest, rfc8785.dumps(document))
    assert await _failed_checks(api, digest) == {"reference"}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"items": 1}', b"{}", b"[" * 100_000]
)
async def test_bytes_that_are_no_snapshot_are_found_out(
    api: Api, embedded_superuser: Database, text: bytes
) -> None:
    digest = (await _stored(api))["hash"]
    await _overwrite(embedded_superuser, "canonical", digest, text)
    assert await _failed_checks(api, digest) == {"reference", "schema"}


async def test_the_same_document_in_other_bytes_is_found_out(
    api: Api, embedded_superuser: Database
) -> None:
    document = await _stored(api)
    spaced = json.dumps(document, indent=1).encode()
    await _overwrite(embedded_superuser, "canonical", document["hash"], spaced)
    assert await _failed_checks(api, document["hash"]) == {"canonical"}


@pytest.mark.parametrize("column", ["report", "request"])
@pytest.mark.parametrize("value", [b"{}", b"", b"{", b"[]", b'{"strategy":{},"scope":{}}'], ids=str)
async def test_a_changed_report_or_request_is_found_out(
    api: Api, embedded_superuser: Database, column: str, value: bytes
) -> None:
    digest = (await _stored(api))["hash"]
    await _overwrite(embedded_superuser, column, digest, value)
    assert column in await _failed_checks(api, digest)


@pytest.mark.parametrize("table", ["source_contents", "snapshot_contents"])
async def test_a_changed_text_is_found_out_and_its_prompt_does_not_pass_for_the_first(
    api: Api, embedded_superuser: Database, table: str
) -> None:
    snapshot = await _stored(api)
    digest = snapshot["items"][1 if table == "source_contents" else 0]["contentHash"]
    async with embedded_superuser.engine.begin() as connection:
        tenant = await connection.execute(
            sa.text("SELECT enter_tenant(:name, false)"), {"name": api.tenant}
        )
        changed = await connection.execute(
            sa.text(
                f"UPDATE {table} SET text = text || '!' "
                "WHERE digest = :digest AND tenant_key = :tenant"
            ),
            {"digest": bytes.fromhex(digest[7:]), "tenant": tenant.scalar_one()},
        )
    assert changed.rowcount == 1
    assert "contents" in await _failed_checks(api, snapshot["hash"])
