"""Property 8: nothing changes or deletes a stored snapshot; the database refuses it itself."""

import uuid

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import settings as examples
from sqlalchemy.exc import DBAPIError

from app.adapters.postgres.database import Database
from tests.property.service import Service
from tests.property.worlds import Caller, Json, situations

IMMUTABLE = ("snapshots", "snapshot_sources", "labels")


async def _store_one(service: Service, tenant: str) -> None:
    await service.index(
        tenant,
        [
            {
                "project": "alpha",
                "sourceId": "a.md",
                "sourceRevision": "1",
                "class": "documents",
                "text": "cancel a booking",
            }
        ],
    )
    caller = Caller("ana", ["*"], [], None, "restricted")
    ids = {"runId": str(uuid.uuid4()), "attemptId": str(uuid.uuid4())}
    answer = await service.assemble(tenant, caller, {**ids, "query": "cancel"})
    assert answer.status_code == 201
    assert len(answer.json()["items"]) == 1


@pytest.mark.parametrize("table", IMMUTABLE)
@pytest.mark.parametrize("change", ["UPDATE {} SET tenant_key = 0", "DELETE FROM {}"])
@pytest.mark.parametrize("role", ["owner", "serving"])
async def test_the_database_refuses_to_change_rows(
    service: Service, database: Database, owner: Database, table: str, change: str, role: str
) -> None:
    tenant = service.make_tenant()
    await _store_one(service, tenant)
    engine = (owner if role == "owner" else database).engine
    async with engine.connect() as connection:
        await connection.execute(sa.text("SELECT enter_tenant(:name, false)"), {"name": tenant})
        found = await connection.execute(sa.text(f"SELECT count(*) FROM {table}"))
        assert found.scalar_one() > 0
        with pytest.raises(DBAPIError, match=r"is immutable|permission denied"):
            await connection.execute(sa.text(change.format(table)))


@pytest.mark.parametrize("table", IMMUTABLE)
@pytest.mark.parametrize("role", ["owner", "serving"])
async def test_the_database_refuses_to_empty_the_table(
    database: Database, owner: Database, table: str, role: str
) -> None:
    async with (owner if role == "owner" else database).engine.connect() as connection:
        with pytest.raises(DBAPIError, match=r"is immutable|permission denied"):
            await connection.execute(sa.text(f"TRUNCATE {table} CASCADE"))


async def test_a_replication_role_does_not_lift_the_refusal(
    service: Service, embedded_superuser: Database
) -> None:
    tenant = service.make_tenant()
    await _store_one(service, tenant)
    async with embedded_superuser.engine.connect() as connection:
        await connection.execute(sa.text("SET session_replication_role = replica"))
        with pytest.raises(DBAPIError, match="is immutable"):
            await connection.execute(sa.text("DELETE FROM snapshots"))


@examples(max_examples=25)
@given(situation=situations())
async def test_storing_the_same_snapshot_again_changes_nothing(
    service: Service, situation: tuple[list[Json], Caller, Json]
) -> None:
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    first = await service.assemble(tenant, caller, request)
    again = await service.assemble(tenant, caller, request, refresh="true")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.content == first.content
    listing = await service.get(tenant, "/snapshots", **caller.claims())
    assert [one["hash"] for one in listing.json()["snapshots"]] == [first.json()["hash"]]


@examples(max_examples=15)
@given(situation=situations())
async def test_a_stored_snapshot_reads_the_same_after_the_index_has_changed(
    service: Service, situation: tuple[list[Json], Caller, Json]
) -> None:
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    first = await service.assemble(tenant, caller, request)
    texts = await service.get(
        tenant, f"/snapshots/{first.json()['hash']}/contents", **caller.claims()
    )
    for source in sources:
        changed = {**source, "sourceRevision": "3", "chunks": [{"chunkId": "0", "text": "new"}]}
        await service.index(tenant, [changed])
    read = await service.get(tenant, f"/snapshots/{first.json()['hash']}", **caller.claims())
    assert read.content == first.content
    later = await service.get(
        tenant, f"/snapshots/{first.json()['hash']}/contents", **caller.claims()
    )
    assert later.content == texts.content
    repeated = await service.assemble(tenant, caller, request)
    assert repeated.status_code == 200
    assert repeated.content == first.content
