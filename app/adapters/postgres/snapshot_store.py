"""Snapshots in PostgreSQL: canonical bytes, never jsonb; each call is one statement.

Guarantees: what `storage.snapshots` asks. The database refuses changes itself; the
serving role may only insert and read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from app.adapters.postgres.audit_log import event_argument, event_insert
from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.scope_filter import label_filter, scope_arguments, text_array
from app.audit.event import AuditEvent
from app.canonical import Digest, JsonValue, digest_from_bytes, digest_to_bytes
from app.scope.access import Predicate
from app.scope.label import Label
from app.scope.vocabulary import ALL_PROJECTS
from app.storage.snapshots import (
    PutOutcome,
    SnapshotFilter,
    SnapshotRecord,
    SnapshotSummary,
    StoredSnapshot,
    TextKey,
)

# $4 holds: hash, canonical, request, report, inputs and, where a repeat is claimed, its key,
# and behind it an idempotency key. A conflict on either waits for the other transaction, so
# that of several calls at once one stores and the others find it stored.
_PUT_SQL = """
    WITH keyed AS ({key}), claimed AS ({claim}), stored AS (
        INSERT INTO snapshots (tenant_key, hash, snapshot_id, run_id, step_id, attempt_id,
            canonical, request, report, timings, index_version, evaluated_at, engine,
            used_tokens, degraded, inline_projects, inline_classes, inline_classification, inputs,
            external_labels)
        SELECT $1, $4[1], ($2->>'snapshotId')::uuid, ($2->>'runId')::uuid,
            ($2->>'stepId')::uuid, ($2->>'attemptId')::uuid, $4[2], $4[3], $4[4],
            $2->'timings', ($2->>'indexVersion')::bigint, ($2->>'evaluatedAt')::timestamptz,
            $2->>'engine', ($2->>'usedTokens')::integer, {degraded}, {inline_projects},
            {inline_classes}, ($2->>'inlineClassification')::smallint, $4[5],
            $2->'externalLabels'
        FROM claimed
        ON CONFLICT DO NOTHING RETURNING hash
    ), sources AS (
        INSERT INTO snapshot_sources (tenant_key, hash, project, source_id)
        SELECT DISTINCT $1, stored.hash, pair->>0, pair->>1
        FROM stored, jsonb_array_elements($2->'sources') AS pair
    ), texts AS (
        INSERT INTO snapshot_contents (tenant_key, hash, digest, text)
        SELECT DISTINCT $1, stored.hash, decode(pair->>0, 'hex'), pair->>1
        FROM stored, jsonb_array_elements($2->'texts') AS pair
    ), event AS ({event})
    SELECT EXISTS (SELECT FROM keyed), EXISTS (SELECT FROM claimed), EXISTS (SELECT FROM stored)
"""
_KEY = """
    INSERT INTO idempotency_keys (tenant_key, key_digest, repeat_key) VALUES ($1, $4[7], $4[6])
    ON CONFLICT (tenant_key, key_digest) DO NOTHING RETURNING key_digest
"""
_CLAIM = """
    INSERT INTO repeats (tenant_key, repeat_key, hash) SELECT $1, $4[6], $4[1] FROM keyed
    ON CONFLICT (tenant_key, repeat_key) DO NOTHING RETURNING hash
"""
_ANY = "SELECT true"
_EVENT = event_insert("CROSS JOIN stored")
_ARRAYS = {
    "degraded": text_array("degraded"),
    "inline_projects": text_array("inlineProjects"),
    "inline_classes": text_array("inlineClasses"),
}
_PUT_ANSWER = "keyed boolean, claimed boolean, stored boolean"


def _put_statement(key: str, claim: str) -> Statement:
    sql = _PUT_SQL.format(key=key, claim=claim, event=_EVENT, **_ARRAYS)
    return Statement(sql, _PUT_ANSWER, adds_tenant=True)


_PUT_KEYED: Final = _put_statement(_KEY, _CLAIM)
_PUT_IF_ABSENT: Final = _put_statement(_ANY, _CLAIM)
_PUT: Final = _put_statement(_ANY, _ANY)
_FIND_KEY: Final = Statement(
    "SELECT repeat_key FROM idempotency_keys WHERE tenant_key = $1 AND key_digest = $4[1]",
    "repeat_key bytea",
)
_PUT_KEY: Final = Statement(
    """
    INSERT INTO idempotency_keys (tenant_key, key_digest, repeat_key) VALUES ($1, $4[1], $4[2])
    ON CONFLICT (tenant_key, key_digest) DO NOTHING RETURNING true
    """,
    "kept boolean",
)

_STORED_COLUMNS = (
    "s.hash, s.canonical, s.request, s.report, s.timings, s.index_version, s.created_at, "
    "s.evaluated_at, s.engine, s.inputs"
)
_STORED_ANSWER = (
    "hash bytea, canonical bytea, request bytea, report bytea, timings jsonb, "
    "index_version bigint, created_at timestamptz, evaluated_at timestamptz, engine text, "
    "inputs bytea"
)
_TEXTS: Final = Statement(
    """
    SELECT key.at::integer, COALESCE(x.text, i.text)
    FROM jsonb_to_recordset($2->'keys') AS key (at bigint, digest text, project text, id text)
    LEFT JOIN LATERAL (
        SELECT text FROM source_contents WHERE tenant_key = $1 AND project = key.project
        AND source_id = key.id AND digest = decode(key.digest, 'hex') LIMIT 1
    ) x ON true
    LEFT JOIN LATERAL (
        SELECT text FROM snapshot_contents WHERE key.id IS NULL AND tenant_key = $1
        AND hash = $4[1] AND digest = decode(key.digest, 'hex') LIMIT 1
    ) i ON true
    """,
    "at integer, text text",
)


def readable(predicate: Predicate) -> str:
    """A condition on `snapshots s`: the predicate admits everything in it today.

    Sources count with their present label, or the last one they had; inline items with
    the bounds that were stored with the snapshot, and chunks from outside of the index with
    the labels that were.
    """
    # OFFSET 0 keeps the question about one snapshot's sources from becoming a join, for
    # which the sources of all the tenant's snapshots would be looked up first.
    projects = (
        "true"
        if predicate.projects == (ALL_PROJECTS,)
        else f"s.inline_projects <@ {text_array('projects')}"
    )
    return f"""
        s.inline_classification <= ($2->>'classificationRank')::smallint
        AND s.inline_classes <@ {text_array("classes")} AND {projects}
        AND NOT EXISTS (
            SELECT FROM snapshot_sources held CROSS JOIN LATERAL (
                SELECT v.label_key FROM source_versions v WHERE v.tenant_key = $1
                AND v.project = held.project AND v.source_id = held.source_id
                ORDER BY v.valid_to DESC LIMIT 1
            ) present CROSS JOIN LATERAL (
                SELECT * FROM labels
                WHERE tenant_key = $1 AND label_key = present.label_key LIMIT 1
            ) l WHERE held.tenant_key = $1 AND held.hash = s.hash
            AND NOT ({label_filter(predicate)})
            OFFSET 0
        ) AND NOT EXISTS (
            SELECT FROM (
                SELECT $1 AS tenant_key, * FROM jsonb_to_recordset(s.external_labels) AS stored
                    (project text, class text, classification smallint, trust_tier smallint,
                    allow text[], deny text[])
            ) l WHERE NOT ({label_filter(predicate)})
        )
    """  # noqa: S608 - fragments are constants


class PostgresSnapshotStore:
    """Implements `storage.snapshots.SnapshotStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_if_absent(
        self,
        tenant: str,
        record: SnapshotRecord,
        repeat_key: bytes,
        event: AuditEvent | None = None,
        idempotency_key: bytes | None = None,
    ) -> PutOutcome:
        if idempotency_key is None:
            return await self._put(tenant, _PUT_IF_ABSENT, record, event, repeat_key)
        return await self._put(tenant, _PUT_KEYED, record, event, repeat_key, idempotency_key)

    async def put(
        self, tenant: str, record: SnapshotRecord, event: AuditEvent | None = None
    ) -> PutOutcome:
        return await self._put(tenant, _PUT, record, event)

    async def _put(
        self,
        tenant: str,
        statement: Statement,
        record: SnapshotRecord,
        event: AuditEvent | None,
        *keys: bytes,
    ) -> PutOutcome:
        blobs = (
            digest_to_bytes(record.hash),
            record.canonical,
            record.request,
            record.report,
            record.inputs,
            *keys,
        )
        arguments = {**_put_arguments(record), **event_argument(event)}
        rows = await self._database.run(tenant, statement, arguments, blobs=blobs)
        if not rows[0].keyed:
            return PutOutcome.KEY_TAKEN
        if not rows[0].claimed:
            return PutOutcome.REPEAT_TAKEN
        return PutOutcome.STORED if rows[0].stored else PutOutcome.ALREADY_STORED

    async def find_repeat(self, predicate: Predicate, repeat_key: bytes) -> StoredSnapshot | None:
        statement = Statement(
            f"""
            SELECT {_STORED_COLUMNS} FROM repeats r CROSS JOIN LATERAL (
                SELECT * FROM snapshots WHERE tenant_key = $1 AND hash = r.hash LIMIT 1
            ) s WHERE r.tenant_key = $1 AND r.repeat_key = $4[1] AND {readable(predicate)}
            """,  # noqa: S608 - fragments are constants
            _STORED_ANSWER,
        )
        rows = await self._database.run(
            predicate.tenant, statement, scope_arguments(predicate), blobs=(repeat_key,)
        )
        return _stored(rows)

    async def find_key(self, tenant: str, idempotency_key: bytes) -> bytes | None:
        rows = await self._database.run(tenant, _FIND_KEY, blobs=(idempotency_key,))
        return rows[0].repeat_key if rows else None

    async def put_key(self, tenant: str, idempotency_key: bytes, repeat_key: bytes) -> bool:
        blobs = (idempotency_key, repeat_key)
        return bool(await self._database.run(tenant, _PUT_KEY, blobs=blobs))

    async def get(self, predicate: Predicate, ref: str) -> StoredSnapshot | None:
        by_hash = ref.startswith("sha256:")
        key = "s.hash = $4[1]" if by_hash else "s.snapshot_id = ($2->>'id')::uuid"
        statement = Statement(
            f"""
            SELECT {_STORED_COLUMNS} FROM snapshots s
            WHERE s.tenant_key = $1 AND {key} AND {readable(predicate)}
            """,  # noqa: S608 - fragments are constants
            _STORED_ANSWER,
        )
        arguments: dict[str, JsonValue] = {**scope_arguments(predicate), "id": ref}
        blobs = (digest_to_bytes(Digest(ref)),) if by_hash else ()
        return _stored(
            await self._database.run(predicate.tenant, statement, arguments, blobs=blobs)
        )

    async def list_snapshots(
        self, predicate: Predicate, wanted: SnapshotFilter
    ) -> tuple[SnapshotSummary, ...]:
        named = {
            "run_id": wanted.run_id,
            "step_id": wanted.step_id,
            "attempt_id": wanted.attempt_id,
        }
        conditions = "".join(
            f" AND s.{column} = ($2->>'{column}')::uuid"
            for column, value in named.items()
            if value is not None
        )
        if wanted.before is not None:
            conditions += " AND (s.created_at, s.hash) < (($2->>'beforeTime')::timestamptz, $4[1])"
        statement = Statement(
            f"""
            SELECT s.hash, s.snapshot_id, s.run_id, s.step_id, s.attempt_id, s.created_at,
                s.used_tokens, s.degraded
            FROM snapshots s
            WHERE s.tenant_key = $1 {conditions} AND {readable(predicate)}
            ORDER BY s.created_at DESC, s.hash DESC LIMIT ($2->>'limit')::integer
            """,  # noqa: S608 - fragments are constants
            "hash bytea, snapshot_id uuid, run_id uuid, step_id uuid, attempt_id uuid, "
            "created_at timestamptz, used_tokens integer, degraded text[]",
        )
        arguments: dict[str, JsonValue] = {
            **scope_arguments(predicate),
            **named,
            "beforeTime": wanted.before and wanted.before[0].isoformat(),
            "limit": wanted.limit,
        }
        blobs = (digest_to_bytes(wanted.before[1]),) if wanted.before else ()
        rows = await self._database.run(predicate.tenant, statement, arguments, blobs=blobs)
        return tuple(_summary(row) for row in rows)

    async def texts(
        self, tenant: str, snapshot: Digest, keys: Sequence[TextKey]
    ) -> Mapping[TextKey, str]:
        asked: list[JsonValue] = [
            {
                "at": at,
                "digest": digest_to_bytes(key.digest).hex(),
                "project": key.source and key.source[0],
                "id": key.source and key.source[1],
            }
            for at, key in enumerate(keys)
        ]
        rows = await self._database.run(
            tenant, _TEXTS, {"keys": asked}, blobs=(digest_to_bytes(snapshot),)
        )
        return {keys[row.at]: row.text for row in rows if row.text is not None}


def _put_arguments(record: SnapshotRecord) -> dict[str, JsonValue]:
    inline = record.inline
    return {
        "snapshotId": record.snapshot_id,
        "runId": record.run_id,
        "stepId": record.step_id,
        "attemptId": record.attempt_id,
        "timings": dict(record.timings_ms),
        "indexVersion": record.index_version,
        "evaluatedAt": record.evaluated_at.isoformat(),
        "engine": record.engine,
        "usedTokens": record.used_tokens,
        "degraded": list(record.degraded),
        "inlineProjects": list(inline.projects),
        "inlineClasses": [name.value for name in inline.classes],
        "inlineClassification": -1 if inline.classification is None else inline.classification.rank,
        "externalLabels": [_label_row(label) for label in record.external_labels],
        "sources": [list(pair) for pair in record.sources],
        "texts": [[digest_to_bytes(digest).hex(), text] for digest, text in record.texts],
    }


def _label_row(label: Label) -> JsonValue:
    """As the table `labels` has it."""
    return {
        "project": label.project,
        "class": label.knowledge_class.value,
        "classification": label.classification.rank,
        "trust_tier": label.trust_tier.rank,
        "allow": None if label.allow is None else list(label.allow),
        "deny": list(label.deny),
    }


def _stored(rows: Sequence[sa.Row[Any]]) -> StoredSnapshot | None:
    if not rows:
        return None
    row = rows[0]
    return StoredSnapshot(
        hash=digest_from_bytes(row.hash),
        canonical=row.canonical,
        request=row.request,
        report=row.report,
        timings_ms=row.timings,
        index_version=row.index_version,
        created_at=row.created_at,
        evaluated_at=row.evaluated_at,
        engine=row.engine,
        inputs=row.inputs,
    )


def _summary(row: sa.Row[Any]) -> SnapshotSummary:
    def text(value: UUID | None) -> str | None:
        return None if value is None else str(value)

    return SnapshotSummary(
        hash=digest_from_bytes(row.hash),
        snapshot_id=str(row.snapshot_id),
        run_id=str(row.run_id),
        step_id=text(row.step_id),
        attempt_id=str(row.attempt_id),
        created_at=row.created_at,
        used_tokens=row.used_tokens,
        degraded=tuple(row.degraded),
    )
