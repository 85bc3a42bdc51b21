"""Published signatures and keys, valid and forged, get the answer that they should.

Wycheproof's and RFC 7520's payloads are no claims, so they are answered at the level of
the signature: the same key selection, allow-lists and key sets that tokens go through.
"""

import json
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws

from app.adapters.jose import (
    KEY_SET_ALGORITHMS,
    SECRET_ALGORITHMS,
    extract_signature,
    verify_signature,
)
from app.adapters.jose_keys import VerificationKey, hs256_key, parse_jwks
from app.errors import AuthenticationError, ConfigurationError

VECTORS = Path(__file__).parents[4] / "shared" / "data" / "vectors" / "jose"
pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not VECTORS.exists(), reason="../shared/data is not beside the checkout"),
]

SUPPORTED = {*KEY_SET_ALGORITHMS, *SECRET_ALGORITHMS}
# "?" inside of a segment, which RFC 7515, section 2, does not allow: refused, whatever
# the collection says; it calls the same thing invalid in the vectors 361 to 364 and 371.
CALLED_VALID_AND_REFUSED = {372, 373}
# Their padding got lost in the collection: byte for byte the valid token of vector 357.
CALLED_INVALID_AND_VALID = {367, 370}


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))


def keys_of(group: dict[str, Any]) -> tuple[VerificationKey, ...]:
    """The keys as a service could be given them: one secret, or a set of public keys."""
    entry = group.get("public") or group["private"]
    entries = entry.get("keys", [entry])
    if len(entries) == 1 and entries[0]["kty"] == "oct" and entries[0].get("alg") == "HS256":
        try:
            return (hs256_key(decoded(entries[0]["k"])),)
        except ConfigurationError:
            return ()
    return parse_jwks(json.dumps({"keys": entries}).encode())


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def accepted(token: str, keys: tuple[VerificationKey, ...]) -> bool:
    by_secret = any(key.any_kid for key in keys)
    algorithms = SECRET_ALGORITHMS if by_secret else KEY_SET_ALGORITHMS
    try:
        verify_signature(extract_signature(token), keys, algorithms)
    except AuthenticationError:
        return False
    return True


def algorithm_of(token: str) -> str | None:
    try:
        algorithm = json.loads(decoded(token.split(".", maxsplit=1)[0]))["alg"]
    except (ValueError, KeyError, TypeError):
        return None
    return algorithm if isinstance(algorithm, str) else None


def signature_vectors() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for group in load("wycheproof/json_web_signature_test.json")["testGroups"]:
        yield from ((group, vector) for vector in group["tests"])


def test_every_signature_is_answered_as_the_collection_says() -> None:
    wrong, counts = [], {"valid": 0, "invalid": 0}
    for group, vector in signature_vectors():
        token, number = vector["jws"], vector["tcId"]
        token = token if isinstance(token, str) else json.dumps(token)
        valid = vector["result"] == "valid" and algorithm_of(token) in SUPPORTED
        if number in CALLED_VALID_AND_REFUSED | CALLED_INVALID_AND_VALID:
            valid = not valid
        counts["valid" if valid else "invalid"] += 1
        if accepted(token, keys_of(group)) != valid:
            wrong.append((number, vector["comment"]))
    assert wrong == []
    assert counts == {"valid": 20, "invalid": 381}


def test_the_vectors_that_are_answered_otherwise_are_what_they_are_taken_for() -> None:
    tokens = {vector["tcId"]: vector["jws"] for _, vector in signature_vectors()}
    assert all(tokens[number] == tokens[357] for number in CALLED_INVALID_AND_VALID)
    assert all("?" in tokens[number] for number in CALLED_VALID_AND_REFUSED)
    assert all(tokens[number].replace("?", "") == tokens[357] for number in (372, 373))


def test_every_key_is_used_or_refused_as_the_collection_says() -> None:
    used: list[str] = []
    refused: list[str] = []
    wrong = []
    for group in load("wycheproof/json_web_key_test.json")["testGroups"]:
        for vector in group["tests"]:
            keys = keys_of(group)
            answer = accepted(vector["jws"], keys)
            # A set of secrets, and HS384 or HS512, cannot be configured at all.
            configurable = bool(keys) and algorithm_of(vector["jws"]) in SUPPORTED
            if answer != (vector["result"] == "valid" and configurable):
                wrong.append((vector["tcId"], vector["comment"]))
            (used if answer else refused).append(vector["comment"])
    assert wrong == []
    assert sorted(used) == ["acceptsValid", "long_key"]
    assert {
        "rejectsKeyWithRocaVulnerability",
        "rejects1024bitRsaKey",
        "rejectsPublicExponent1",
        "rejectsDuplicateKid",
        "rejectsWrongUse",
        "mismatchedAlgAndCurve",
        "rejectsModifiedKey",
        "key_too_short",
        "empty_key",
        "rejectsAesKey",
    } <= set(refused)


def test_every_ed25519_signature_is_answered_as_the_collection_says() -> None:
    algorithm = jws.JWSRegistry.algorithms["Ed25519"]
    wrong, counts = [], {"valid": 0, "invalid": 0}
    for group in load("wycheproof/ed25519_test.json")["testGroups"]:
        (parsed,) = parse_jwks(json.dumps({"keys": [group["publicKeyJwk"]]}).encode())
        assert parsed.algorithms == {"EdDSA", "Ed25519"}
        for vector in group["tests"]:
            counts[vector["result"]] += 1
            message, signature = bytes.fromhex(vector["msg"]), bytes.fromhex(vector["sig"])
            if algorithm.verify(message, signature, parsed.key) != (vector["result"] == "valid"):
                wrong.append(vector["tcId"])
    assert wrong == []
    assert counts["valid"] > 60
    assert counts["invalid"] > 50


COOKBOOK_VALID = {
    "jws/4_1.rsa_v15_signature.json": "RS256",
    "jws/4_4.hmac-sha2_integrity_protection.json": "HS256",
    "curve25519/jws.json": "EdDSA",
}
COOKBOOK_REFUSED = {
    "jws/4_2.rsa-pss_signature.json": "PS384",
    "jws/4_3.ecdsa_signature.json": "ES512",
}


def cookbook(name: str) -> tuple[str, tuple[VerificationKey, ...], str]:
    example = load(f"cookbook/{name}")
    public = {
        member: value
        for member, value in example["input"]["key"].items()
        if member not in {"d", "p", "q", "dp", "dq", "qi"}
    }
    return example["output"]["compact"], keys_of({"public": public}), example["input"]["alg"]


@pytest.mark.parametrize("name", list(COOKBOOK_VALID))
def test_the_examples_of_rfc_7520_and_8037_are_verified_and_their_changes_are_not(
    name: str,
) -> None:
    token, keys, algorithm = cookbook(name)
    assert algorithm == COOKBOOK_VALID[name]
    assert accepted(token, keys)
    header, payload, signature = token.split(".")
    changed = ("B" if signature[3] != "B" else "C").join((signature[:3], signature[4:]))
    assert not accepted(f"{header}.{payload}.{changed}", keys)
    assert not accepted(f"{header}.{payload[:-4]}.{signature}", keys)
    assert not accepted(token, ())


@pytest.mark.parametrize("name", list(COOKBOOK_REFUSED))
def test_the_examples_with_what_is_not_supported_are_refused(name: str) -> None:
    token, keys, algorithm = cookbook(name)
    assert algorithm == COOKBOOK_REFUSED[name]
    assert not accepted(token, keys)
