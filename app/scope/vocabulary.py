"""The closed vocabularies of the contract: classes, classifications, tiers, permissions."""

from enum import StrEnum
from functools import cache
from typing import Self


class _Ordered(StrEnum):
    """A vocabulary whose definition order is its rank, counted from 0."""

    rank: int

    def __new__(cls, value: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.rank = len(cls.__members__)
        return member

    @classmethod
    @cache
    def of_rank(cls, rank: int) -> Self:
        # Asked for each label of each candidate, and walking an enumeration is slow.
        return list(cls)[rank]


class KnowledgeClass(StrEnum):
    TASK = "task"
    INSTRUCTIONS = "instructions"
    SKILL = "skill"
    CODE = "code"
    DOCUMENTS = "documents"
    SCHEMA = "schema"
    GRAPH = "graph"
    MEMORY = "memory"
    HISTORY = "history"
    TOOL_RESULT = "tool-result"
    POLICY = "policy"


class Classification(_Ordered):
    """How sensitive a text is, from the least to the most."""

    PUBLIC = "public"
    INTERNAL = "internal"
    CONFIDENTIAL = "confidential"
    RESTRICTED = "restricted"


class TrustTier(_Ordered):
    """How far a text may steer the model, from the highest trust (rank 0) to the lowest."""

    SYSTEM_POLICY = "system-policy"
    AGENT = "agent"
    SKILL = "skill"
    USER = "user"
    TRUSTED_KNOWLEDGE = "trusted-knowledge"
    TOOL_RESULT = "tool-result"
    UNTRUSTED_EXTERNAL = "untrusted-external"


class Permission(StrEnum):
    SNAPSHOTS_ASSEMBLE = "snapshots:assemble"
    SNAPSHOTS_READ = "snapshots:read"
    INDEX_WRITE = "index:write"
    INDEX_READ = "index:read"
    AUDIT_READ = "audit:read"


ALL_PROJECTS = "*"
"""Alone in a list of projects: every project of the tenant."""

EVERY_CLASS: tuple[KnowledgeClass, ...] = tuple(sorted(KnowledgeClass))
EVERY_PERMISSION: frozenset[Permission] = frozenset(Permission)
