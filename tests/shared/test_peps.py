"""Real questions over real documents, a real process, and a verifier that shares no code.

Snapshots of 106 Python Enhancement Proposals are checked from outside, and read the same
after the service was stopped and started again.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.adapters.development_key import load_or_create_development_key
from tests.shared.service_process import ServiceProcess, free_port
from tests.tokens import TokenFactory

pytestmark = [pytest.mark.shared_data, pytest.mark.long]

Json = dict[str, Any]

VERIFIER = Path(__file__).with_name("outside_verifier.py")
QUESTIONS = {
    "How should imports be grouped and ordered in a module?": "pep-0008.rst",
    "Which punctuation ends the summary line of a docstring?": "pep-0257.rst",
    "What does the walrus operator do in a comprehension?": "pep-0572.rst",
    "How do I remove a prefix from a string?": "pep-0616.rst",
    "When is zip strict about the lengths of its arguments?": "pep-0618.rst",
    "How are exception groups caught with except*?": "pep-0654.rst",
    "How does a virtual environment find the standard library?": "pep-0405.rst",
    "What are native strings and bytestrings in WSGI?": "pep-3333.rst",
    "Can the global interpreter lock be switched off?": "pep-0703.rst",
    "How are TOML files parsed by the standard library?": "pep-0680.rst",
    "What does paramstyle mean for database modules?": "pep-0249.rst",
    "How do scripts declare their dependencies inline?": "pep-0723.rst",
}
BUDGETS: list[Json] = [
    {"maxTokens": tokens, "reservedForOutput": 200, "encoding": encoding, "format": format_}
    for (format_, tokens), encoding in product(
        [("text", 4000), ("messages", 1500)], ["o200k_base", "cl100k_base"]
    )
]


@dataclass
class World:
    """A running service that has indexed the documents, and its callers' tokens."""

    service: ServiceProcess
    tokens: TokenFactory

    def client(self, **claims: Any) -> httpx.Client:
        headers = self.tokens.headers("peps", **claims)
        return httpx.Client(base_url=self.service.url, headers=headers, timeout=60, trust_env=False)


@pytest.fixture(scope="module")
def documents(shared_data: Path) -> list[Path]:
    return sorted((shared_data / "peps").glob("*.rst"))


def _source(path: Path) -> Json:
    text = path.read_text(encoding="utf-8")
    return {
        "sourceId": path.name,
        "sourceRevision": hashlib.sha256(text.encode()).hexdigest(),
        "class": "documents",
        "project": "python",
        "classification": "public",
        "mediaType": "text/x-rst",
        "language": "en",
        "text": text,
    }


@pytest.fixture(scope="module")
def world(documents: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data_dir = tmp_path_factory.mktemp("peps")
    with ServiceProcess(data_dir, free_port()) as service:
        running = World(service, TokenFactory(load_or_create_development_key(data_dir)))
        lines = "".join(json.dumps(_source(path)) + "\n" for path in documents)
        with running.client() as client:
            loaded = client.put(
                "/sources", content=lines, headers={"content-type": "application/x-ndjson"}
            )
        assert loaded.status_code == 200, loaded.text
        assert len(loaded.json()["sources"]) == len(documents) == 106
        assert all(one["chunks"] > 0 for one in loaded.json()["sources"])
        yield running


def _request(query: str, budget: Json) -> Json:
    name = json.dumps([query, budget])
    return {
        "runId": str(uuid.uuid5(uuid.NAMESPACE_URL, query)),
        "attemptId": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
        "query": query,
        "scope": {"projects": ["python"], "maxClassification": "internal"},
        "budget": budget,
    }


REQUESTS = [_request(query, budget) for query, budget in product(QUESTIONS, BUDGETS)]


@pytest.fixture(scope="module")
def answers(world: World) -> list[httpx.Response]:
    with world.client() as client:
        made = [client.post("/snapshots", json=request) for request in REQUESTS]
    assert {answer.status_code for answer in made} == {201}
    return made


def _verify(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    token = world.tokens.sign("peps", scope="snapshots:read")
    return subprocess.run(
        [sys.executable, "-I", str(VERIFIER), world.service.url, *arguments],
        env={"PATH": os.environ.get("PATH", ""), "CTXSNAP_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _failed(result: subprocess.CompletedProcess[str]) -> set[str]:
    assert result.stdout, result.stderr
    document = json.loads(result.stdout)
    assert result.returncode == (0 if document["ok"] else 1)
    return {
        check["name"]
        for checks in document["snapshots"].values()
        for check in checks
        if not check["ok"]
    }


def test_each_question_finds_its_document(answers: list[httpx.Response]) -> None:
    for request, answer in zip(REQUESTS, answers, strict=True):
        found = [item["sourceId"] for item in answer.json()["items"]]
        assert QUESTIONS[request["query"]] in found, (request["query"], found)


def test_an_outsider_can_verify_every_snapshot(world: World, answers: list[httpx.Response]) -> None:
    refs = [answer.json()["hash"] for answer in answers]
    refs[1::2] = [answer.json()["snapshotId"].upper() for answer in answers[1::2]]
    result = _verify(world, *refs)
    assert _failed(result) == set(), result.stdout
    snapshots = json.loads(result.stdout)["snapshots"]
    assert set(snapshots) == set(refs)
    assert {len(checks) for checks in snapshots.values()} == {19}


def test_the_prompts_are_well_filled(answers: list[httpx.Response]) -> None:
    """Snapshots that are nearly empty would verify as well."""
    for answer in answers:
        budget = answer.json()["budget"]
        room = budget["maxTokens"] - budget["reservedForOutput"]
        assert room // 2 < budget["usedTokens"] <= room


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ('"maxTokens":4000', '"maxTokens":4001', "hash"),
        ('"rank":1', '"rank":3', "ranks"),
        ('"trustTier":"trusted-knowledge"', '"trustTier":"system-policy"', "hash"),
        ('"classification":"public"', '"classification":"restricted"', "admitted"),
        ('"subject":"ana"', '"subject":"bob"', "scope"),
        ('"items":', '"items": ', "canonical"),
        ('"items":', '"Items":', "schema"),
    ],
)
def test_a_tampered_copy_of_a_snapshot_fails(
    world: World,
    answers: list[httpx.Response],
    tmp_path: Path,
    old: str,
    new: str,
    check: str,
) -> None:
    copy, ref = tmp_path / "snapshot.json", answers[0].json()["hash"]
    text = answers[0].text
    assert old in text
    copy.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert check in _failed(_verify(world, ref, "--file", str(copy)))


def test_an_untouched_copy_of_a_snapshot_passes(
    world: World, answers: list[httpx.Response], tmp_path: Path
) -> None:
    copy = tmp_path / "snapshot.json"
    copy.write_bytes(answers[0].content)
    result = _verify(world, answers[0].json()["hash"], "--file", str(copy))
    assert _failed(result) == set(), result.stdout


def test_the_verifier_fails_for_what_it_cannot_read(world: World) -> None:
    assert _failed(_verify(world, f"sha256:{'0' * 64}")) == {"readable"}


def test_everything_reads_the_same_after_a_restart(
    world: World, answers: list[httpx.Response], documents: list[Path]
) -> None:
    paths = [f"/snapshots/{answer.json()['hash']}" for answer in answers]
    parts = ("/contents", "/prompt", "/report", "/verify")
    with world.client() as client:
        before = [client.get(path + part).content for path in paths[:4] for part in parts]
        index = client.get("/index").content
    # The server ends in good order and then lets the signal have its way.
    assert world.service.stop() in (0, -signal.SIGTERM)
    with pytest.raises(httpx.TransportError), world.client() as client:
        client.get("/healthz")
    world.service.start()
    with world.client() as client:
        for path, answer in zip(paths, answers, strict=True):
            assert client.get(path).content == answer.content
        after = [client.get(path + part).content for path in paths[:4] for part in parts]
        assert after == before
        assert client.get("/index").content == index
        for path in paths[::3]:
            assert client.get(f"{path}/verify").json()["ok"] is True
        for request, answer in zip(REQUESTS[:6], answers, strict=False):
            repeat = client.post("/snapshots", json=request)
            assert (repeat.status_code, repeat.content) == (200, answer.content)
        again = client.post("/snapshots", params={"refresh": "true"}, json=REQUESTS[7])
        assert (again.status_code, again.content) == (200, answers[7].content)
        unchanged = client.put("/sources", json={"sources": [_source(documents[0])]})
        assert unchanged.json()["sources"][0]["unchanged"] is True


def test_the_log_tells_no_text_and_no_token(world: World, answers: list[httpx.Response]) -> None:
    log = world.service.log.read_text()
    assert not [query for query in QUESTIONS if query in log]
    assert "Bearer" not in log
    assert "Traceback" not in log
