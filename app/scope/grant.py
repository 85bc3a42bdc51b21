"""What a verified token allows. A grant is made in one place and never widened."""

from dataclasses import dataclass

from app.scope.vocabulary import (
    ALL_PROJECTS,
    Classification,
    KnowledgeClass,
    Permission,
    TrustTier,
)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one caller.

    `projects` is sorted, without duplicates; `("*",)` means every project of the tenant
    and an empty tuple means none. `max_trust_tier` is the highest tier that the caller
    may assign to what it writes.
    """

    tenant: str
    subject: str
    agent: str | None
    projects: tuple[str, ...]
    groups: tuple[str, ...]
    classes: tuple[KnowledgeClass, ...]
    max_classification: Classification
    max_trust_tier: TrustTier
    permissions: frozenset[Permission]

    def allows(self, permission: Permission) -> bool:
        return permission in self.permissions

    def covers_project(self, project: str) -> bool:
        return self.projects == (ALL_PROJECTS,) or project in self.projects

    @property
    def principals(self) -> tuple[str, ...]:
        """The names under which access lists know this caller, sorted in code-point order."""
        return tuple(sorted({f"user:{self.subject}", *(f"group:{name}" for name in self.groups)}))
