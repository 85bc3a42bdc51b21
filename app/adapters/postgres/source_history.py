"""What sources were at a version of the index, in PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.scope_filter import label_from_row
from app.canonical import JsonValue
from app.scope.label import Label
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier
from app.storage.labels import IndexVersion, SourceFacts, SourceName

_FACTS: Final = Statement(
    """
    SELECT v.source_id, v.revision, l.project, l.class, l.classification, l.trust_tier,
        l.allow, l.deny, p.project, p.class, p.classification, p.trust_tier, p.allow, p.deny
    FROM jsonb_array_elements($2->'names') AS name CROSS JOIN LATERAL (
        SELECT * FROM source_versions WHERE tenant_key = $1 AND project = name->>0
        AND source_id = name->>1 AND valid_from <= ($2->>'version')::bigint
        AND valid_to > ($2->>'version')::bigint LIMIT 1
    ) v CROSS JOIN LATERAL (
        SELECT label_key FROM source_versions WHERE tenant_key = $1 AND project = name->>0
        AND source_id = name->>1 ORDER BY valid_to DESC LIMIT 1
    ) present CROSS JOIN LATERAL (
        SELECT * FROM labels WHERE tenant_key = $1 AND label_key = v.label_key LIMIT 1
    ) l CROSS JOIN LATERAL (
        SELECT * FROM labels WHERE tenant_key = $1 AND label_key = present.label_key LIMIT 1
    ) p
    """,
    "source_id text, revision text, project text, knowledge_class text, "
    "classification smallint, trust_tier smallint, allow text[], deny text[], "
    "present_project text, present_class text, present_classification smallint, "
    "present_trust_tier smallint, present_allow text[], present_deny text[]",
)
_OLDEST: Final = Statement(
    "SELECT oldest_version FROM tenants WHERE tenant_key = $1", "oldest bigint"
)


class PostgresSourceHistory:
    """Implements `storage.labels.SourceHistory`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def facts(
        self, tenant: str, version: IndexVersion, names: Sequence[SourceName]
    ) -> Mapping[SourceName, SourceFacts]:
        if not names:
            return {}
        arguments: JsonValue = {"names": [list(name) for name in names], "version": version}
        rows = await self._database.run(tenant, _FACTS, arguments)
        return {
            (row.project, row.source_id): SourceFacts(
                row.revision, label_from_row(row), _present_label(row)
            )
            for row in rows
        }

    async def oldest_version(self, tenant: str) -> IndexVersion:
        rows = await self._database.run(tenant, _OLDEST)
        return IndexVersion(rows[0].oldest if rows else 0)


def _present_label(row: sa.Row[Any]) -> Label:
    return Label(
        project=row.present_project,
        knowledge_class=KnowledgeClass(row.present_class),
        classification=Classification.of_rank(row.present_classification),
        trust_tier=TrustTier.of_rank(row.present_trust_tier),
        allow=None if row.present_allow is None else tuple(row.present_allow),
        deny=tuple(row.present_deny),
    )
