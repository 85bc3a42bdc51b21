"""`ctxsnap demo`: the whole way once, over HTTP, on the embedded database.

Guarantees: the service listens on a free port of this machine and is stopped at the end,
after Ctrl-C too. Tenant, projects and data folder are those that `ctxsnap serve` uses, so
what is printed at the end works against it.

Not handled: removing what was indexed; the projects demo-docs and demo-code stay.
"""

import json
import shlex
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from app.cli.background import running_service
from app.cli.client import ServiceClient
from app.cli.connection import local_url, same_data
from app.cli.files import Selection, SourceFile, select_files
from app.cli.ingestion import Ingestion, Labelling
from app.cli.snapshot_view import checks_view, snapshot_view
from app.cli.terminal import console, printable
from app.cli.token import DEFAULT_TENANT, Rights, sign
from app.cli.verify import checks_of
from app.config import Settings, read_settings
from app.errors import ConfigurationError
from app.scope.vocabulary import KnowledgeClass

DOCS_PROJECT = "demo-docs"
CODE_PROJECT = "demo-code"
QUESTION = (
    "How does the service keep a request within the scope of its bearer token, and how does "
    "Starlette build the middleware stack of an application?"
)
RIGHTS = Rights(tenant=DEFAULT_TENANT, subject="demo", projects=(CODE_PROJECT, DOCS_PROJECT))

_CHECKOUT = Path(__file__).parents[2]
_DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
_LIBRARY = "starlette"
_TOKEN_LIFETIME_S = 3600
_PROMPT_LINES = 24
_LINE_CHARS = 120


def demo() -> None:
    """Index a sample, assemble a snapshot over HTTP, show it.

    Starts the service on the embedded database in CTXSNAP_DATA_DIR and stops it again.
    """
    usual = read_settings()
    settings = read_settings(
        host="127.0.0.1", port=0, database_url=None, issuers=(), log_level="warning"
    )
    request = _request()
    timings: dict[str, float] = {}
    typer.echo("Starting the service on the embedded database …")
    begun = time.perf_counter()
    with running_service(settings) as url:
        timings["start the service"] = time.perf_counter() - begun
        token = sign(settings, RIGHTS, now_s=int(time.time()), expires_in_s=_TOKEN_LIFETIME_S)
        with ServiceClient(url, token) as client:
            _index(client, settings, timings)
            with _timed(timings, "assemble the snapshot"):
                canonical = client.create_snapshot(request)
            snapshot = json.loads(canonical)
            with _timed(timings, "read its prompt"):
                prompt = client.snapshot(snapshot["hash"], "prompt").decode()
    _show(snapshot, prompt)
    checks = checks_of(canonical)
    console().print(checks_view("Checked here, from the bytes alone", checks))
    _heading("Timings")
    for what, taken_s in timings.items():
        typer.echo(f"{taken_s:8.2f} s  {what}")
    _heading("Repeat it")
    typer.echo(how_to_repeat(usual, request, snapshot["hash"]))
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def _request() -> dict[str, Any]:
    return {
        "runId": str(uuid.uuid4()),
        "attemptId": str(uuid.uuid4()),
        "query": QUESTION,
        "scope": {"projects": list(RIGHTS.projects)},
        "budget": {"maxTokens": 4000, "reservedForOutput": 500},
    }


def _index(client: ServiceClient, settings: Settings, timings: dict[str, float]) -> None:
    corpora = (
        ("this project's documents", DOCS_PROJECT, KnowledgeClass.DOCUMENTS, _documents(settings)),
        (f"the sources of {_LIBRARY}", CODE_PROJECT, KnowledgeClass.CODE, _library()),
    )
    for title, project, knowledge_class, selection in corpora:
        ingestion = Ingestion(client, Labelling(project, knowledge_class))
        with _timed(timings, f"index {title}"):
            ingestion.run(selection)
        counts = [
            f"{ingestion.tally.count(what)} {what}" for what in ("added", "replaced", "unchanged")
        ]
        typer.echo(f"Indexed {title} as {project}: {', '.join(counts)}.")


def _documents(settings: Settings) -> Selection:
    """The documents of the project itself, by their paths in the checkout."""
    found = [_CHECKOUT / name for name in _DOCUMENTS if (_CHECKOUT / name).exists()]
    if not found:
        raise ConfigurationError(
            "The demo indexes this project's own documents, which an installed package does "
            "not bring: run it in a checkout."
        )
    selection = select_files([_CHECKOUT], prefix="", private_folder=settings.data_dir)
    files = [
        file
        for file in selection.files
        if file.source_id in _DOCUMENTS or file.source_id.startswith("docs/")
    ]
    return Selection(tuple(files), ())


def _library() -> Selection:
    """The installed sources of a library that this service is built on."""
    spec = find_spec(_LIBRARY)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"The package {_LIBRARY} is not installed.")
    root = Path(spec.submodule_search_locations[0])
    return Selection(
        tuple(
            SourceFile(path, root, f"{_LIBRARY}/{path.relative_to(root).as_posix()}")
            for path in sorted(root.rglob("*.py"))
        ),
        (),
    )


@contextmanager
def _timed(timings: dict[str, float], what: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    timings[what] = time.perf_counter() - begun


def _show(snapshot: Mapping[str, Any], prompt: str) -> None:
    _heading("Question")
    typer.echo(QUESTION)
    _heading("Snapshot")
    console().print(snapshot_view(snapshot))
    _heading(f"The first {_PROMPT_LINES} lines of the prompt")
    for line in printable(prompt, lines=True).split("\n")[:_PROMPT_LINES]:
        typer.echo(line if len(line) <= _LINE_CHARS else line[: _LINE_CHARS - 1] + "…")
    typer.echo()


def _heading(text: str) -> None:
    typer.echo(f"\n== {text} ==\n")


def how_to_repeat(settings: Settings, request: Mapping[str, Any], snapshot_hash: str) -> str:
    """Lines for a new shell in any folder; the service has to run, on the same data folder."""
    command = same_data(settings)
    url = shlex.quote(f"{local_url(settings)}/snapshots")
    authorised = '-H "Authorization: Bearer $TOKEN"'
    body = shlex.quote(json.dumps(request))
    is_usual = settings.data_dir.resolve() == _CHECKOUT / ".ctxsnap"
    lines = (
        "# in one shell" + ("; in the checkout `make serve` does the same" if is_usual else ""),
        f"{command} serve",
        "",
        "# in another",
        f"TOKEN=$({command} token --tenant {RIGHTS.tenant} --subject {RIGHTS.subject} \\",
        f"  --projects {','.join(RIGHTS.projects)} \\",
        f"  --max-classification {RIGHTS.max_classification} \\",
        f"  --max-trust-tier {RIGHTS.max_trust_tier})",
        f"curl -sS {url} {authorised} \\",
        f"  -H 'Content-Type: application/json' -d {body}",
        f"curl -sS {url}/{snapshot_hash}/prompt {authorised}",
        f"curl -sS {url}/{snapshot_hash}/verify {authorised}",
    )
    return printable("\n".join(lines), lines=True)
