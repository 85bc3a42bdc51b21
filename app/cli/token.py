"""`ctxsnap token`: tokens signed with the local development key, for this machine alone.

Guarantees: a token holds only claims that the service takes for what was asked for; with
issuers configured none is made, since the service would refuse it.
"""

import getpass
import os
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from app.adapters.development_key import load_or_create_development_key
from app.config import Settings, read_settings
from app.errors import AuthenticationError, ConfigurationError
from app.scope.claims import ClaimNames, grant_from_claims
from app.scope.vocabulary import (
    ALL_PROJECTS,
    Classification,
    KnowledgeClass,
    Permission,
    TrustTier,
)

DEFAULT_TENANT = "acme"
MAX_LIFETIME_S = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Rights:
    """What a token is to allow; by default everything that its tenant has."""

    tenant: str
    subject: str
    projects: tuple[str, ...] = (ALL_PROJECTS,)
    groups: tuple[str, ...] = ()
    max_classification: Classification = Classification.RESTRICTED
    max_trust_tier: TrustTier = TrustTier.SYSTEM_POLICY
    permissions: tuple[str, ...] = tuple(Permission)
    classes: tuple[str, ...] | None = None
    agent: str | None = None

    def claims(self, names: ClaimNames) -> dict[str, Any]:
        """The claims under the names that the service is configured for.

        Raises ConfigurationError where the service would refuse one.
        """
        claims: dict[str, Any] = {
            names.sub: self.subject,
            names.tenant_id: self.tenant,
            names.projects: list(self.projects),
            names.groups: list(self.groups),
            names.max_classification: self.max_classification.value,
            names.max_trust_tier: self.max_trust_tier.value,
            names.scope: " ".join(self.permissions),
        }
        if self.classes is not None:
            claims[names.classes] = list(self.classes)
        if self.agent is not None:
            claims[names.act] = {"sub": self.agent}
        try:
            grant = grant_from_claims(claims, names)
        except AuthenticationError as error:
            raise ConfigurationError(error.detail) from error
        unknown = sorted(set(self.permissions) - grant.permissions)
        if unknown:
            raise ConfigurationError(
                f"Unknown permissions {', '.join(unknown)}; known are {', '.join(Permission)}."
            )
        return claims


def sign(settings: Settings, rights: Rights, *, now_s: int, expires_in_s: int) -> str:
    """A development token; the key is made where there is none yet."""
    if settings.issuers:
        raise ConfigurationError(
            "Issuers are configured (CTXSNAP_ISSUERS), with which the service refuses the "
            "development key: get a token from one of them."
        )
    claims = rights.claims(ClaimNames(**settings.claim_names))
    key = load_or_create_development_key(settings.data_dir)
    return key.sign({**claims, "iat": now_s, "exp": now_s + expires_in_s})


def operating_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number without a name.
        return f"uid-{os.getuid()}"


def print_token(
    tenant: Annotated[str, typer.Option(help="The tenant.")] = DEFAULT_TENANT,
    subject: Annotated[
        str | None, typer.Option(help="Who asks.", show_default="the user of this session")
    ] = None,
    projects: Annotated[
        str, typer.Option(help="Projects, parted by commas; * alone is every project.")
    ] = ALL_PROJECTS,
    groups: Annotated[str, typer.Option(help="Groups, parted by commas.")] = "",
    max_classification: Annotated[
        Classification, typer.Option(help="The highest classification to read.")
    ] = Classification.INTERNAL,
    max_trust_tier: Annotated[
        TrustTier, typer.Option(help="The highest tier for what the caller writes.")
    ] = TrustTier.USER,
    permissions: Annotated[str, typer.Option(help="Permissions, parted by spaces.")] = " ".join(
        Permission
    ),
    agent: Annotated[str | None, typer.Option(help="The agent that acts for the subject.")] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help=f"Classes, parted by commas, of {', '.join(KnowledgeClass)}.", show_default="all"
        ),
    ] = None,
    expires_in: Annotated[
        int, typer.Option(help="Seconds until it expires.", min=1, max=MAX_LIFETIME_S)
    ] = 3600,
) -> None:
    """Print a token signed with the local development key.

    Nothing else is printed on standard output.

    The key lies in CTXSNAP_DATA_DIR and opens only a service that uses the same folder.
    """
    rights = Rights(
        tenant=tenant,
        subject=subject or operating_user(),
        projects=_listed(projects),
        groups=_listed(groups),
        max_classification=max_classification,
        max_trust_tier=max_trust_tier,
        permissions=tuple(permissions.split()),
        classes=None if classes is None else _listed(classes),
        agent=agent,
    )
    token = sign(read_settings(), rights, now_s=int(time.time()), expires_in_s=expires_in)
    typer.echo(token)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
