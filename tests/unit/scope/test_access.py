"""Narrowing only takes away, and the predicate admits what the rules say."""

import re
import time
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.errors import ScopeExceedsGrantError
from app.scope.access import (
    AccessScope,
    Predicate,
    RequestedScope,
    SourcePatterns,
    narrow,
    whole_grant,
)
from app.scope.grant import Grant
from app.scope.label import Label, matches_pattern
from app.scope.vocabulary import EVERY_CLASS, Classification, KnowledgeClass, TrustTier

_Name = TypeVar("_Name", bound=str)

GRANT = Grant(
    tenant="acme",
    subject="ana",
    agent="planner",
    projects=("billing", "booking"),
    groups=("eng", "ops"),
    classes=(KnowledgeClass.CODE, KnowledgeClass.DOCUMENTS),
    max_classification=Classification.CONFIDENTIAL,
    max_trust_tier=TrustTier.USER,
    permissions=frozenset(),
)
EVERYWHERE = replace(GRANT, projects=("*",), classes=EVERY_CLASS)
LABEL = Label(
    "booking",
    KnowledgeClass.DOCUMENTS,
    Classification.INTERNAL,
    TrustTier.TRUSTED_KNOWLEDGE,
)


def predicate(grant: Grant = GRANT, requested: RequestedScope | None = None) -> Predicate:
    return narrow(grant, requested or RequestedScope()).predicate


def exceeding(grant: Grant, requested: RequestedScope) -> tuple[str, ...]:
    with pytest.raises(ScopeExceedsGrantError) as caught:
        narrow(grant, requested)
    assert caught.value.code == "scope-exceeds-grant"
    return caught.value.pointers


def test_a_request_that_names_nothing_keeps_the_whole_grant_and_no_more() -> None:
    scope = whole_grant(GRANT)
    assert scope == AccessScope(
        subject="ana",
        agent="planner",
        groups=("eng", "ops"),
        predicate=Predicate(
            tenant="acme",
            projects=("billing", "booking"),
            allow_principals=("group:eng", "group:ops", "user:ana"),
            deny_principals=("group:eng", "group:ops", "user:ana"),
            classes=(KnowledgeClass.CODE, KnowledgeClass.DOCUMENTS),
            max_classification=Classification.CONFIDENTIAL,
            min_trust_tier=None,
            sources=SourcePatterns(None, ()),
        ),
    )
    assert scope.tenant == "acme"


def test_each_field_narrows_and_leaves_the_others_alone() -> None:
    whole = predicate()
    narrowed: dict[str, tuple[RequestedScope, dict[str, Any]]] = {
        "projects": (RequestedScope(projects=("booking",)), {"projects": ("booking",)}),
        "groups": (
            RequestedScope(groups=("ops",)),
            {"allow_principals": ("group:ops", "user:ana")},
        ),
        "classes": (
            RequestedScope(classes=(KnowledgeClass.CODE,)),
            {"classes": (KnowledgeClass.CODE,)},
        ),
        "maxClassification": (
            RequestedScope(max_classification=Classification.PUBLIC),
            {"max_classification": Classification.PUBLIC},
        ),
        "minTrustTier": (
            RequestedScope(min_trust_tier=TrustTier.SKILL),
            {"min_trust_tier": TrustTier.SKILL},
        ),
        "sources.allow": (
            RequestedScope(sources=SourcePatterns(allow=("b*", "a*"))),
            {"sources": SourcePatterns(("a*", "b*"), ())},
        ),
        "sources.deny": (
            RequestedScope(sources=SourcePatterns(deny=("z", "b*"))),
            {"sources": SourcePatterns(None, ("b*", "z"))},
        ),
    }
    for name, (requested, changes) in narrowed.items():
        changed = {member: changes.get(member, getattr(whole, member)) for member in _MEMBERS}
        assert predicate(GRANT, requested) == Predicate(**changed), name


_MEMBERS = tuple(Predicate.__dataclass_fields__)


def test_every_member_that_exceeds_the_grant_is_named_at_once() -> None:
    requested = RequestedScope(
        projects=("booking", "secret", "*"),
        groups=("boss", "eng"),
        classes=(KnowledgeClass.CODE, KnowledgeClass.POLICY),
        max_classification=Classification.RESTRICTED,
    )
    assert exceeding(GRANT, requested) == (
        "/scope/projects/1",
        "/scope/projects/2",
        "/scope/groups/0",
        "/scope/classes/1",
        "/scope/maxClassification",
    )


@pytest.mark.parametrize("name", ["booking", "secret"])
def test_a_grant_of_nothing_is_exceeded_by_any_name(name: str) -> None:
    nothing = replace(GRANT, projects=(), groups=(), classes=())
    assert exceeding(nothing, RequestedScope(projects=(name,))) == ("/scope/projects/0",)
    assert exceeding(nothing, RequestedScope(groups=(name,))) == ("/scope/groups/0",)
    assert exceeding(nothing, RequestedScope(classes=(KnowledgeClass.CODE,))) == (
        "/scope/classes/0",
    )


@pytest.mark.parametrize(
    "requested",
    [
        RequestedScope(projects=()),
        RequestedScope(classes=()),
        RequestedScope(sources=SourcePatterns(allow=())),
    ],
)
def test_an_empty_list_admits_nothing(requested: RequestedScope) -> None:
    for grant in (GRANT, EVERYWHERE):
        assert predicate(grant).admits(LABEL, "a.md")
        assert not predicate(grant, requested).admits(LABEL, "a.md")


@pytest.mark.parametrize("member", ["projects", "classes"])
def test_an_empty_grant_admits_nothing(member: str) -> None:
    nothing = Grant(**{**{name: getattr(GRANT, name) for name in _GRANT_MEMBERS}, member: ()})
    assert not predicate(nothing).admits(LABEL, "a.md")


_GRANT_MEMBERS = tuple(Grant.__dataclass_fields__)


def test_narrowing_the_groups_never_lifts_a_denial() -> None:
    denied = replace(LABEL, deny=("group:ops",))
    for groups in (None, (), ("eng",), ("ops",)):
        assert not predicate(GRANT, RequestedScope(groups=groups)).admits_label(denied)


def test_narrowing_the_groups_takes_back_what_they_allowed() -> None:
    only_ops = replace(LABEL, allow=("group:ops",))
    assert predicate(GRANT).admits_label(only_ops)
    assert not predicate(GRANT, RequestedScope(groups=("eng",))).admits_label(only_ops)
    assert not predicate(GRANT, RequestedScope(groups=())).admits_label(only_ops)


def test_the_subject_stays_itself_whatever_groups_it_leaves_out() -> None:
    scope = narrow(GRANT, RequestedScope(groups=()))
    assert scope.predicate.admits_label(replace(LABEL, allow=("user:ana",)))
    assert not scope.predicate.admits_label(replace(LABEL, deny=("user:ana",)))
    assert scope.groups == ()


def test_deny_wins_over_allow_and_an_empty_allow_list_allows_nobody() -> None:
    assert not predicate().admits_label(replace(LABEL, allow=("user:ana",), deny=("group:eng",)))
    assert not predicate().admits_label(replace(LABEL, allow=()))
    assert predicate().admits_label(replace(LABEL, allow=None))


def test_a_group_is_not_taken_for_a_user_of_its_name() -> None:
    named_alike = replace(GRANT, subject="eng", groups=("ana",))
    assert not predicate(named_alike).admits_label(replace(LABEL, allow=("user:ana", "group:eng")))


def test_star_means_every_project_and_names_narrow_it() -> None:
    assert predicate(EVERYWHERE).admits_label(replace(LABEL, project="anything"))
    named = predicate(EVERYWHERE, RequestedScope(projects=("booking",)))
    assert named.admits_label(LABEL)
    assert not named.admits_label(replace(LABEL, project="billing"))
    assert predicate(EVERYWHERE, RequestedScope(projects=("*",))) == predicate(EVERYWHERE)


def test_star_beside_a_name_never_means_every_project() -> None:
    mixed = predicate(EVERYWHERE, RequestedScope(projects=("*", "booking")))
    assert mixed.admits_label(LABEL)
    assert not mixed.admits_label(replace(LABEL, project="billing"))


def test_star_exceeds_a_grant_of_names() -> None:
    assert exceeding(GRANT, RequestedScope(projects=("*",))) == ("/scope/projects/0",)


def test_a_star_in_other_lists_is_a_name_like_any_other() -> None:
    assert exceeding(GRANT, RequestedScope(groups=("*",))) == ("/scope/groups/0",)
    assert not predicate().admits_label(replace(LABEL, allow=("*", "user:*", "group:*")))


@pytest.mark.parametrize(
    ("ceiling", "floor"), list(product(Classification, [None, *TrustTier])), ids=str
)
def test_ceiling_and_floor_admit_up_to_themselves(
    ceiling: Classification, floor: TrustTier | None
) -> None:
    top = replace(EVERYWHERE, max_classification=Classification.RESTRICTED)
    asked = predicate(top, RequestedScope(max_classification=ceiling, min_trust_tier=floor))
    for level, tier in product(Classification, TrustTier):
        label = replace(LABEL, classification=level, trust_tier=tier)
        below = list(Classification).index(level) <= list(Classification).index(ceiling)
        above = floor is None or list(TrustTier).index(tier) <= list(TrustTier).index(floor)
        assert asked.admits_label(label) == (below and above)


def some(names: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(names), unique=True, max_size=len(names)).map(tuple)


PATTERNS = ("*", "a*", "*.md", "drafts/*", "a.md", "%", "_.md")
requested_scopes = st.builds(
    RequestedScope,
    projects=st.none() | some(GRANT.projects),
    groups=st.none() | some(GRANT.groups),
    classes=st.none() | some(GRANT.classes),
    max_classification=st.none()
    | st.sampled_from(
        [Classification.PUBLIC, Classification.INTERNAL, Classification.CONFIDENTIAL]
    ),
    min_trust_tier=st.none() | st.sampled_from(TrustTier),
    sources=st.builds(SourcePatterns, st.none() | some(PATTERNS), some(PATTERNS)),
)
PRINCIPALS = ("group:eng", "group:ops", "group:other", "user:ana", "user:bob")
labels = st.builds(
    Label,
    project=st.sampled_from(["billing", "booking", "secret"]),
    knowledge_class=st.sampled_from(
        [KnowledgeClass.CODE, KnowledgeClass.DOCUMENTS, KnowledgeClass.MEMORY]
    ),
    classification=st.sampled_from(Classification),
    trust_tier=st.sampled_from(TrustTier),
    allow=st.none() | some(PRINCIPALS),
    deny=some(PRINCIPALS),
)


@examples(max_examples=60)
@given(requested=requested_scopes, label=labels)
def test_what_a_narrowing_admits_the_whole_grant_admits(
    requested: RequestedScope, label: Label
) -> None:
    for source_id in ("a.md", "drafts/a", "%"):
        if predicate(GRANT, requested).admits(label, source_id):
            assert predicate(GRANT).admits(label, source_id)


@examples(max_examples=40)
@given(requested=requested_scopes, data=st.data())
def test_the_order_and_repetition_of_names_change_nothing(
    requested: RequestedScope, data: st.DataObject
) -> None:
    def stirred(names: tuple[_Name, ...] | None) -> tuple[_Name, ...] | None:
        return None if names is None else tuple(data.draw(st.permutations(names + names[:1])))

    again = replace(
        requested,
        projects=stirred(requested.projects),
        groups=stirred(requested.groups),
        classes=stirred(requested.classes),
        sources=SourcePatterns(
            stirred(requested.sources.allow), stirred(requested.sources.deny) or ()
        ),
    )
    first, second = narrow(GRANT, requested), narrow(GRANT, again)
    assert first == second
    assert first.predicate.digest == second.predicate.digest
    assert first.to_contract() == second.to_contract()


def test_arrays_are_sorted_in_code_point_order() -> None:
    names = ("Ö", "a", "Z", "😀", "ﬀ", "z")
    scope = narrow(
        replace(GRANT, projects=names, groups=names),
        RequestedScope(sources=SourcePatterns(names, names)),
    )
    ordered = ["Z", "a", "z", "Ö", "ﬀ", "😀"]
    contract = scope.to_contract()
    assert contract["projects"] == contract["groups"] == ordered
    assert contract["sources"] == {"allow": ordered, "deny": ordered}


def test_the_digest_tells_every_member_apart() -> None:
    base = predicate()
    variants = [
        base,
        replace(base, tenant="other"),
        replace(base, projects=("booking",)),
        replace(base, projects=()),
        replace(base, allow_principals=("user:ana",)),
        replace(base, deny_principals=("user:ana",)),
        replace(base, classes=()),
        replace(base, max_classification=Classification.PUBLIC),
        replace(base, min_trust_tier=TrustTier.UNTRUSTED_EXTERNAL),
        replace(base, sources=SourcePatterns((), ())),
        replace(base, sources=SourcePatterns(("a",), ())),
        replace(base, sources=SourcePatterns(None, ("a",))),
    ]
    assert len({one.digest for one in variants}) == len(variants)


def test_the_digest_of_a_predicate_stays_the_same_for_ever() -> None:
    assert predicate(GRANT, RequestedScope(sources=SourcePatterns(("a*",), ("b",)))).digest == (
        "sha256:0be830c06a3f89430d660d499d801b6c4a4b56e59d5a8d280da639c8135d3083"
    )


def test_the_contract_leaves_out_what_is_absent() -> None:
    bare = whole_grant(replace(GRANT, agent=None)).to_contract()
    assert not {"agentId", "minTrustTier", "sources"} & bare.keys()
    only_deny = narrow(GRANT, RequestedScope(sources=SourcePatterns(deny=("x",)))).to_contract()
    assert only_deny["sources"] == {"deny": ["x"]}
    nothing = narrow(GRANT, RequestedScope(sources=SourcePatterns(allow=()))).to_contract()
    assert nothing["sources"] == {"allow": []}


def matches_by_regex(text: str, pattern: str) -> bool:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, text, re.DOTALL) is not None


@given(
    text=st.text("ab", max_size=8) | st.text(st.sampled_from("ab%_\\\n.é"), max_size=12),
    pattern=st.text("ab*", max_size=6) | st.text(st.sampled_from("ab%_\\\n.é**"), max_size=8),
)
def test_patterns_match_as_a_regular_expression_does(text: str, pattern: str) -> None:
    assert matches_pattern(text, pattern) == matches_by_regex(text, pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("%", "a", False),
        ("%", "%", True),
        ("_", "a", False),
        ("_.md", "_.md", True),
        ("\\", "\\", True),
        ("\\*", "\\anything", True),
        ("\\*", "*", False),
        ("?", "a", False),
        ("[a]", "a", False),
        ("a*", "a\nb", True),
        ("*", "", True),
        ("**", "\n", True),
        ("", "", True),
        ("", "a", False),
        ("a*a", "a", False),
        ("ab*ba", "aba", False),
        ("*ab*b", "ab", False),
        ("a*ab*", "ab", False),
        ("*ab*b", "abb", True),
        ("A", "a", False),
        ("café", "cafe\u0301", False),
    ],
)
def test_only_the_star_is_special(pattern: str, text: str, matches: bool) -> None:
    assert matches_pattern(text, pattern) is matches


def test_hostile_patterns_take_linear_time() -> None:
    text = "a" * 1024
    hostile = ("*a" * 400 + "b", "a*" * 400 + "b", "*" * 1024 + "b", "*aa" * 300 + "ab*")
    started = time.process_time()
    for _ in range(20):
        assert not any(matches_pattern(text, pattern) for pattern in hostile)
    assert matches_pattern(text, "*a" * 400)
    assert matches_pattern(text, "a*" * 400)
    assert time.process_time() - started < 1


def test_deny_patterns_win_over_allow_patterns() -> None:
    patterns = SourcePatterns(allow=("docs/*",), deny=("*/secret.md",))
    assert patterns.admit("docs/a.md")
    assert not patterns.admit("docs/secret.md")
    assert not patterns.admit("code/a.py")
    assert not patterns.is_open
    assert SourcePatterns().is_open
    assert not SourcePatterns(allow=()).is_open
