"""The audit log in PostgreSQL: appending is one INSERT, sealing one short transaction.

Guarantees: what `audit.log` asks. A trigger notes each new event in `audit_unsealed`; the
sealing transaction takes a batch out of there and stores its seal, or neither. Sealers of
one tenant queue on an advisory lock that nobody else takes, so that assemblies and writers
of the index never wait for them. The serving role may only insert and read events and seals.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.database import Database, Statement
from app.audit.chain import Seal, seal_hash
from app.audit.event import AuditEvent, Outcome, instant
from app.audit.log import BATCH_EVENTS, EventFilter
from app.canonical import JsonValue, digest_from_bytes, digest_to_bytes

_SEALING_LOCK = 0x61756474
"""`audt` in ASCII: the first of the two keys of the lock; the other is the tenant's."""


def event_insert(source: str = "") -> str:
    """An INSERT of the event in $2->'event', once for each row of `source`; none if null."""
    return f"""
        INSERT INTO audit_events (tenant_key, at, id, subject, agent, action, outcome, code,
            request_id, targets)
        SELECT $1, (e->>'at')::timestamptz, (e->>'id')::uuid, e->>'subject', e->>'agent',
            e->>'action', e->>'outcome', e->>'code', e->>'requestId', e->'targets'
        FROM (SELECT $2::jsonb->'event' AS e) AS given {source}
        WHERE jsonb_typeof(e) = 'object'
        ON CONFLICT (tenant_key, at, id) DO NOTHING
    """  # noqa: S608 - the fragment is a constant


def event_argument(event: AuditEvent | None) -> dict[str, JsonValue]:
    """The member of $2 that `event_insert` reads."""
    return {"event": None if event is None else event.document()}


_EVENT_INSERT: Final = event_insert()
_APPEND: Final = Statement(f"{_EVENT_INSERT} RETURNING true", "stored boolean", adds_tenant=True)
_EVENT_COLUMNS = (
    "e.id, e.at, e.subject, e.agent, e.action, e.outcome, e.code, e.request_id, e.targets"
)
_EVENT_ANSWER = (
    "id uuid, at timestamptz, subject text, agent text, action text, outcome text, code text, "
    "request_id text, targets jsonb"
)
_SEALS: Final = Statement(
    f"""
    SELECT s.sequence, s.sealed_at, s.previous, s.hash, cardinality(s.event_ids), {_EVENT_COLUMNS}
    FROM (
        SELECT * FROM audit_seals
        WHERE tenant_key = $1 AND sequence > ($2->>'after')::bigint
        ORDER BY sequence LIMIT ($2->>'limit')::integer
    ) s
    CROSS JOIN LATERAL unnest(s.event_ats, s.event_ids) WITH ORDINALITY AS m (at, id, place)
    LEFT JOIN LATERAL (
        SELECT * FROM audit_events
        WHERE tenant_key = $1 AND at = m.at AND id = m.id LIMIT 1
    ) e ON true
    ORDER BY s.sequence, m.place
    """,  # noqa: S608 - fragments are constants
    "sequence bigint, sealed_at timestamptz, previous bytea, hash bytea, sealed integer, "
    + _EVENT_ANSWER,
)
_LOCK = f"SELECT pg_advisory_xact_lock({_SEALING_LOCK}, $1)"
_TAKE = f"""
    WITH taken AS (
        DELETE FROM audit_unsealed u USING (
            SELECT at, id FROM audit_unsealed WHERE tenant_key = $1 ORDER BY at, id LIMIT $2
        ) AS batch
        WHERE u.tenant_key = $1 AND u.at = batch.at AND u.id = batch.id RETURNING u.at, u.id
    )
    SELECT {_EVENT_COLUMNS} FROM taken
    JOIN audit_events e ON e.tenant_key = $1 AND e.at = taken.at AND e.id = taken.id
    ORDER BY e.at, e.id
"""  # noqa: S608 - fragments are constants
_HEAD = """
    SELECT sequence, hash FROM audit_seals WHERE tenant_key = $1 ORDER BY sequence DESC LIMIT 1
"""
_ADD_SEAL = """
    INSERT INTO audit_seals (tenant_key, sequence, sealed_at, previous, hash, event_ats, event_ids)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
"""


async def append_event(
    connection: AsyncConnection, tenant_key: int, event: AuditEvent | None
) -> None:
    """Store an event in a transaction that is open inside its tenant."""
    arguments = json.dumps(event_argument(event))
    await connection.exec_driver_sql(_EVENT_INSERT, (tenant_key, arguments))


class PostgresAuditLog:
    """Implements `audit.log.AuditLog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, tenant: str, event: AuditEvent) -> None:
        await self._database.run(tenant, _APPEND, event_argument(event))

    async def list_events(self, tenant: str, wanted: EventFilter) -> tuple[AuditEvent, ...]:
        conditions = ""
        if wanted.since is not None:
            conditions += " AND e.at >= ($2->>'since')::timestamptz"
        if wanted.before is not None:
            conditions += (
                " AND (e.at, e.id) < (($2->>'beforeTime')::timestamptz, ($2->>'beforeId')::uuid)"
            )
        statement = Statement(
            f"""
            SELECT {_EVENT_COLUMNS} FROM audit_events e WHERE e.tenant_key = $1 {conditions}
            ORDER BY e.at DESC, e.id DESC LIMIT ($2->>'limit')::integer
            """,  # noqa: S608 - fragments are constants
            _EVENT_ANSWER,
        )
        arguments: dict[str, JsonValue] = {
            "since": None if wanted.since is None else instant(wanted.since),
            "beforeTime": None if wanted.before is None else instant(wanted.before[0]),
            "beforeId": None if wanted.before is None else wanted.before[1],
            "limit": wanted.limit,
        }
        return tuple(map(_event, await self._database.run(tenant, statement, arguments)))

    async def seal(self, tenant: str, sealed_at: datetime) -> int:
        async with self._database.transaction(tenant) as (connection, tenant_key):
            # Alone in a statement: the next one sees what the holder before has committed.
            await connection.exec_driver_sql(_LOCK, (tenant_key,))
            rows = await connection.exec_driver_sql(_TAKE, (tenant_key, BATCH_EVENTS))
            events = [_event(row) for row in rows]
            if not events:
                return 0
            last = (await connection.exec_driver_sql(_HEAD, (tenant_key,))).one_or_none()
            sequence = 1 if last is None else last.sequence + 1
            previous = None if last is None else digest_from_bytes(last.hash)
            documents = [event.document() for event in events]
            digest = seal_hash(tenant, sequence, instant(sealed_at), previous, documents)
            await connection.exec_driver_sql(
                _ADD_SEAL,
                (
                    tenant_key,
                    sequence,
                    sealed_at,
                    previous and digest_to_bytes(previous),
                    digest_to_bytes(digest),
                    [event.at for event in events],
                    [event.id for event in events],
                ),
            )
            return len(events)

    async def seals(self, tenant: str, after: int, limit: int) -> tuple[Seal, ...]:
        rows = await self._database.run(tenant, _SEALS, {"after": after, "limit": limit})
        return tuple(_seal(list(group)) for _, group in groupby(rows, lambda row: row.sequence))


def _seal(rows: Sequence[sa.Row[Any]]) -> Seal:
    first = rows[0]
    return Seal(
        sequence=first.sequence,
        sealed_at=first.sealed_at,
        previous=None if first.previous is None else digest_from_bytes(first.previous),
        hash=digest_from_bytes(first.hash),
        count=first.sealed,
        events=tuple(_event(row) for row in rows if row.id is not None),
    )


def _event(row: sa.Row[Any]) -> AuditEvent:
    targets = row.targets
    return AuditEvent(
        id=str(row.id),
        at=row.at,
        subject=row.subject,
        agent=row.agent,
        action=row.action,
        outcome=Outcome(row.outcome),
        code=row.code,
        request_id=row.request_id,
        # Statements that were not made by SQLAlchemy get JSON as it came.
        targets=json.loads(targets) if isinstance(targets, str) else targets,
    )
