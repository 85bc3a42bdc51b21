"""What a caller writes carries no label beyond its grant."""

from dataclasses import replace

import pytest

from app.errors import InvalidRequestError, ScopeExceedsGrantError
from app.scope.grant import Grant
from app.scope.label import Label
from app.scope.vocabulary import EVERY_CLASS, Classification, KnowledgeClass, TrustTier
from app.scope.writing import refuse_beyond_grant

GRANT = Grant(
    tenant="acme",
    subject="ana",
    agent=None,
    projects=("booking",),
    groups=(),
    classes=EVERY_CLASS,
    max_classification=Classification.INTERNAL,
    max_trust_tier=TrustTier.USER,
    permissions=frozenset(),
)
LABEL = Label("booking", KnowledgeClass.CODE, Classification.INTERNAL, TrustTier.USER)


def test_labels_within_the_grant_pass() -> None:
    lowest = replace(
        LABEL, classification=Classification.PUBLIC, trust_tier=TrustTier.UNTRUSTED_EXTERNAL
    )
    refuse_beyond_grant(GRANT, (LABEL, lowest), "/items")
    refuse_beyond_grant(GRANT, (), "/items")


@pytest.mark.parametrize(
    ("member", "label"),
    [
        ("project", replace(LABEL, project="billing")),
        ("project", replace(LABEL, project="*")),
        ("classification", replace(LABEL, classification=Classification.CONFIDENTIAL)),
        ("trustTier", replace(LABEL, trust_tier=TrustTier.SKILL)),
    ],
)
def test_each_member_beyond_the_grant_is_named(member: str, label: Label) -> None:
    with pytest.raises(ScopeExceedsGrantError) as caught:
        refuse_beyond_grant(GRANT, (LABEL, label), "/sources")
    assert caught.value.pointers == (f"/sources/1/{member}",)


def test_a_class_that_is_not_granted_is_named() -> None:
    no_code = replace(GRANT, classes=(KnowledgeClass.DOCUMENTS,))
    with pytest.raises(ScopeExceedsGrantError) as caught:
        refuse_beyond_grant(no_code, (LABEL,), "/items")
    assert caught.value.pointers == ("/items/0/class",)


def test_all_that_exceeds_is_named_at_once() -> None:
    beyond = Label("x", KnowledgeClass.CODE, Classification.RESTRICTED, TrustTier.AGENT)
    with pytest.raises(ScopeExceedsGrantError) as caught:
        refuse_beyond_grant(GRANT, (beyond, LABEL, beyond), "/items")
    assert caught.value.pointers == tuple(
        f"/items/{at}/{member}"
        for at in (0, 2)
        for member in ("project", "classification", "trustTier")
    )
    assert all(pointer in caught.value.detail for pointer in caught.value.pointers)


def test_every_project_may_be_written_under_a_star() -> None:
    refuse_beyond_grant(replace(GRANT, projects=("*",)), (replace(LABEL, project="x"),), "/items")


@pytest.mark.parametrize("tier", [tier for tier in TrustTier if tier.rank > 0])
def test_a_policy_goes_with_the_tier_of_policies_alone(tier: TrustTier) -> None:
    mighty = replace(GRANT, max_trust_tier=TrustTier.SYSTEM_POLICY)
    policy = replace(LABEL, knowledge_class=KnowledgeClass.POLICY)
    refuse_beyond_grant(mighty, (replace(policy, trust_tier=TrustTier.SYSTEM_POLICY),), "/items")
    with pytest.raises(InvalidRequestError) as caught:
        refuse_beyond_grant(mighty, (LABEL, replace(policy, trust_tier=tier)), "/items")
    assert caught.value.pointers == ("/items/1/trustTier",)


def test_the_tier_of_policies_is_open_to_other_classes() -> None:
    mighty = replace(GRANT, max_trust_tier=TrustTier.SYSTEM_POLICY)
    refuse_beyond_grant(mighty, (replace(LABEL, trust_tier=TrustTier.SYSTEM_POLICY),), "/items")


def test_a_caller_below_the_tier_of_policies_writes_no_policy() -> None:
    policy = replace(LABEL, knowledge_class=KnowledgeClass.POLICY)
    top = replace(policy, trust_tier=TrustTier.SYSTEM_POLICY)
    with pytest.raises(ScopeExceedsGrantError):
        refuse_beyond_grant(GRANT, (top,), "/items")
    with pytest.raises(InvalidRequestError):
        refuse_beyond_grant(GRANT, (policy,), "/items")
