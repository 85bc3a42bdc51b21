"""An issuer has one source of keys, and only the algorithms that fit it."""

from pathlib import Path

import pytest

from app.adapters.jose import IssuerConfig, TokenVerifier
from app.errors import ConfigurationError
from tests.unit.adapters.signed_tokens import AUDIENCE, EC, ISSUER, RSA, SECRET, Clock, jwks


def verifier_of(*issuers: IssuerConfig) -> TokenVerifier:
    return TokenVerifier(issuers, clock=Clock(), monotonic=Clock(0))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"jwks_url": "https://a.example/jwks", "hs256_secret": SECRET},
        {"jwks_file": Path("a"), "hs256_secret": SECRET},
        {"jwks_file": Path("a"), "jwks_url": "https://a.example/jwks"},
        {"hs256_secret": SECRET, "algorithms": ("RS256",)},
        {"jwks_file": Path("a"), "algorithms": ("HS256",)},
        {"jwks_file": Path("a"), "algorithms": ("none",)},
        {"jwks_file": Path("a"), "algorithms": ("rs256",)},
        {"jwks_file": Path("a"), "issuer": ""},
        {"jwks_file": Path("a"), "audiences": ()},
        {"jwks_file": Path("a"), "audiences": ("",)},
        *(
            {"jwks_url": url}
            for url in (
                "http://keys.example.com/jwks",
                "http://10.0.0.1/jwks",
                "http://127.0.0.1.example.com/jwks",
                "ftp://127.0.0.1/jwks",
                "file:///etc/passwd",
                "https://user:password@keys.example.com/jwks",
                "//keys.example.com/jwks",
                "https:///jwks",
                "https://[::1",
                "",
            )
        ),
    ],
)
def test_an_issuer_that_contradicts_itself_is_not_configured(settings: dict[str, object]) -> None:
    values: dict[str, object] = {"issuer": ISSUER, "audiences": (AUDIENCE,), **settings}
    with pytest.raises(ConfigurationError):
        IssuerConfig(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "https://keys.example.com/jwks",
        "http://127.0.0.1:8080/jwks",
        "http://localhost/jwks",
        "http://[::1]:9/jwks",
    ],
)
def test_key_servers_are_named_by_https_or_on_loopback(url: str) -> None:
    assert IssuerConfig(ISSUER, (AUDIENCE,), jwks_url=url).jwks_url == url


@pytest.mark.parametrize(
    "secret",
    [b"", b"short", SECRET[:31], RSA.as_pem(), EC.as_der()],
    ids=["empty", "short", "31 bytes", "RSA key", "EC key"],
)
def test_a_secret_that_is_short_or_a_public_key_is_not_configured(secret: bytes) -> None:
    with pytest.raises(ConfigurationError):
        verifier_of(IssuerConfig(ISSUER, (AUDIENCE,), hs256_secret=secret))


def test_one_issuer_is_not_configured_twice(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(RSA))
    with pytest.raises(ConfigurationError, match="twice"):
        verifier_of(
            IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=path),
            IssuerConfig(ISSUER, (AUDIENCE,), hs256_secret=SECRET),
        )


def test_a_key_server_needs_an_http_client() -> None:
    with pytest.raises(ConfigurationError, match="HTTP client"):
        verifier_of(IssuerConfig(ISSUER, (AUDIENCE,), jwks_url="https://keys.example.com"))


def test_a_secret_is_not_in_the_repr_of_its_issuer() -> None:
    assert "0123456789" not in repr(IssuerConfig(ISSUER, (AUDIENCE,), hs256_secret=SECRET))


async def test_closing_a_verifier_without_key_servers_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(RSA))
    verifier = verifier_of(
        IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=path),
        IssuerConfig("secret", (AUDIENCE,), hs256_secret=SECRET),
        IssuerConfig("third", (AUDIENCE,), hs256_secret=SECRET),
    )
    await verifier.aclose()
