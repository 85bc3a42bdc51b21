"""Published strings and JSON texts through the real service: kept as they are, or refused.

A string goes in as a chunk, as a text to be cut, as an inline item, as a name and as a query,
and comes out of the contents, the prompt and the verification unchanged.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.adapters.development_key import load_or_create_development_key
from tests.api.counting import count, count_messages
from tests.shared.service_process import ServiceProcess, free_port
from tests.tokens import TokenFactory

pytestmark = [pytest.mark.shared_data, pytest.mark.long]

Json = dict[str, Any]

JSON, NDJSON = "application/json", "application/x-ndjson"
BUDGETS = [
    {"maxTokens": 2**31 - 1, "encoding": encoding, "format": format_}
    for encoding in ("cl100k_base", "o200k_base", "o200k_harmony")
    for format_ in ("text", "messages")
]
# JSON all the same, but deeper than what is taken, or with a NUL, which cannot be stored.
DEEP = {"n_structure_100000_opening_arrays.json", "n_structure_open_array_object.json"}
NO_TEXT = {"y_string_null_escape.json"}


@dataclass
class Tenant:
    """Calls for one tenant of the running service."""

    client: httpx.Client

    def send(self, method: str, path: str, body: bytes, media_type: str) -> httpx.Response:
        return self.client.request(method, path, content=body, headers={"content-type": media_type})

    def index(self, sources: list[Json]) -> None:
        lines = "".join(json.dumps(one) + "\n" for one in sources)
        answer = self.send("PUT", "/sources", lines.encode(), NDJSON)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["sources"]) == len(sources)

    def ask(self, **members: Any) -> httpx.Response:
        ids = {"runId": str(uuid.uuid4()), "attemptId": str(uuid.uuid4())}
        return self.client.post("/snapshots", json={**ids, **members})

    def assemble(self, **members: Any) -> Json:
        answer = self.ask(**members)
        assert answer.status_code == 201, answer.text
        snapshot: Json = answer.json()
        return snapshot

    def read(self, snapshot: Json, part: str) -> httpx.Response:
        answer = self.client.get(f"/snapshots/{snapshot['hash']}/{part}")
        assert answer.status_code == 200, answer.text
        return answer

    def texts(self, snapshot: Json) -> dict[tuple[str, str], str]:
        """The contents by source and chunk; the snapshot must verify too."""
        assert self.read(snapshot, "verify").json()["ok"]
        contents = self.read(snapshot, "contents").json()["contents"]
        items = [(item["sourceId"], item["chunkId"]) for item in snapshot["items"]]
        return dict(zip(items, (one["text"] for one in contents), strict=True))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("vectors"), free_port()) as running:
        yield running


@pytest.fixture
def tenant(service: ServiceProcess) -> Iterator[Tenant]:
    tokens = TokenFactory(load_or_create_development_key(service.data_dir))
    headers = tokens.headers(f"tenant-{uuid.uuid4()}")
    with httpx.Client(base_url=service.url, headers=headers, timeout=60, trust_env=False) as client:
        yield Tenant(client)


@pytest.fixture(scope="module")
def strings(shared_data: Path) -> list[str]:
    vectors = shared_data / "vectors"
    naughty = json.loads((vectors / "naughty-strings" / "blns.json").read_bytes())
    # As bytes: several of these texts hold what str would take for the end of a line.
    lines = (vectors / "tokenizer.jsonl").read_bytes().splitlines()
    found = sorted({*naughty, *(json.loads(line)["text"] for line in lines)})
    assert len(found) > 600
    return found


@pytest.fixture(scope="module")
def suite(shared_data: Path) -> dict[str, bytes]:
    folder = shared_data / "vectors" / "json-test-suite" / "test_parsing"
    found = {file.name: file.read_bytes() for file in sorted(folder.glob("*.json"))}
    assert len(found) > 300
    return found


def _source(name: str, **members: Any) -> Json:
    usual = {"sourceId": name, "sourceRevision": "1", "class": "documents", "project": "vectors"}
    return {**usual, **members}


def _pins(sources: list[Json]) -> list[Json]:
    return [{"project": "vectors", "sourceId": one["sourceId"]} for one in sources]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda one: f"{one['encoding']} {one['format']}")
def test_every_string_comes_back_from_contents_and_prompt(
    tenant: Tenant, strings: list[str], budget: Json
) -> None:
    chunked = [
        _source(f"chunk {at}", chunks=[{"chunkId": "0", "text": text}])
        for at, text in enumerate(strings)
    ]
    tenant.index(chunked)
    inline = [
        _source(f"inline {at}", **{"class": "task", "chunkId": "0", "text": text})
        for at, text in enumerate(strings)
    ]
    snapshot = tenant.assemble(items=inline, pins=_pins(chunked), budget=budget)
    texts = tenant.texts(snapshot)
    for kind in ("chunk", "inline"):
        assert [texts[f"{kind} {at}", "0"] for at in range(len(strings))] == strings
    prompt = tenant.read(snapshot, "prompt")
    used, encoding = snapshot["budget"]["usedTokens"], snapshot["budget"]["encoding"]
    if budget["format"] == "text":
        rendered = prompt.content.decode()
        assert count(rendered, encoding) == used
    else:
        messages = prompt.json()["messages"]
        rendered = "".join(one["content"] for one in messages)
        assert count_messages(messages, encoding) == used
    assert [text for text in strings if rendered.count(f'">\n{text}\n</item-') < 2] == []


def test_every_string_is_cut_without_loss(tenant: Tenant, strings: list[str]) -> None:
    whole = [_source(f"text {at}", text=text) for at, text in enumerate(strings)]
    tenant.index(whole)
    blank = {f"text {at}" for at, text in enumerate(strings) if not text.strip()}
    pins = [pin for pin in _pins(whole) if pin["sourceId"] not in blank]
    texts = tenant.texts(tenant.assemble(pins=pins, budget=BUDGETS[0]))
    for at, text in enumerate(strings):
        parts = [part for (name, _), part in texts.items() if name == f"text {at}"]
        assert "".join("".join(parts).split()) == "".join(text.split()), text
        assert all(part in text for part in parts)


def test_every_string_is_a_name_or_is_refused_as_one(tenant: Tenant, strings: list[str]) -> None:
    named, refused = [], []
    for text in strings:
        one = _source(text, sourceRevision=text, chunks=[{"chunkId": text, "text": text}])
        answer = tenant.client.put("/sources", json={"sources": [one | {"provenance": text}]})
        if answer.status_code == 200:
            named.append(one)
            continue
        refused.append(text)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"].startswith("/sources/0/")
    # The empty one, and those beyond the limit of a revision or of a source's id.
    assert all(not text or len(text) > 256 for text in refused)
    snapshot = tenant.assemble(pins=_pins(named), budget=BUDGETS[0])
    assert tenant.texts(snapshot) == {(one["sourceId"],) * 2: one["sourceId"] for one in named}
    for item in snapshot["items"]:
        assert item["sourceId"] == item["sourceRevision"] == item["chunkId"] == item["provenance"]
    for one in named[::20]:
        parameters = {"project": "vectors", "sourceId": one["sourceId"]}
        [listed] = tenant.client.get("/sources", params=parameters).json()["sources"]
        assert listed["sourceId"] == listed["sourceRevision"] == one["sourceId"]
        assert tenant.client.delete("/sources", params=parameters).status_code == 200


def test_every_string_can_be_asked_for(tenant: Tenant, strings: list[str]) -> None:
    tenant.index([_source("all", chunks=[{"chunkId": "0", "text": "\n".join(strings)}])])
    for text in strings:
        answer = tenant.ask(query=text, language="en")
        if answer.status_code != 201:
            assert answer.status_code == 422, answer.text
            assert answer.json()["errors"][0]["pointer"] == "/query"
            assert not text


def _operations(tenant: Tenant) -> list[tuple[str, str, str]]:
    """Method, path and media type of whatever takes a body."""
    document = tenant.client.get("/openapi.json").json()
    return [
        (method.upper(), path.replace("{ref}", f"sha256:{'0' * 64}"), media_type)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for media_type in operation.get("requestBody", {}).get("content", {})
    ]


def test_every_text_of_the_suite_is_refused_by_every_operation(
    tenant: Tenant, suite: dict[str, bytes]
) -> None:
    """None of them is what an operation wants; what is no JSON is told so."""
    operations = _operations(tenant)
    assert {("POST", "/snapshots", JSON), ("PUT", "/sources", JSON)} < set(operations)
    assert ("PUT", "/sources", NDJSON) in operations
    wrong = {}
    for method, path, media_type in operations:
        for name, body in suite.items():
            answer = tenant.send(method, path, body, media_type)
            is_malformed = name.startswith("n_") and name not in DEEP
            expected = {400} if is_malformed else {400, 422}
            if answer.status_code not in expected or not answer.json()["detail"]:
                wrong[method, path, media_type, name] = answer.text
    assert wrong == {}
    assert tenant.client.get("/index").json()["sources"] == 0
    assert tenant.client.get("/snapshots").json()["snapshots"] == []


def test_strings_of_the_suite_are_read_as_the_suite_says(
    tenant: Tenant, suite: dict[str, bytes]
) -> None:
    """Each as the text of a chunk, written in the body just as the suite writes it."""
    shell = json.dumps({"sources": [_source("…", chunks=[{"chunkId": "0", "text": 7}])]})
    before, after = shell.encode().split(b"7")
    kept = {}
    for name, array in suite.items():
        if not name.startswith(("y_string", "n_string")) or not array.startswith(b"["):
            continue
        literal = array.strip()[1:].removesuffix(b"]")
        answer = tenant.send("PUT", "/sources", before + literal + after, JSON)
        if name.startswith("n_") or name in NO_TEXT:
            assert answer.status_code in (400, 422), (name, answer.text)
            continue
        assert answer.status_code == 200, (name, answer.text)
        snapshot = tenant.assemble(pins=_pins([_source("…")]), budget=BUDGETS[0])
        [kept[name]] = tenant.texts(snapshot).values()
    assert len(kept) > 40
    assert kept == {name: json.loads(suite[name])[0] for name in kept}
