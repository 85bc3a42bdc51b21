"""Verification keys, read from JSON Web Key Sets (RFC 7517) or made from a secret.

Guarantees: a key is used only for the algorithms that its type, curve, `use`, `key_ops`
and `alg` allow; secrets, private keys, RSA keys under 2048 bits and RSA keys of the ROCA
family are never taken from a key set, so it cannot turn a public key into an HMAC secret.

Not handled: X.509 chains (`x5c`), which are ignored.
"""

import json
from dataclasses import dataclass
from typing import NoReturn

import structlog
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, OctKey
from joserfc.util import base64_to_int

from app.errors import ConfigurationError

MIN_RSA_BITS = 2048

_PUBLIC_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_SECRET_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_ALGORITHMS = {
    ("RSA", None): frozenset({"RS256"}),
    ("EC", "P-256"): frozenset({"ES256"}),
    # RFC 9864 renames EdDSA with this curve to Ed25519; both are in use.
    ("OKP", "Ed25519"): frozenset({"EdDSA", "Ed25519"}),
}
_ROCA_PRIMES = (11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157)
_ROCA_RESIDUES = {prime: {pow(65537, i, prime) for i in range(prime)} for prime in _ROCA_PRIMES}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class VerificationKey:
    """A key and the algorithms it may verify; `any_kid`: tokens may name it as they like."""

    kid: str | None
    algorithms: frozenset[str]
    key: Key
    any_kid: bool = False


class UnusableKeyError(ConfigurationError):
    """One entry of a key set that is left out; the others are used."""


def hs256_key(secret: bytes) -> VerificationKey:
    """The key of an HS256 secret of at least 32 bytes (RFC 7518, section 3.2)."""
    if len(secret) < 32:
        raise ConfigurationError("An HS256 secret must have at least 32 bytes.")
    try:
        key = OctKey.import_key(secret)
    except ValueError as error:
        raise ConfigurationError("An HS256 secret must not be a public key.") from error
    return VerificationKey(kid=None, algorithms=frozenset({"HS256"}), key=key, any_kid=True)


def json_object(document: bytes) -> dict[str, object]:
    """Parse a JSON object in UTF-8; duplicate names, NaN and Infinity raise ValueError."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError("duplicate name")
        return members

    def refuse(_: str) -> NoReturn:
        raise ValueError("not a number of JSON")

    try:
        value = json.loads(document.decode(), object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one error for all that is not acceptable
    return value


def parse_jwks(document: bytes) -> tuple[VerificationKey, ...]:
    """The usable keys of a key set, in its order; keys that are not usable are logged.

    Raises ConfigurationError when the document is not a key set at all.
    """
    try:
        entries = json_object(document).get("keys")
    except ValueError as error:
        raise ConfigurationError("The key set is not a JSON object in UTF-8.") from error
    if not isinstance(entries, list):
        raise ConfigurationError('The key set has no array "keys".')
    keys = []
    for position, entry in enumerate(entries):
        try:
            keys.append(_verification_key(entry))
        except UnusableKeyError as error:
            _log.info("jwks_key_ignored", position=position, reason=error.detail)
    return tuple(keys)


def _verification_key(entry: object) -> VerificationKey:
    if not isinstance(entry, dict):
        raise UnusableKeyError("not an object")
    key_type, curve, kid = entry.get("kty"), entry.get("crv"), entry.get("kid")
    if not isinstance(key_type, str) or key_type not in _PUBLIC_MEMBERS:
        raise UnusableKeyError("kty is not RSA, EC or OKP")
    if _SECRET_MEMBERS & entry.keys():
        raise UnusableKeyError("holds private members")
    if not isinstance(kid, str | None):
        raise UnusableKeyError("kid is not a string")
    named_curve = curve if isinstance(curve, str) and key_type != "RSA" else None
    algorithms = _ALGORITHMS.get((key_type, named_curve))
    if algorithms is None:
        raise UnusableKeyError("crv is not P-256 or Ed25519")
    _check_purpose(entry, algorithms)
    try:
        members = {name: entry[name] for name in _PUBLIC_MEMBERS[key_type]}
        if key_type == "RSA":
            _check_modulus(base64_to_int(members["n"]))
        key = JWKRegistry.import_key({"kty": key_type, **members})
    except (JoseError, KeyError, TypeError, ValueError) as error:
        raise UnusableKeyError("its members do not make a key") from error
    return VerificationKey(kid=kid, algorithms=algorithms, key=key)


def _check_purpose(entry: dict[str, object], algorithms: frozenset[str]) -> None:
    if entry.get("use", "sig") != "sig":
        raise UnusableKeyError("use is not sig")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKeyError("key_ops has no verify")
    if "alg" in entry and entry["alg"] not in tuple(algorithms):
        raise UnusableKeyError("alg does not fit the key or is not supported")


def _check_modulus(modulus: int) -> None:
    """Refuse short moduli and those of CVE-2017-15361 (Nemec et al., ROCA, CCS 2017)."""
    if modulus.bit_length() < MIN_RSA_BITS:
        raise UnusableKeyError(f"RSA with less than {MIN_RSA_BITS} bits")
    if all(modulus % prime in residues for prime, residues in _ROCA_RESIDUES.items()):
        raise UnusableKeyError("RSA key of the ROCA family")
