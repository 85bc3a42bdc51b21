"""Claims become a grant: exactly what they say, the least right where they say nothing."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import AuthenticationError
from app.scope.claims import MAX_NAMES, ClaimNames, grant_from_claims
from app.scope.grant import Grant
from app.scope.vocabulary import (
    EVERY_CLASS,
    EVERY_PERMISSION,
    Classification,
    KnowledgeClass,
    Permission,
    TrustTier,
)

LEAST: Mapping[str, object] = {"sub": "ana", "tenant_id": "acme"}
ARRAYS = ("projects", "groups", "classes")
WORDS = ("max_classification", "max_trust_tier")
SECRET = "s3cret-value"


def grant(**claims: object) -> Grant:
    return grant_from_claims({**LEAST, **claims}, ClaimNames())


def refusal(claims: Mapping[str, object], names: ClaimNames | None = None) -> str:
    with pytest.raises(AuthenticationError) as caught:
        grant_from_claims(claims, names or ClaimNames())
    assert caught.value.code == "authentication-failed"
    return caught.value.detail


def test_claims_that_say_nothing_give_the_least_right() -> None:
    assert grant() == Grant(
        tenant="acme",
        subject="ana",
        agent=None,
        projects=(),
        groups=(),
        classes=EVERY_CLASS,
        max_classification=Classification.PUBLIC,
        max_trust_tier=TrustTier.USER,
        permissions=frozenset(),
    )


def test_every_claim_finds_its_place_in_the_grant() -> None:
    assert grant(
        projects=["shop", "booking", "shop"],
        groups=["ops", "eng", "ops"],
        classes=["task", "code", "task"],
        max_classification="restricted",
        max_trust_tier="system-policy",
        act={"sub": "agent-7", "act": {"sub": "earlier"}},
        scope="snapshots:assemble audit:read",
        unknown={"claims": ["are", "ignored"]},
    ) == Grant(
        tenant="acme",
        subject="ana",
        agent="agent-7",
        projects=("booking", "shop"),
        groups=("eng", "ops"),
        classes=(KnowledgeClass.CODE, KnowledgeClass.TASK),
        max_classification=Classification.RESTRICTED,
        max_trust_tier=TrustTier.SYSTEM_POLICY,
        permissions=frozenset({Permission.SNAPSHOTS_ASSEMBLE, Permission.AUDIT_READ}),
    )


def test_claims_are_read_under_their_configured_names_and_no_other() -> None:
    names = ClaimNames(tenant_id="https://example.com/tenant", groups="roles", act="actor")
    claims = {
        "sub": "ana",
        "https://example.com/tenant": "acme",
        "tenant_id": "other",
        "roles": ["eng"],
        "groups": ["root"],
        "actor": {"sub": "agent"},
        "act": {"sub": "other"},
    }
    read = grant_from_claims(claims, names)
    assert (read.tenant, read.groups, read.agent) == ("acme", ("eng",), "agent")


@pytest.mark.parametrize("claim", ["projects", "groups", "classes"])
def test_an_empty_array_is_nothing(claim: str) -> None:
    assert getattr(grant(**{claim: []}), claim) == ()


def test_a_star_alone_is_every_project() -> None:
    every = grant(projects=["*"])
    assert every.projects == ("*",)
    assert every.covers_project("anything")


def test_a_star_among_other_projects_is_refused() -> None:
    assert '"projects"' in refusal({**LEAST, "projects": ["booking", "*"]})


def test_names_are_sorted_by_code_point() -> None:
    assert grant(groups=["\U0001f600", "é", "Z", "a", "\ufb01"]).groups == (
        "Z",
        "a",
        "é",
        "\ufb01",
        "\U0001f600",
    )


@pytest.mark.parametrize("claim", ["sub", "tenant_id"])
@pytest.mark.parametrize("value", ["", None, 7, True, ["acme"], {"sub": "x"}, "a\0b", "\ud83d"])
def test_an_identity_that_is_not_a_text_is_refused(claim: str, value: object) -> None:
    assert f'"{claim}"' in refusal({**LEAST, claim: value})


@pytest.mark.parametrize("claim", ["sub", "tenant_id"])
def test_an_identity_that_is_missing_is_refused(claim: str) -> None:
    assert f'"{claim}"' in refusal({name: v for name, v in LEAST.items() if name != claim})


@pytest.mark.parametrize(("claim", "limit"), [("tenant_id", 128), ("sub", 256)])
def test_an_identity_may_be_as_long_as_its_limit_and_no_longer(claim: str, limit: int) -> None:
    grant(**{claim: "é" * limit})
    assert str(limit) in refusal({**LEAST, claim: "é" * (limit + 1)})


@pytest.mark.parametrize("claim", ARRAYS)
@pytest.mark.parametrize(
    "value",
    [
        None,
        SECRET,
        "",
        7,
        True,
        {"0": "x"},
        ["x", 7],
        [None],
        [["x"]],
        [""],
        ["a\0"],
        ["\udc00"],
        ["x" * 129],
        [f"name-{number}" for number in range(MAX_NAMES + 1)],
    ],
)
def test_an_array_claim_of_a_wrong_type_is_refused(claim: str, value: object) -> None:
    detail = refusal({**LEAST, claim: value})
    assert f'"{claim}"' in detail
    assert SECRET not in detail


def test_as_many_groups_as_the_limit_are_taken() -> None:
    names = [f"group-{number:04}" for number in range(MAX_NAMES)]
    assert grant(groups=names).groups == tuple(names)


@pytest.mark.parametrize("claim", WORDS)
@pytest.mark.parametrize("value", [None, "", SECRET, "Public", "user ", 0, True, ["user"], {}])
def test_a_ceiling_that_is_no_word_of_its_vocabulary_is_refused(claim: str, value: object) -> None:
    detail = refusal({**LEAST, claim: value})
    assert f'"{claim}"' in detail
    assert SECRET not in detail


def test_an_unknown_class_is_refused_without_being_repeated() -> None:
    detail = refusal({**LEAST, "classes": ["code", SECRET]})
    assert '"classes"' in detail
    assert SECRET not in detail


@pytest.mark.parametrize("value", [None, "agent", ["agent"], {}, {"sub": ""}, {"sub": 7}])
def test_an_actor_without_a_subject_is_refused(value: object) -> None:
    assert '"act' in refusal({**LEAST, "act": value})


@pytest.mark.parametrize("value", [None, ["snapshots:read"], 7, {}, True])
def test_a_scope_that_is_no_string_is_refused(value: object) -> None:
    assert '"scope"' in refusal({**LEAST, "scope": value})


@pytest.mark.parametrize(
    ("scope", "permissions"),
    [
        ("", set()),
        ("openid profile", set()),
        (" snapshots:read  openid ", {Permission.SNAPSHOTS_READ}),
        ("SNAPSHOTS:READ snapshots:read2 snapshots:* *", set()),
        ("snapshots:read\tindex:write", set()),
        (" ".join(Permission), EVERY_PERMISSION),
    ],
)
def test_only_exact_permission_words_count(scope: str, permissions: set[Permission]) -> None:
    assert grant(scope=scope).permissions == permissions


# Surrogates and NUL among the letters, and the words that the claims know.
texts = st.text(st.sampled_from("aZé*:/ \0\ud800\U0001f600"), max_size=140) | st.sampled_from(
    [*Classification, *TrustTier, *KnowledgeClass, *Permission]
).map(str)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.fixed_dictionaries({}, optional={"sub": inner}),
    max_leaves=6,
)
CLAIMS = (*LEAST, *ARRAYS, *WORDS, "act", "scope")


@given(st.dictionaries(st.sampled_from(CLAIMS), json_values, max_size=2))
def test_any_claims_give_a_well_formed_grant_or_an_error_that_names_a_claim(
    claims: dict[str, object],
) -> None:
    try:
        read = grant_from_claims({**LEAST, **claims}, ClaimNames())
    except AuthenticationError as error:
        assert any(error.detail.startswith(f'The claim "{name}') for name in CLAIMS)  # noqa: PT017
        return
    assert 0 < len(read.tenant) <= 128
    assert 0 < len(read.subject) <= 256
    for names in (read.projects, read.groups, read.classes):
        assert list(names) == sorted(set(names))
        "".join(names).encode()
    assert set(read.projects) == set(claims.get("projects", []))  # type: ignore[call-overload]
    assert set(read.groups) == set(claims.get("groups", []))  # type: ignore[call-overload]
    assert set(read.classes) == set(claims.get("classes", EVERY_CLASS))  # type: ignore[call-overload]
