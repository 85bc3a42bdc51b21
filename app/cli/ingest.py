"""`ctxsnap ingest`: files and folders into the index."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.cli.connection import DEFAULT_TENANT, AsJson, Project, Tenant, Token, Url, connect
from app.cli.files import Selection, select_files
from app.cli.ingestion import MAX_FILE_BYTES, Ingestion, Labelling, Limits, Tally
from app.cli.terminal import console, say, write_json
from app.config import read_settings
from app.errors import ServiceError
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier

_AUTO = "auto"


def _class_or_auto(word: str) -> KnowledgeClass | None:
    known = (_AUTO, *KnowledgeClass)
    if word not in known:
        raise typer.BadParameter(f"{word!r} is not one of {', '.join(known)}.")
    return None if word == _AUTO else KnowledgeClass(word)


def ingest(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.", metavar="PATH…")],
    project: Project,
    class_: Annotated[
        KnowledgeClass | None,
        typer.Option(
            "--class",
            parser=_class_or_auto,
            metavar="CLASS",
            help=f"{_AUTO}, or one of {', '.join(KnowledgeClass)}. With {_AUTO} a file is code "
            "or documents by its ending.",
            show_default=_AUTO,
        ),
    ] = None,
    classification: Annotated[
        Classification | None,
        typer.Option(help="How sensitive they are.", show_default="internal"),
    ] = None,
    trust_tier: Annotated[
        TrustTier | None,
        typer.Option(help="How far to trust them.", show_default="trusted-knowledge"),
    ] = None,
    acl_allow: Annotated[
        list[str] | None,
        typer.Option(help="Who may read them, as user:… or group:…; repeatable. Absent: all."),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Stands before each source's id.")] = "",
    max_file_bytes: Annotated[
        int, typer.Option(help="Larger files are skipped.", min=1)
    ] = MAX_FILE_BYTES,
    resend: Annotated[
        bool, typer.Option("--resend", help="Send also what the index has at this revision.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be sent, and send nothing.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Index files and folders; what has not changed is not sent again.

    Folders are searched in full; .gitignore files hold. A source's id is the path from the
    given folder, its revision the git commit that last changed it, or its content's digest.
    """
    labelling = Labelling(
        project=project,
        knowledge_class=class_,
        classification=classification,
        trust_tier=trust_tier,
        allow=tuple(acl_allow) if acl_allow else None,
    )
    limits = Limits(max_file_bytes, resend=resend, dry_run=dry_run)
    selection = select_files(paths, prefix=prefix, private_folder=read_settings().data_dir)
    with connect(url, token, tenant) as client:
        ingestion = Ingestion(client, labelling, limits)
        try:
            _run(ingestion, selection)
        except ServiceError:
            # The batches before it are in.
            if ingestion.tally.outcomes:
                _tell(ingestion.tally, dry_run=dry_run, as_json=as_json)
            raise
    _tell(ingestion.tally, dry_run=dry_run, as_json=as_json)


def _run(ingestion: Ingestion, selection: Selection) -> None:
    target = console(stderr=True)
    columns = (
        TextColumn("Ingesting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=target, disable=not target.is_terminal) as progress:
        task = progress.add_task("ingest", total=len(selection.files))
        ingestion.advance = lambda: progress.advance(task)
        ingestion.run(selection)


def _tell(tally: Tally, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        write_json(_document(tally, dry_run=dry_run))
        return
    for one in tally.skipped:
        say(f"skipped {one.path}: {one.reason}")
    counts = [f"{tally.count(what)} {what}" for what in ("added", "replaced", "unchanged")]
    verb = "Would be: " if dry_run else ""
    typer.echo(f"{verb}{', '.join(counts)}, {len(tally.skipped)} skipped")


def _document(tally: Tally, *, dry_run: bool) -> bytes:
    document = {
        "dryRun": dry_run,
        "indexVersion": tally.index_version,
        **{what: tally.count(what) for what in ("added", "replaced", "unchanged")},
        "sources": [
            {"sourceId": one.source_id, "sourceRevision": one.revision, "outcome": one.what}
            for one in tally.outcomes
        ],
        "skipped": [{"path": one.path, "reason": one.reason} for one in tally.skipped],
    }
    # ASCII alone: a path that is not UTF-8 has to come through as well.
    return json.dumps(document, indent=2).encode() + b"\n"
