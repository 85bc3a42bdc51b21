"""Rate limits that all processes share: one short statement for each call.

Guarantees: what `app.rate_limits` says, whichever process a call meets and however many come
at once. Calls of one subject follow each other at its row, and those of a tenant at the
tenant's, for the length of this statement and no longer: what the calls do afterwards does
not wait for each other. The statement waits for no disk, and a refused call writes nothing.
"""

from typing import Any, Final

import sqlalchemy as sa

from app.adapters.postgres.database import Database, Statement
from app.canonical import digest_text, digest_to_bytes
from app.rate_limits import WINDOW_S, Quota, RateLimits, Usage

_WHOLE_TENANT = b""

# The time until the quota is full grows by one call's part of the window, up to the window.
_TAKE = """
    INSERT INTO rate_limits AS held (tenant_key, who, full_at)
    SELECT $1, $4[{who}], now() + part.part
    FROM (SELECT make_interval(secs => {window}.0 / NULLIF($3[{who}], 0)) AS part) AS part
    WHERE $3[{who}] > 0 {condition}
    ON CONFLICT (tenant_key, who) DO UPDATE
    SET full_at = greatest(held.full_at, now())
        + make_interval(secs => {window}.0 / NULLIF($3[{who}], 0))
    WHERE greatest(held.full_at, now())
        + make_interval(secs => {window}.0 / NULLIF($3[{who}], 0))
        <= now() + make_interval(secs => {window})
    RETURNING full_at
"""
_BY_SUBJECT = _TAKE.format(who=1, window=WINDOW_S, condition="")
_BY_TENANT = _TAKE.format(
    who=2, window=WINDOW_S, condition="AND ($3[1] = 0 OR EXISTS (SELECT FROM by_subject))"
)
_COUNT: Final = Statement(
    f"""
    WITH by_subject AS ({_BY_SUBJECT}), by_tenant AS ({_BY_TENANT}),
    answer AS (
        SELECT given.place, taken.full_at IS NULL AS refused,
            COALESCE(
                taken.full_at, before.full_at, now() + interval '{WINDOW_S} seconds'
            ) AS full_at
        FROM (VALUES (1), (2)) AS given (place)
        LEFT JOIN (
            SELECT 1 AS place, full_at FROM by_subject UNION ALL SELECT 2, full_at FROM by_tenant
        ) AS taken USING (place)
        LEFT JOIN rate_limits AS before ON before.tenant_key = $1 AND before.who = $4[given.place]
    )
    SELECT refused, (extract(epoch FROM full_at - now()) * 1000000)::bigint
    FROM answer ORDER BY place
    """,  # noqa: S608 - fragments are constants
    "refused boolean, full_in_us bigint",
    adds_tenant=True,
)


class PostgresRateLimiter:
    """Implements `app.rate_limits.RateLimiter`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self, tenant: str, subject: str, limits: RateLimits) -> Usage:
        by_subject, by_tenant = await self._database.run(
            tenant,
            _COUNT,
            numbers=(limits.per_subject, limits.per_tenant),
            blobs=(digest_to_bytes(digest_text(subject)), _WHOLE_TENANT),
        )
        subject_quota = _quota("subject", limits.per_subject, by_subject)
        if subject_quota is not None and subject_quota.refused:
            return Usage(subject_quota, None)
        return Usage(subject_quota, _quota("tenant", limits.per_tenant, by_tenant))


def _quota(name: str, calls: int, row: sa.Row[Any]) -> Quota | None:
    return Quota(name, calls, row.full_in_us, row.refused) if calls else None
