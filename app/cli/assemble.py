"""`ctxsnap assemble`: one snapshot, by POST /snapshots."""

import uuid
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.cli.connection import DEFAULT_TENANT, AsJson, Tenant, Token, Url, connect
from app.cli.snapshot_view import snapshot_view
from app.cli.terminal import write_answer
from app.scope.vocabulary import Classification, KnowledgeClass

_ENCODINGS = "o200k_base, cl100k_base, …"


def assemble(
    query: Annotated[str, typer.Option("--query", "-q", help="What the attempt has to know.")],
    project: Annotated[
        list[str] | None,
        typer.Option("--project", "-p", help="A project to read; repeatable. Absent: all."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The whole budget.", min=1)] = None,
    reserved_for_output: Annotated[
        int | None, typer.Option(help="Tokens of it that stay free.", min=0)
    ] = None,
    encoding: Annotated[str | None, typer.Option(help=f"Of tokens: {_ENCODINGS}")] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="How it is rendered: text or messages.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="The recipe.")] = None,
    language: Annotated[str | None, typer.Option(help="Of the query, as BCP 47 tag.")] = None,
    class_: Annotated[
        list[KnowledgeClass] | None,
        typer.Option("--class", help="A class to read; repeatable. Absent: all."),
    ] = None,
    max_classification: Annotated[
        Classification | None, typer.Option(help="The highest classification to read.")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(help="A source that must be in; repeatable, needs one --project."),
    ] = None,
    run_id: Annotated[
        uuid.UUID | None, typer.Option(help="The run.", show_default="a new one")
    ] = None,
    step_id: Annotated[uuid.UUID | None, typer.Option(help="The step.")] = None,
    attempt_id: Annotated[
        uuid.UUID | None, typer.Option(help="The attempt.", show_default="a new one")
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Assemble anew, also for a repeat.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Assemble a snapshot and show it; --json prints its exact bytes."""
    request = without_nones(
        {
            "runId": str(run_id or uuid.uuid4()),
            "stepId": step_id and str(step_id),
            "attemptId": str(attempt_id or uuid.uuid4()),
            "strategy": strategy,
            "query": query,
            "language": language,
            "scope": without_nones(
                {
                    "projects": project or None,
                    "classes": [one.value for one in class_] if class_ else None,
                    "maxClassification": max_classification and max_classification.value,
                }
            ),
            "budget": without_nones(
                {
                    "maxTokens": max_tokens,
                    "reservedForOutput": reserved_for_output,
                    "encoding": encoding,
                    "format": format_,
                }
            ),
            "pins": [{"sourceId": one} for one in pin or ()],
        }
    )
    with connect(url, token, tenant) as client:
        body = client.create_snapshot(request, refresh=refresh)
    write_answer(body, snapshot_view, as_json=as_json)


def without_nones(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
