"""Labels are interned: each tenant has a key for every label that it ever had.

Expects a transaction that holds the tenant's lock: keys are given out in order under it.
"""

import json
from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncConnection

from app.canonical import Digest, digest_from_bytes, digest_to_bytes, digest_value
from app.scope.label import Label

_KNOWN_LABELS = "SELECT digest, label_key FROM labels WHERE tenant_key = $1 AND digest = ANY($2)"
_ADD_LABELS = """
    INSERT INTO labels
    SELECT $1, n.key, n.project, n.class, n.classification, n.tier,
        CASE WHEN n.allow IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(n.allow)) END,
        ARRAY(SELECT jsonb_array_elements_text(n.deny)), decode(n.digest, 'hex')
    FROM jsonb_to_recordset($2::jsonb) AS n (key integer, project text, class text,
        classification smallint, tier smallint, allow jsonb, deny jsonb, digest text)
"""


def label_digest(label: Label) -> Digest:
    return digest_value(label.canonical())


async def intern_labels(
    connection: AsyncConnection, tenant_key: int, labels: Iterable[Label], last_key: int
) -> dict[Digest, int]:
    """Keys of labels by digest; those of new labels follow the last key."""
    wanted = {label_digest(label): label for label in labels}
    digests = [digest_to_bytes(digest) for digest in wanted]
    rows = await connection.exec_driver_sql(_KNOWN_LABELS, (tenant_key, digests))
    keys = {digest_from_bytes(row.digest): int(row.label_key) for row in rows}
    new = []
    for digest, label in wanted.items():
        if digest in keys:
            continue
        last_key += 1
        keys[digest] = last_key
        new.append(
            {
                "key": last_key,
                "project": label.project,
                "class": label.knowledge_class.value,
                "classification": label.classification.rank,
                "tier": label.trust_tier.rank,
                "allow": label.allow,
                "deny": label.deny,
                "digest": digest_to_bytes(digest).hex(),
            }
        )
    if new:
        await connection.exec_driver_sql(_ADD_LABELS, (tenant_key, json.dumps(new)))
    return keys
