"""The predicate of a scope as SQL over labels.

Guarantees: values travel as parameters, never as SQL; the fragments name $1 (the
tenant's key) and read the arguments that `scope_arguments` makes from $2.
"""

from typing import Any

import sqlalchemy as sa

from app.canonical import JsonValue
from app.scope.access import Predicate, SourcePatterns
from app.scope.label import Label
from app.scope.vocabulary import ALL_PROJECTS, Classification, KnowledgeClass, TrustTier

LABEL_COLUMNS = (
    "l.project, l.class AS knowledge_class, l.classification, l.trust_tier, l.allow, l.deny"
)
LABEL_ANSWER = (
    "project text, knowledge_class text, classification smallint, trust_tier smallint, "
    "allow text[], deny text[]"
)


def text_array(argument: str) -> str:
    """SQL for a text[] argument: evaluated once per statement, not once per row."""
    return f"ARRAY(SELECT jsonb_array_elements_text($2->'{argument}'))"


def label_filter(predicate: Predicate) -> str:
    """A condition on `labels l` that holds for exactly the labels the predicate admits."""
    conditions = [
        "l.tenant_key = $1",
        f"l.class = ANY({text_array('classes')})",
        "l.classification <= ($2->>'classificationRank')::smallint",
        "l.trust_tier <= ($2->>'trustTierRank')::smallint",
        f"(l.allow IS NULL OR l.allow && {text_array('allowPrincipals')})",
        f"NOT l.deny && {text_array('denyPrincipals')}",
    ]
    if predicate.projects != (ALL_PROJECTS,):
        conditions.append(f"l.project = ANY({text_array('projects')})")
    return " AND ".join(conditions)


def source_filter(patterns: SourcePatterns) -> str:
    """A condition on `s.source_id` for the patterns of a scope."""
    conditions = []
    if patterns.allow is not None:
        conditions.append(f"s.source_id LIKE ANY({text_array('allowedPatterns')})")
    if patterns.deny:
        conditions.append(f"NOT s.source_id LIKE ANY({text_array('deniedPatterns')})")
    return " AND ".join(conditions) or "true"


def scope_arguments(predicate: Predicate) -> dict[str, JsonValue]:
    floor = predicate.min_trust_tier or TrustTier.UNTRUSTED_EXTERNAL
    return {
        "projects": list(predicate.projects),
        "classes": [name.value for name in predicate.classes],
        "classificationRank": predicate.max_classification.rank,
        "trustTierRank": floor.rank,
        "allowPrincipals": list(predicate.allow_principals),
        "denyPrincipals": list(predicate.deny_principals),
        "allowedPatterns": [like_pattern(text) for text in predicate.sources.allow or ()],
        "deniedPatterns": [like_pattern(text) for text in predicate.sources.deny],
    }


def like_pattern(pattern: str) -> str:
    """A `*` pattern as a LIKE pattern: `%` and `_` of the pattern stand for themselves."""
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def label_from_row(row: sa.Row[Any]) -> Label:
    """The label of a row that has LABEL_COLUMNS."""
    return Label(
        project=row.project,
        knowledge_class=KnowledgeClass(row.knowledge_class),
        classification=Classification.of_rank(row.classification),
        trust_tier=TrustTier.of_rank(row.trust_tier),
        allow=None if row.allow is None else tuple(row.allow),
        deny=tuple(row.deny),
    )
