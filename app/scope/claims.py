"""Turns verified claims into a grant: the one place where rights come into being.

Guarantees: a grant holds only what the claims say. A claim of a wrong type or with an
unknown word is refused, never guessed at, and a missing one gives the least right that
the contract names. Errors name the claim and never repeat its value.

Not handled here: signatures, issuers, audiences and times, which the verifier of tokens
checks first; and claims inside other claims, except the actor's subject (RFC 8693).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from app.errors import AuthenticationError
from app.scope.grant import Grant
from app.scope.vocabulary import (
    ALL_PROJECTS,
    EVERY_CLASS,
    Classification,
    KnowledgeClass,
    Permission,
    TrustTier,
)

MAX_TENANT_CHARACTERS = 128
MAX_SUBJECT_CHARACTERS = 256
MAX_NAME_CHARACTERS = 128
MAX_NAMES = 1_000

_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """The top-level claims that carry the rights; identity providers name them differently.

    A name is taken whole, so `https://example.com/tenant` is one claim and not a path.
    The agent is the member `sub` of the object that `act` names.
    """

    sub: str = "sub"
    tenant_id: str = "tenant_id"
    projects: str = "projects"
    groups: str = "groups"
    max_classification: str = "max_classification"
    max_trust_tier: str = "max_trust_tier"
    classes: str = "classes"
    act: str = "act"
    scope: str = "scope"


def grant_from_claims(claims: Mapping[str, object], names: ClaimNames) -> Grant:
    """The grant that verified claims give; arrays come out sorted and without duplicates.

    Missing projects or groups mean none, missing classes all, a missing classification
    `public` and a missing tier `user`. Raises AuthenticationError naming the first claim
    that is missing or not acceptable.
    """
    return Grant(
        tenant=_text(claims, names.tenant_id, MAX_TENANT_CHARACTERS),
        subject=_text(claims, names.sub, MAX_SUBJECT_CHARACTERS),
        agent=_agent(claims, names.act),
        projects=_projects(claims, names.projects),
        groups=_names(claims, names.groups),
        classes=_classes(claims, names.classes),
        max_classification=_word(
            claims, names.max_classification, Classification, Classification.PUBLIC
        ),
        max_trust_tier=_word(claims, names.max_trust_tier, TrustTier, TrustTier.USER),
        permissions=_permissions(claims, names.scope),
    )


def _refusal(claim: str, expectation: str) -> AuthenticationError:
    return AuthenticationError(f'The claim "{claim}" must be {expectation}.')


def _is_text(value: object, max_characters: int) -> bool:
    # A lone surrogate has no UTF-8 form and PostgreSQL stores no NUL, so neither could
    # be recorded in a snapshot.
    return (
        isinstance(value, str)
        and 0 < len(value) <= max_characters
        and not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)
    )


def _text(claims: Mapping[str, object], claim: str, max_characters: int) -> str:
    value = claims.get(claim)
    if not isinstance(value, str) or not _is_text(value, max_characters):
        raise _refusal(
            claim, f"a string of 1 to {max_characters} characters without NUL and lone surrogates"
        )
    return value


def _agent(claims: Mapping[str, object], claim: str) -> str | None:
    if claim not in claims:
        return None
    actor = claims[claim]
    if not isinstance(actor, dict):
        raise _refusal(claim, "an object with the actor's sub")
    return _text({f"{claim}.sub": actor.get("sub")}, f"{claim}.sub", MAX_SUBJECT_CHARACTERS)


def _names(claims: Mapping[str, object], claim: str) -> tuple[str, ...]:
    values = claims.get(claim, [])
    if (
        not isinstance(values, list)
        or len(values) > MAX_NAMES
        or not all(_is_text(value, MAX_NAME_CHARACTERS) for value in values)
    ):
        raise _refusal(
            claim,
            f"an array of at most {MAX_NAMES} strings of 1 to {MAX_NAME_CHARACTERS} characters "
            "without NUL and lone surrogates",
        )
    return tuple(sorted(set(values)))


def _projects(claims: Mapping[str, object], claim: str) -> tuple[str, ...]:
    projects = _names(claims, claim)
    if ALL_PROJECTS in projects and len(projects) > 1:
        raise _refusal(claim, f'either "{ALL_PROJECTS}" alone or names of projects')
    return projects


def _classes(claims: Mapping[str, object], claim: str) -> tuple[KnowledgeClass, ...]:
    if claim not in claims:
        return EVERY_CLASS
    words = _names(claims, claim)
    unknown = set(words) - set(KnowledgeClass)
    if unknown:
        raise _refusal(claim, f"an array of words among {', '.join(EVERY_CLASS)}")
    return tuple(KnowledgeClass(word) for word in words)


def _word(
    claims: Mapping[str, object], claim: str, vocabulary: type[_Word], default: _Word
) -> _Word:
    value = claims.get(claim, default)
    if not isinstance(value, str) or value not in set(vocabulary):
        raise _refusal(claim, f"one of {', '.join(vocabulary)}")
    return vocabulary(value)


def _permissions(claims: Mapping[str, object], claim: str) -> frozenset[Permission]:
    # Identity providers send an empty scope for "none", and words of other services.
    value = claims.get(claim, "")
    if not isinstance(value, str):
        raise _refusal(claim, "a string of words parted by spaces")
    words = set(value.split(" "))
    return frozenset(permission for permission in Permission if permission in words)
