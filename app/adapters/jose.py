"""Verifies bearer tokens: signed JWTs (RFC 7519) in compact form, on joserfc.

Guarantees (RFC 8725): the algorithm is one that the issuer's configuration lists and
that fits the key; a key set verifies RS256, ES256 and EdDSA (Ed25519) only and a secret
HS256 only, so neither `none` nor a public key used as a secret passes. Keys come from
the configuration, never from the token (`jwk`, `jku`, `x5c` are ignored). `iss`, `aud`
and `exp` are required and checked, `nbf` and `iat` where they stand. Claims are returned
only after the signature. Every refusal is an AuthenticationError that repeats nothing of
the token. While the keys of a known issuer could not be fetched yet, its tokens are not
refused: that is an UnavailableError.

Not handled: encrypted tokens, revocation before `exp`, and `crit` or `b64` headers, with
which a token is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import httpx
from joserfc import jws
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError, MissingClaimError
from joserfc.jws import CompactSignature, JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from app.adapters.jose_key_sources import (
    FixedKeys,
    JwksFile,
    JwksUrl,
    JwksUrlPolicy,
    KeySource,
    check_jwks_url,
)
from app.adapters.jose_keys import VerificationKey, hs256_key, json_object
from app.errors import AuthenticationError, ConfigurationError

MAX_TOKEN_BYTES = 16 * 1024
KEY_SET_ALGORITHMS = ("RS256", "ES256", "EdDSA", "Ed25519")
SECRET_ALGORITHMS = ("HS256",)

# Other types (ID tokens of some issuers, logout and DPoP proofs) are not for this service.
_TOKEN_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt", "jose"})
_CHECKED_CLAIMS = ("iss", "aud", "exp", "nbf", "iat")


@dataclass(frozen=True, slots=True)
class IssuerConfig:
    """One issuer of tokens, the audiences that mean this service, and one source of keys.

    Without `algorithms` all that fit the source are allowed. Raises ConfigurationError.
    """

    issuer: str
    audiences: tuple[str, ...]
    jwks_file: Path | None = None
    jwks_url: str | None = None
    hs256_secret: bytes | None = field(default=None, repr=False)
    algorithms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.issuer or not self.audiences or not all(self.audiences):
            raise ConfigurationError("An issuer of tokens needs a name and audiences.")
        sources = (self.jwks_file, self.jwks_url, self.hs256_secret)
        if sum(source is not None for source in sources) != 1:
            raise ConfigurationError(
                f"The issuer {self.issuer} needs exactly one of a key set file, "
                "a key set URL and an HS256 secret."
            )
        if self.jwks_url is not None:
            check_jwks_url(self.jwks_url)
        supported = KEY_SET_ALGORITHMS if self.hs256_secret is None else SECRET_ALGORITHMS
        if not set(self.algorithms) <= set(supported):
            raise ConfigurationError(
                f"The issuer {self.issuer} may use {', '.join(supported)} with its source of keys."
            )
        # A default that depends on another field of a frozen dataclass.
        object.__setattr__(self, "algorithms", self.algorithms or supported)


class _Registry(JWSRegistry):
    max_header_length = 8 * 1024
    max_payload_length = MAX_TOKEN_BYTES
    max_signature_length = 2 * 1024


_REGISTRY = _Registry(
    algorithms=("RS256", "ES256", "Ed25519", "HS256"),
    # RFC 7515, section 4: parameters that are not understood are ignored.
    strict_check_header=False,
)


def extract_signature(token: str) -> CompactSignature:
    """Take a token apart without trusting it; AuthenticationError if it is not one."""
    if len(token) > MAX_TOKEN_BYTES:
        raise AuthenticationError(f"The token is larger than {MAX_TOKEN_BYTES} bytes.")
    try:
        signature = jws.extract_compact(token.encode("ascii"), registry=_REGISTRY)
    # A header that is no object or is nested deeply fails inside of joserfc with the last two.
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise AuthenticationError("The token is not a signed JWT in compact form.") from error
    if not isinstance(signature.protected, dict):
        raise AuthenticationError("The token's header is not an object.")
    return signature


def matching_keys(
    signature: CompactSignature, keys: tuple[VerificationKey, ...], algorithms: tuple[str, ...]
) -> tuple[VerificationKey, ...]:
    """The keys that may verify this token by its `alg` and `kid`, if it has one.

    Raises AuthenticationError for a header that is not acceptable whatever the keys.
    """
    header = signature.protected
    if "crit" in header or "b64" in header:
        raise AuthenticationError("The token demands an extension that is not supported.")
    algorithm, kid, token_type = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise AuthenticationError("The token's algorithm is not accepted from its issuer.")
    if not isinstance(kid, str | None):
        raise AuthenticationError("The token's kid is not a string.")
    if not isinstance(token_type, str) or token_type.lower() not in _TOKEN_TYPES:
        raise AuthenticationError("The token is of a type that is not for access.")
    return tuple(
        key
        for key in keys
        if algorithm in key.algorithms and (kid is None or key.any_kid or key.kid == kid)
    )


def verify_signature(
    signature: CompactSignature, keys: tuple[VerificationKey, ...], algorithms: tuple[str, ...]
) -> None:
    """Check the signature with the one key that fits; AuthenticationError otherwise."""
    matching = matching_keys(signature, keys, algorithms)
    if len(matching) != 1:
        raise AuthenticationError("The token does not name one key of its issuer.")
    # joserfc warns about the name EdDSA at each use. Only Ed25519 keys are admitted, with
    # which both names mean the same; the signed bytes are the token's own.
    header = signature.protected
    renamed = {**header, "alg": "Ed25519"} if header["alg"] == "EdDSA" else header
    subject = CompactSignature(renamed, signature.payload)
    subject.segments.update(signature.segments)
    try:
        valid = jws.validate_compact(subject, matching[0].key, registry=_REGISTRY)
    except (JoseError, ValueError) as error:
        raise AuthenticationError("The token's signature cannot be checked.") from error
    if not valid:
        raise AuthenticationError("The token's signature is not valid.")


class TokenVerifier:
    """Verifies the tokens of the configured issuers; of no issuer, it refuses them all.

    `clock` gives seconds since 1970, `monotonic` the time that key caches go by. An HTTP
    client is needed for issuers with a key set URL; it stays the caller's to close.
    """

    def __init__(
        self,
        issuers: tuple[IssuerConfig, ...],
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        client: httpx.AsyncClient | None = None,
        leeway_s: int = 30,
        jwks_url_policy: JwksUrlPolicy | None = None,
    ) -> None:
        self._clock = clock
        self._leeway_s = leeway_s
        self._issuers: dict[str, tuple[IssuerConfig, KeySource]] = {}
        policy = jwks_url_policy or JwksUrlPolicy()
        for config in issuers:
            if config.issuer in self._issuers:
                raise ConfigurationError(f"The issuer {config.issuer} is configured twice.")
            source = _key_source(config, client, monotonic, policy)
            self._issuers[config.issuer] = (config, source)

    async def verify(self, token: str) -> Mapping[str, object]:
        """The claims of a valid token.

        Raises AuthenticationError for every other, and UnavailableError while its issuer's
        keys could not be fetched yet.
        """
        signature = extract_signature(token)
        claims = _claims(signature)
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in self._issuers:
            raise AuthenticationError("The token's issuer is not known here.")
        config, source = self._issuers[issuer]
        # Before any key is asked for: a header that cannot pass costs no request.
        matching_keys(signature, (), config.algorithms)
        keys = await source.current()
        if not matching_keys(signature, keys, config.algorithms):
            keys = await source.refreshed()
        verify_signature(signature, keys, config.algorithms)
        self._check_claims(claims, config)
        return claims

    def _check_claims(self, claims: Mapping[str, object], config: IssuerConfig) -> None:
        registry = JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=self._leeway_s,
            iss={"essential": True, "value": config.issuer},
            aud={"essential": True, "values": list(config.audiences)},
            exp={"essential": True},
        )
        try:
            registry.validate({name: claims[name] for name in _CHECKED_CLAIMS if name in claims})
        except ClaimError as error:
            _refuse_claim(error)

    async def aclose(self) -> None:
        """End requests to key servers that are under way."""
        for _, source in self._issuers.values():
            await source.aclose()


def _key_source(
    config: IssuerConfig,
    client: httpx.AsyncClient | None,
    monotonic: Callable[[], float],
    policy: JwksUrlPolicy,
) -> KeySource:
    if config.hs256_secret is not None:
        return FixedKeys((hs256_key(config.hs256_secret),))
    if config.jwks_file is not None:
        return JwksFile(config.jwks_file)
    if config.jwks_url is None or client is None:
        raise ConfigurationError(f"The issuer {config.issuer} needs an HTTP client for its keys.")
    return JwksUrl(config.jwks_url, client=client, monotonic=monotonic, policy=policy)


def _claims(signature: CompactSignature) -> dict[str, object]:
    try:
        return json_object(signature.payload)
    except ValueError as error:
        raise AuthenticationError("The token's claims are not a JSON object.") from error


def _refuse_claim(error: ClaimError) -> NoReturn:
    if isinstance(error, ExpiredTokenError):
        detail = "The token has expired."
    elif isinstance(error, MissingClaimError):
        detail = f"The token lacks the claims {error.claim.replace(',', ', ')}."
    else:
        detail = {
            "aud": "The token is meant for another audience.",
            "nbf": "The token is not valid yet.",
            "iat": "The token was issued in the future.",
        }.get(error.claim, f'The claim "{error.claim}" is not acceptable.')
    raise AuthenticationError(detail) from error
