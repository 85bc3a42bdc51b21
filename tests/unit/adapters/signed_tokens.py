"""Keys, clocks and tokens for the tests of authentication."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping

from joserfc import jws
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

ISSUER = "https://login.example.com"
AUDIENCE = "ctxsnap"
NOW_S = 1_800_000_000

RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
SECRET = b"0123456789abcdef0123456789abcdef"
KEY_OF_ALGORITHM: Mapping[str, Key] = {"RS256": RSA, "ES256": EC, "EdDSA": ED, "Ed25519": ED}


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def claims(**changes: object) -> dict[str, object]:
    """Claims that are valid at NOW_S, with some changed; None takes a claim away."""
    valid: dict[str, object] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": NOW_S + 300,
        "sub": "ana",
        "tenant_id": "acme",
    }
    return {name: value for name, value in (valid | changes).items() if value is not None}


def signed(
    key: Key, algorithm: str, payload: Mapping[str, object] | bytes, **header: object
) -> str:
    """A signed token; header members may be changed, and None takes one away."""
    members = {"alg": algorithm, "typ": "JWT", "kid": key.kid} | header
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    segments = f"{encoded(json.dumps(_without_none(members)).encode())}.{encoded(body)}"
    # Joserfc warns about the name EdDSA; the signature is that of Ed25519.
    model = jws.JWSRegistry.algorithms["Ed25519" if algorithm == "EdDSA" else algorithm]
    return f"{segments}.{encoded(model.sign(segments.encode(), key))}"


def rs256(**changes: object) -> str:
    return signed(RSA, "RS256", claims(**changes))


def hs256(secret: bytes = SECRET, **changes: object) -> str:
    return signed(OctKey(secret, secret), "HS256", claims(**changes))


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def jwks(*keys: Key | Mapping[str, object]) -> bytes:
    """A key set document of public keys; entries of other kinds are taken as they are."""
    entries = [
        dict(key) if isinstance(key, Mapping) else key.as_dict(private=False) for key in keys
    ]
    return json.dumps({"keys": entries}).encode()


def _without_none(members: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}
