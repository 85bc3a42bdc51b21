"""What a caller may write: no label of its texts goes beyond its grant."""

from app.errors import InvalidRequestError, ScopeExceedsGrantError
from app.scope.grant import Grant
from app.scope.label import Label
from app.scope.vocabulary import KnowledgeClass, TrustTier


def refuse_other_projects(grant: Grant, projects: tuple[str, ...], pointer: str) -> None:
    """Check the project of what stands at each `<pointer>/<position>`.

    Raises ScopeExceedsGrantError naming every one that the grant does not cover.
    """
    _refuse(
        tuple(
            f"{pointer}/{at}/project"
            for at, project in enumerate(projects)
            if not grant.covers_project(project)
        )
    )


def refuse_beyond_grant(grant: Grant, labels: tuple[Label, ...], pointer: str) -> None:
    """Check the label of each text that stands at `<pointer>/<position>`.

    Raises ScopeExceedsGrantError naming every member that claims more than the grant
    holds, InvalidRequestError for a policy that is not of the tier of policies.
    """
    _refuse(
        tuple(
            f"{pointer}/{at}/{member}"
            for at, label in enumerate(labels)
            for member, beyond in (
                ("project", not grant.covers_project(label.project)),
                ("class", label.knowledge_class not in grant.classes),
                ("classification", label.classification.rank > grant.max_classification.rank),
                ("trustTier", label.trust_tier.rank < grant.max_trust_tier.rank),
            )
            if beyond
        )
    )
    misplaced = tuple(
        f"{pointer}/{at}/trustTier"
        for at, label in enumerate(labels)
        if label.knowledge_class is KnowledgeClass.POLICY
        and label.trust_tier is not TrustTier.SYSTEM_POLICY
    )
    if misplaced:
        raise InvalidRequestError(
            "Class policy goes with trust tier system-policy alone: " + ", ".join(misplaced),
            pointers=misplaced,
        )


def _refuse(exceeding: tuple[str, ...]) -> None:
    if exceeding:
        raise ScopeExceedsGrantError(
            "The request claims more than its token grants: " + ", ".join(exceeding),
            pointers=exceeding,
        )
