"""`ctxsnap verify`: a snapshot checked again, from a file alone or against the service.

Guarantees: a file is checked without a network, a server or a token. Of a reference both
are checked: what the service says, and the bytes that it returned, recomputed here.
"""

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, Tenant, Token, Url, connect
from app.cli.snapshot_view import checks_view
from app.cli.terminal import console, write_json
from app.errors import ConfigurationError
from app.snapshot.verify import Check, Evidence
from app.snapshot.verify import verify as verify_evidence

_REF = re.compile(r"sha256:[0-9a-f]{64}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def verify(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="REF|FILE", help="A hash, a snapshotId, a file, or - for standard input."
        ),
    ],
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Check a snapshot again; a file needs no server. Exit code 1 if a check fails."""
    if _REF.fullmatch(subject):
        with connect(url, token, tenant) as client:
            said = json.loads(client.snapshot(subject, "verify"))["checks"]
            canonical = client.snapshot(subject)
        groups = {
            "service": tuple(Check(one["name"], one["ok"], one["detail"]) for one in said),
            "here": (_check_reference(canonical, subject), *checks_of(canonical)),
        }
    else:
        groups = {"here": checks_of(_read(subject))}
    passed = all(check.ok for checks in groups.values() for check in checks)
    if as_json:
        write_json(_document(groups, passed))
    else:
        for where, checks in groups.items():
            console().print(checks_view(_TITLES[where], checks))
    if not passed:
        raise typer.Exit(1)


_TITLES = {"service": "Checked by the service", "here": "Checked here, from the bytes alone"}


def checks_of(canonical: bytes) -> tuple[Check, ...]:
    """The checks that a snapshot's bytes alone allow."""
    return verify_evidence(Evidence(canonical), _no_tokenizer)


def _check_reference(canonical: bytes, ref: str) -> Check:
    """Whether the service returned what was asked for."""
    try:
        document = json.loads(canonical)
        found = document["hash" if ref.startswith("sha256:") else "snapshotId"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Check("reference", False, "the answer is not a snapshot")
    return Check("reference", found == ref.lower(), f"the service returned {found}")


def _no_tokenizer(_text: str, _encoding: str) -> int:
    raise AssertionError("no text is counted where no text is at hand")


def _read(subject: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if subject == "-" else Path(subject).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{subject} is neither a reference nor a file that can be read ({error.strerror})."
        ) from error


def _document(groups: dict[str, tuple[Check, ...]], passed: bool) -> bytes:
    lists = {
        where: [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in checks]
        for where, checks in groups.items()
    }
    return json.dumps({"ok": passed, "checks": lists}, indent=2).encode() + b"\n"
