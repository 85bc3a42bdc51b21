"""`ctxsnap erase` and `ctxsnap reindex`, over HTTP."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from app.adapters.postgres.database import Database
from app.cli.client import RequestRefusedError
from app.cli.main import application
from tests.api.service import Api, question, source, source_ids


@dataclass(frozen=True)
class Commands:
    url: str
    api: Api

    async def run(self, *arguments: str, answer: str = "", **claims: Any) -> Result:
        environment = {"CTXSNAP_TOKEN": self.api.token.sign(self.api.tenant, **claims)}
        given = [*arguments, "--url", self.url]
        return await asyncio.to_thread(
            CliRunner().invoke, application, given, input=answer, env=environment
        )

    async def json(self, *arguments: str, code: int = 0) -> Any:
        done = await self.run(*arguments, "--json")
        assert done.exit_code == code, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
async def url(app: FastAPI) -> AsyncIterator[str]:
    """The running application, on a socket as well."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        serving = asyncio.create_task(server.serve([bound]))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving


@pytest.fixture
def commands(url: str, api: Api) -> Commands:
    return Commands(url, api)


async def test_erasing_asks_first_and_tells_what_was_not_there(
    api: Api, commands: Commands
) -> None:
    await api.index(*(source(name, "cancel") for name in ("a.md", "b.md", "kept.md")))
    names = ("a.md", "unknown.md", "b.md", "a.md")
    for answer in ("", "n\n", "\n", "yeah\n"):
        refused = await commands.run("erase", *names, "-p", "booking", answer=answer)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "Erase the texts of 3 sources in booking for good?" in refused.stderr
    assert await api.index_version() == 1
    done = await commands.run("erase", *names, "-p", "booking", answer="y\n")
    assert (done.exit_code, done.stdout) == (1, "2 erased, 1 not found\n")
    assert "not found: unknown.md" in done.stderr
    assert source_ids(await api.read("/sources"), "sources") == ["kept.md"]


async def test_a_question_names_a_few_sources_alone(commands: Commands) -> None:
    names = [f"{number}.md" for number in range(13)]
    refused = await commands.run("erase", *names, "-p", "b\u202eooking")
    assert refused.exit_code == 1
    assert "9.md" in refused.stderr
    assert "10.md" not in refused.stderr
    assert "and 3 more" in refused.stderr
    assert "b\\u202eooking" in refused.stderr


async def test_erasing_without_a_question_answers_in_json(api: Api, commands: Commands) -> None:
    await api.index(source("a.md", "cancel"), source("b.md", "cancel"))
    erase = ("erase", "--yes", "--project", "booking")
    assert await commands.json(*erase, "a.md") == {
        "sources": [{"sourceId": "a.md", "outcome": "erased", "indexVersion": 2}]
    }
    assert await commands.json(*erase, "x.md", code=1) == {
        "sources": [{"sourceId": "x.md", "outcome": "not-found"}]
    }
    refused = await commands.run(*erase, "b.md", "--json", scope="index:read")
    assert isinstance(refused.exception, RequestRefusedError)
    assert (refused.exception.code, refused.stdout) == ("permission-missing", "")


async def test_reindexing_goes_on_until_nothing_remains(
    api: Api, commands: Commands, owner: Database
) -> None:
    await api.index(*(source(f"{number}.md", f"cancel {number}") for number in range(5)))
    assert (await commands.run("reindex")).stdout == "0 reindexed, 0 remain\n"
    async with owner.transaction(api.tenant) as (connection, _):
        await connection.execute(sa.text("UPDATE source_versions SET engine = 'earlier'"))
    assert await commands.json("reindex", "--batch", "2") == {
        "reindexed": 5,
        "remaining": 0,
        "indexVersion": 4,
    }
    assert len((await api.assemble(question("cancel")))["items"]) == 5


async def test_explaining_and_replaying_tell_what_became_of_a_source(
    api: Api, commands: Commands
) -> None:
    await api.index(source("in.md", "cancel a booking"), source("out.md", "nothing of the kind"))
    made = (await api.assemble(question("cancel")))["snapshotId"]
    of_out = ("explain", made, "out.md", "-p", "booking")
    explained = await commands.json(*of_out)
    path = f"/snapshots/{made}/explain?project=booking&sourceId=out.md"
    assert explained == await api.read(path)
    shown = (await commands.run(*of_out)).stdout
    assert all(one["stage"] in shown and one["outcome"] in shown for one in explained["stages"])
    in_it = (await commands.run("explain", made, "in.md", "-p", "booking")).stdout
    assert "chunk 0 has rank 1" in in_it
    assert "chunk 0 has rank 1" not in shown

    assert (await commands.json("replay", made))["match"] is True
    assert "same hash" in (await commands.run("replay", made)).stdout
    await commands.run("erase", "in.md", "-p", "booking", "--yes")
    differing = await commands.json("replay", made, code=1)
    told = await commands.run("replay", made)
    assert (differing["match"], told.exit_code) == (False, 1)
    assert differing["firstDifference"]["stage"] in told.stdout
    assert "erased" in told.stdout
