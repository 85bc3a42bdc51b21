"""A key set gives keys only for what each key is meant and fit for."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey

from app.adapters.jose_keys import json_object, parse_jwks
from app.errors import ConfigurationError
from tests.unit.adapters.signed_tokens import EC, ED, RSA, SECRET, jwks

Entry = dict[str, object]


def entry(key: object, **changes: object) -> Entry:
    public = json.loads(jwks(key))["keys"][0]  # type: ignore[arg-type]
    return {name: value for name, value in {**public, **changes}.items() if value is not None}


def base64_int(number: int) -> str:
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [(RSA, {"RS256"}), (EC, {"ES256"}), (ED, {"EdDSA", "Ed25519"})],
)
def test_a_key_verifies_the_algorithms_of_its_type_and_curve(
    key: object, algorithms: set[str]
) -> None:
    (parsed,) = parse_jwks(jwks(entry(key)))
    assert parsed.algorithms == algorithms
    assert parsed.kid == entry(key)["kid"]
    assert not parsed.any_kid


@pytest.mark.parametrize(
    "changes",
    [
        {"kid": None},
        {"use": "sig"},
        {"key_ops": ["verify"]},
        {"key_ops": ["sign", "verify"]},
        {"alg": "RS256"},
        {"x5c": ["not a certificate"], "x5t": 7, "unknown": {}},
    ],
)
def test_a_key_for_verifying_is_used(changes: Entry) -> None:
    assert len(parse_jwks(jwks(entry(RSA, **changes)))) == 1


SHORT_RSA = {"kty": "RSA", "kid": "short", "e": "AQAB", "n": base64_int(2**2046 + 2**1023 + 1)}


@pytest.mark.parametrize(
    "unusable",
    [
        entry(RSA, use="enc"),
        entry(RSA, use=["sig"]),
        entry(RSA, use=""),
        entry(RSA, key_ops=["encrypt"]),
        entry(RSA, key_ops=[]),
        entry(RSA, key_ops="verify"),
        entry(RSA, alg="RS512"),
        entry(RSA, alg="HS256"),
        entry(RSA, alg="ES256"),
        entry(RSA, alg=["RS256"]),
        entry(RSA, kid=7),
        entry(RSA, n=None),
        entry(RSA, n=""),
        entry(RSA, n=7),
        entry(RSA, n="+/=="),
        entry(RSA, e="AQ"),
        entry(RSA, e="AAAA"),
        entry(RSA, e="AQAA"),
        SHORT_RSA,
        RSA.as_dict(private=True),
        EC.as_dict(private=True),
        entry(EC, crv="P-384"),
        entry(EC, crv=["P-256"]),
        entry(EC, crv=None),
        entry(EC, y=entry(EC)["x"]),
        entry(EC, x=None),
        entry(EC, kty="RSA"),
        entry(ECKey.generate_key("P-384")),
        entry(ECKey.generate_key("secp256k1")),
        entry(OKPKey.generate_key("X25519")),
        entry(OKPKey.generate_key("Ed448")),
        entry(ED, x="AAAA"),
        OctKey.import_key(SECRET).as_dict(),
        {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA"},
        {"kty": ["RSA"]},
        {"kty": "rsa", "n": "AQ", "e": "AQAB"},
        {},
    ],
)
def test_a_key_that_is_not_for_verifying_is_left_out_and_the_others_are_used(
    unusable: Mapping[str, object],
) -> None:
    usable = entry(ED, kid="usable")
    assert [key.kid for key in parse_jwks(jwks(dict(unusable), usable))] == ["usable"]


def test_an_entry_that_is_no_object_is_left_out() -> None:
    document = json.dumps({"keys": [None, 7, "key", [], entry(EC)]}).encode()
    assert [key.kid for key in parse_jwks(document)] == ["ec"]


def test_an_rsa_key_of_exactly_2048_bits_is_used() -> None:
    assert RSA.public_key.key_size == 2048
    assert len(parse_jwks(jwks(RSA))) == 1


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": null}',
        b"\xff",
        b"<html>",
        b'{"keys":[],"keys":[]}',
    ],
)
def test_a_document_that_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(ConfigurationError):
        parse_jwks(document)


def test_an_empty_key_set_has_no_keys() -> None:
    assert parse_jwks(b'{"keys": []}') == ()


@pytest.mark.parametrize(
    "document", [b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":{"b":1,"b":1}}', b"\xef\xbb\xbf{}", b"1"]
)
def test_json_that_readers_disagree_about_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        json_object(document)
