"""`ctxsnap token`: what it prints is a token that the service takes, and nothing else."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app.adapters.development_key import KEY_FILE_NAME, load_or_create_development_key
from app.adapters.jose import TokenVerifier
from app.cli.main import main
from app.scope.claims import ClaimNames, grant_from_claims
from app.scope.grant import Grant
from app.scope.vocabulary import (
    EVERY_CLASS,
    EVERY_PERMISSION,
    Classification,
    KnowledgeClass,
    Permission,
    TrustTier,
)


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTXSNAP_DATA_DIR", str(tmp_path))
    return tmp_path


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["ctxsnap", "token", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


async def claims_of(token: str, data_dir: Path, at_s: float | None = None) -> dict[str, Any]:
    key = load_or_create_development_key(data_dir)
    clock = time.time if at_s is None else lambda: at_s
    verifier = TokenVerifier((key.issuer,), clock=clock, monotonic=time.monotonic)
    return dict(await verifier.verify(token))


async def grant_of(token: str, data_dir: Path) -> Grant:
    return grant_from_claims(await claims_of(token, data_dir), ClaimNames())


async def test_the_token_carries_the_rights_that_were_asked_for(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "--tenant", "acme", "--subject", "ana", "--projects", "a, b", "--groups", "eng,ops",
        "--max-classification", "restricted", "--max-trust-tier", "system-policy",
        "--permissions", "snapshots:read index:read", "--agent", "planner",
        "--classes", "code,documents",
    )  # fmt: skip
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("\n") == 1
    assert await grant_of(printed.out.strip(), data_dir) == Grant(
        tenant="acme",
        subject="ana",
        agent="planner",
        projects=("a", "b"),
        groups=("eng", "ops"),
        classes=(KnowledgeClass.CODE, KnowledgeClass.DOCUMENTS),
        max_classification=Classification.RESTRICTED,
        max_trust_tier=TrustTier.SYSTEM_POLICY,
        permissions=frozenset({Permission.SNAPSHOTS_READ, Permission.INDEX_READ}),
    )


async def test_without_options_it_is_for_every_project_of_the_default_tenant(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch=monkeypatch) == 0
    grant = await grant_of(capsys.readouterr().out.strip(), data_dir)
    assert (grant.tenant, grant.projects, grant.groups) == ("acme", ("*",), ())
    assert (grant.classes, grant.permissions) == (EVERY_CLASS, EVERY_PERMISSION)
    assert grant.max_classification is Classification.INTERNAL
    assert grant.max_trust_tier is TrustTier.USER


async def test_the_token_lasts_as_long_as_was_asked_for(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--expires-in", "120", monkeypatch=monkeypatch) == 0
    claims = await claims_of(capsys.readouterr().out.strip(), data_dir)
    assert claims["exp"] - claims["iat"] == 120


async def test_claims_have_the_names_that_the_service_is_configured_for(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CTXSNAP_CLAIM_NAMES", '{"tenant_id": "org"}')
    assert run("--tenant", "acme", monkeypatch=monkeypatch) == 0
    claims = await claims_of(capsys.readouterr().out.strip(), data_dir)
    assert claims["org"] == "acme"
    assert "tenant_id" not in claims


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--permissions", "index:all"), "index:all"),
        (("--projects", "*,a"), "projects"),
        (("--classes", "codes"), "classes"),
        (("--tenant", ""), "tenant_id"),
        (("--tenant", "x" * 129), "tenant_id"),
        (("--max-classification", "secret"), "secret"),
        (("--expires-in", "0"), "expires-in"),
    ],
)
def test_rights_that_the_service_would_refuse_are_refused_at_once(
    arguments: tuple[str, ...], said: str, data_dir: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert not (data_dir / KEY_FILE_NAME).exists()


def test_no_token_is_made_where_the_service_trusts_configured_issuers_alone(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    issuer = '[{"issuer": "a", "audiences": ["b"], "jwks_url": "https://example.com/keys"}]'
    monkeypatch.setenv("CTXSNAP_ISSUERS", issuer)
    assert run(monkeypatch=monkeypatch) == 2
    assert "CTXSNAP_ISSUERS" in capsys.readouterr().err
    assert not (data_dir / KEY_FILE_NAME).exists()
