"""Only what an issuer signed for this service, now, with an allowed algorithm, gets in."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from joserfc.jwk import ECKey, Key, OctKey, RSAKey

from app.adapters.jose import MAX_TOKEN_BYTES, IssuerConfig, TokenVerifier
from app.errors import AuthenticationError
from tests.unit.adapters.signed_tokens import (
    AUDIENCE,
    EC,
    ED,
    ISSUER,
    KEY_OF_ALGORITHM,
    NOW_S,
    RSA,
    SECRET,
    Clock,
    claims,
    encoded,
    hs256,
    jwks,
    rs256,
    signed,
)


def verifier_of(*issuers: IssuerConfig, now_s: float = NOW_S) -> TokenVerifier:
    return TokenVerifier(issuers, clock=Clock(now_s), monotonic=Clock(0))


def keys_in(folder: Path, *keys: Key | Mapping[str, object]) -> Path:
    path = folder / "jwks.json"
    path.write_bytes(jwks(*keys))
    return path


@pytest.fixture
def verifier(tmp_path: Path) -> TokenVerifier:
    return verifier_of(
        IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=keys_in(tmp_path, RSA, EC, ED)),
        IssuerConfig("secret", (AUDIENCE,), hs256_secret=SECRET),
    )


async def refusal(verifier: TokenVerifier, token: str) -> str:
    with pytest.raises(AuthenticationError) as caught:
        await verifier.verify(token)
    assert caught.value.code == "authentication-failed"
    for part in (part for part in token.split(".") if len(part) > 6):
        assert part not in caught.value.detail
    return caught.value.detail


@pytest.mark.parametrize("algorithm", list(KEY_OF_ALGORITHM))
async def test_a_token_signed_with_a_key_of_the_set_gives_its_claims(
    verifier: TokenVerifier, algorithm: str
) -> None:
    token = signed(KEY_OF_ALGORITHM[algorithm], algorithm, claims(groups=["eng"]))
    assert await verifier.verify(token) == claims(groups=["eng"])


@pytest.mark.parametrize("kid", [None, "any name"])
async def test_a_token_signed_with_the_secret_gives_its_claims(
    verifier: TokenVerifier, kid: str | None
) -> None:
    key = OctKey.import_key(SECRET)
    token = signed(key, "HS256", claims(iss="secret"), kid=kid)
    assert (await verifier.verify(token))["iss"] == "secret"


async def test_a_public_key_used_as_an_hmac_secret_is_refused(verifier: TokenVerifier) -> None:
    for secret in (RSA.as_pem(), RSA.as_der(), jwks(RSA), EC.as_pem(), ED.as_pem()):
        for kid in (None, "rsa", "ec", "ed"):
            key = OctKey(secret, secret)
            token = signed(key, "HS256", claims(), kid=kid)
            assert "algorithm" in await refusal(verifier, token)


@pytest.mark.parametrize("name", ["none", "None", "NONE", "", "rs256", "Rs256", "RS256 ", "RS384"])
async def test_an_algorithm_that_is_not_listed_word_for_word_is_refused(
    verifier: TokenVerifier, name: str
) -> None:
    genuine = rs256()
    header = encoded(json.dumps({"alg": name, "kid": "rsa"}).encode())
    _, payload, signature = genuine.split(".")
    for forged in (f"{header}.{payload}.{signature}", f"{header}.{payload}."):
        assert "algorithm" in await refusal(verifier, forged)
    resigned = signed(RSA, "RS256", claims(), alg=name)
    assert "algorithm" in await refusal(verifier, resigned)


@pytest.mark.parametrize("algorithm", [None, 256, True, ["RS256"], {"RS256": 1}])
async def test_an_algorithm_that_is_no_string_is_refused(
    verifier: TokenVerifier, algorithm: object
) -> None:
    await refusal(verifier, signed(RSA, "RS256", claims(), alg=algorithm))


async def test_an_issuer_may_allow_fewer_algorithms(tmp_path: Path) -> None:
    path = keys_in(tmp_path, RSA, EC)
    strict = verifier_of(IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=path, algorithms=("ES256",)))
    assert await strict.verify(signed(EC, "ES256", claims()))
    assert "algorithm" in await refusal(strict, rs256())


async def test_the_algorithm_must_fit_the_key_that_the_token_names(
    verifier: TokenVerifier,
) -> None:
    for kid in ("ec", "ed", "unknown", "RSA", ""):
        token = signed(RSA, "RS256", claims(), kid=kid)
        assert "does not name one key" in await refusal(verifier, token)


async def test_a_signature_of_another_key_is_refused(verifier: TokenVerifier) -> None:
    stranger = ECKey.generate_key("P-256", {"kid": "ec"})
    assert "signature" in await refusal(verifier, signed(stranger, "ES256", claims()))
    other_secret = signed(OctKey.import_key(SECRET[::-1]), "HS256", claims(iss="secret"))
    assert "signature" in await refusal(verifier, other_secret)


async def test_every_changed_part_of_a_token_is_noticed(verifier: TokenVerifier) -> None:
    header, payload, signature = rs256().split(".")
    changed_payload = encoded(json.dumps(claims(tenant_id="globex")).encode())
    changed_header = encoded(json.dumps({"alg": "RS256", "kid": "rsa", "x": 1}).encode())
    for forged in (
        f"{header}.{changed_payload}.{signature}",
        f"{changed_header}.{payload}.{signature}",
        f"{header}.{payload}.{signature[:-8]}",
        f"{header}.{payload}.{'A' * len(signature)}",
        f"{header}.{payload}.",
    ):
        assert "signature" in await refusal(verifier, forged)


async def test_keys_that_the_token_brings_along_are_not_used(verifier: TokenVerifier) -> None:
    stranger = ECKey.generate_key("P-256", {"kid": "ec"})
    token = signed(
        stranger, "ES256", claims(), jwk=stranger.as_dict(), jku="https://evil.example/jwks"
    )
    assert "signature" in await refusal(verifier, token)


async def test_a_key_of_one_issuer_does_not_sign_for_another(tmp_path: Path) -> None:
    two = verifier_of(
        IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=keys_in(tmp_path, RSA)),
        IssuerConfig("other", (AUDIENCE,), hs256_secret=SECRET),
    )
    assert "algorithm" in await refusal(two, rs256(iss="other"))
    assert "algorithm" in await refusal(two, hs256(iss=ISSUER))


async def test_without_kid_the_only_fitting_key_is_taken(verifier: TokenVerifier) -> None:
    assert await verifier.verify(signed(EC, "ES256", claims(), kid=None))


async def test_without_kid_several_fitting_keys_are_refused(tmp_path: Path) -> None:
    path = keys_in(tmp_path, EC, ECKey.generate_key("P-256", {"kid": "other"}))
    two = verifier_of(IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=path))
    assert await two.verify(signed(EC, "ES256", claims()))
    assert "does not name one key" in await refusal(two, signed(EC, "ES256", claims(), kid=None))


async def test_one_kid_for_two_fitting_keys_is_refused(tmp_path: Path) -> None:
    path = keys_in(tmp_path, EC, ECKey.generate_key("P-256", {"kid": "ec"}))
    two = verifier_of(IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=path))
    assert "does not name one key" in await refusal(two, signed(EC, "ES256", claims()))


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"], "exp": 1},
        {"crit": []},
        {"crit": ["b64"], "b64": False},
        {"b64": False},
        {"b64": True},
        {"kid": 7},
        {"jwk": 7},
        {"jku": "ftp://evil.example"},
        {"kid": ["rsa"]},
        {"typ": "dpop+jwt"},
        {"typ": "logout+jwt"},
        {"typ": 1},
    ],
)
async def test_a_header_that_asks_for_more_than_is_understood_is_refused(
    verifier: TokenVerifier, header: dict[str, object]
) -> None:
    await refusal(verifier, signed(RSA, "RS256", claims(), **header))


@pytest.mark.parametrize(
    "header",
    [{"typ": None}, {"typ": "at+JWT"}, {"x5t": "abc", "nonce": "1"}, {"x5c": ["A" * 3000]}],
)
async def test_headers_that_need_no_understanding_are_ignored(
    verifier: TokenVerifier, header: dict[str, object]
) -> None:
    assert await verifier.verify(signed(RSA, "RS256", claims(), **header))


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["other", AUDIENCE], "second"])
async def test_a_token_for_one_of_the_audiences_is_taken(tmp_path: Path, audience: object) -> None:
    config = IssuerConfig(ISSUER, (AUDIENCE, "second"), jwks_file=keys_in(tmp_path, RSA))
    assert await verifier_of(config).verify(rs256(aud=audience))


@pytest.mark.parametrize(
    "audience",
    ["other", "ctxsnap ", ["other"], [], "", 7, [AUDIENCE, 7], {AUDIENCE: 1}, [[AUDIENCE]]],
)
async def test_a_token_for_another_audience_is_refused(
    verifier: TokenVerifier, audience: object
) -> None:
    assert "another audience" in await refusal(verifier, rs256(aud=audience))


@pytest.mark.parametrize("issuer", ["https://login.example.com/", "", 7, [ISSUER], {}, "\ud800"])
async def test_an_unknown_issuer_is_refused(verifier: TokenVerifier, issuer: object) -> None:
    assert "issuer is not known" in await refusal(verifier, rs256(iss=issuer))


@pytest.mark.parametrize(("claim", "says"), [("iss", "issuer"), ("aud", "aud"), ("exp", "exp")])
async def test_a_required_claim_that_is_missing_or_null_is_refused(
    verifier: TokenVerifier, claim: str, says: str
) -> None:
    assert says in await refusal(verifier, rs256(**{claim: None}))
    null = json.dumps({**claims(), claim: None}).encode()
    assert says in await refusal(verifier, signed(RSA, "RS256", null))


@pytest.mark.parametrize("time_s", ["1900000000", True, [], {}])
@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
async def test_a_time_that_is_no_number_is_refused(
    verifier: TokenVerifier, claim: str, time_s: object
) -> None:
    await refusal(verifier, rs256(**{claim: time_s}))


@pytest.mark.parametrize("number", ["1e400", "NaN", "Infinity", "9" * 5000])
async def test_a_time_that_no_number_can_hold_is_refused(
    verifier: TokenVerifier, number: str
) -> None:
    text = json.dumps(claims(exp=0)).replace('"exp": 0', f'"exp": {number}')
    await refusal(verifier, signed(RSA, "RS256", text.encode()))


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"exp": NOW_S - 29}, None),
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": NOW_S - 29.5}, None),
        ({"exp": 10**400}, None),
        ({"exp": -1}, "expired"),
        ({"nbf": NOW_S + 30}, None),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iat": NOW_S + 30}, None),
        ({"iat": NOW_S + 31}, "future"),
        ({"nbf": NOW_S - 5, "iat": NOW_S - 5}, None),
    ],
)
async def test_times_are_compared_with_a_leeway_of_30_seconds(
    verifier: TokenVerifier, changes: dict[str, object], refused: str | None
) -> None:
    if refused is None:
        assert await verifier.verify(rs256(**changes))
    else:
        assert refused in await refusal(verifier, rs256(**changes))


async def test_the_leeway_can_be_set(tmp_path: Path) -> None:
    config = IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=keys_in(tmp_path, RSA))
    exact = TokenVerifier((config,), clock=Clock(), monotonic=Clock(0), leeway_s=0)
    assert await exact.verify(rs256(exp=NOW_S + 1))
    assert "expired" in await refusal(exact, rs256(exp=NOW_S))


async def test_an_expired_forgery_is_told_about_its_signature_only(
    verifier: TokenVerifier,
) -> None:
    stranger = RSAKey.generate_key(2048, {"kid": "rsa"})
    detail = await refusal(verifier, signed(stranger, "RS256", claims(exp=1, aud="other")))
    assert detail == "The token's signature is not valid."


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b'"text"',
        b"null",
        b"{",
        b"\xff\xfe",
        b'{"iss":"a","iss":"b"}',
        json.dumps(claims()).encode("utf-16"),
        json.dumps(claims()).replace('"sub"', '"tenant_id": "globex", "sub"').encode(),
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
async def test_a_payload_that_is_no_strict_json_object_is_refused(
    verifier: TokenVerifier, payload: bytes
) -> None:
    assert "claims" in await refusal(verifier, signed(RSA, "RS256", payload))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"7",
        b"[]",
        b'["alg"]',
        b'["alg","b64"]',
        b'"alg b64"',
        b"{",
        b"\xff",
        b"[" * 6000,
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
    ],
)
async def test_a_header_that_is_no_json_object_is_refused(
    verifier: TokenVerifier, header: bytes
) -> None:
    _, payload, signature = rs256().split(".")
    await refusal(verifier, f"{encoded(header)}.{payload}.{signature}")


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "...", "a", "a.b", "a.b.c", "a.b.c.d.e", "é.é.é", "\ud800.a.b", "a\0.b.c"],
)
async def test_what_is_no_token_at_all_is_refused(verifier: TokenVerifier, token: str) -> None:
    await refusal(verifier, token)


async def test_a_token_beyond_the_limit_is_refused_and_one_below_is_not(
    verifier: TokenVerifier,
) -> None:
    overhead = len(rs256(pad="")) + 16
    fits = rs256(pad="x" * ((MAX_TOKEN_BYTES - overhead) * 3 // 4))
    assert MAX_TOKEN_BYTES - 64 < len(fits) <= MAX_TOKEN_BYTES
    assert await verifier.verify(fits)
    assert "larger than" in await refusal(verifier, rs256(pad="x" * MAX_TOKEN_BYTES))


async def test_vendor_errors_are_chained(verifier: TokenVerifier) -> None:
    for token in (rs256(exp=1), "a.b.c", signed(RSA, "RS256", b"[]")):
        with pytest.raises(AuthenticationError) as caught:
            await verifier.verify(token)
        assert caught.value.__cause__ is not None


async def test_without_issuers_every_token_is_refused() -> None:
    assert "issuer" in await refusal(verifier_of(), rs256())
