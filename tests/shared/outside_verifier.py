"""Checks snapshots as an outsider would: over HTTP, with none of the service's code.

    CTXSNAP_TOKEN=… python outside_verifier.py http://127.0.0.1:8080 sha256:… [more references]

Prints JSON, `{"ok": …, "snapshots": {reference: [{"name", "ok", "detail"}]}}`; the exit code
is 1 if a check fails. What it relies on: the published schemas, RFC 8785, SHA-256, RFC 9562,
and tiktoken with the rank files that travel with the project.
"""

import argparse
import hashlib
import json
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import httpx
import rfc8785
import tiktoken
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

Json = dict[str, Any]
Check = tuple[str, bool, str]

PROJECT = Path(__file__).parents[2]
MESSAGE_TOKENS = 3
"""What a chat message costs beside its role and its content."""


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> bytes:
    return rfc8785.dumps(value)


@cache
def schema_validator(folder: Path) -> Draft202012Validator:
    snapshot, scope = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("context-snapshot.schema.json", "execution-scope.schema.json")
    )
    registry: Registry[Json] = Registry().with_resource(scope["$id"], Resource.from_contents(scope))
    return Draft202012Validator(
        snapshot, registry=cast("Any", registry), format_checker=Draft202012Validator.FORMAT_CHECKER
    )


def check_document(raw: bytes, ref: str, schemas: Path) -> Iterator[Check]:
    """What the bytes alone can tell."""
    document = json.loads(raw)
    errors = [error.message for error in schema_validator(schemas).iter_errors(document)]
    yield "schema", not errors, errors[0] if errors else "valid"
    yield "canonical", canonical(document) == raw, "the bytes are the RFC 8785 form"
    covered = {name: document[name] for name in document if name not in ("hash", "snapshotId")}
    digest = hashlib.sha256(canonical(covered)).digest()
    expected = f"sha256:{digest.hex()}"
    yield "hash", document["hash"] == expected, expected
    bits = bytearray(digest[:16])
    bits[6], bits[8] = 0x80 | bits[6] & 0x0F, 0x80 | bits[8] & 0x3F
    identifier = str(uuid.UUID(bytes=bytes(bits)))
    yield "id", document["snapshotId"] == identifier, identifier
    yield "reference", ref.lower() in (expected, identifier), f"{ref} was asked for"
    yield from check_budget(document)


def check_budget(document: Json) -> Iterator[Check]:
    budget, items = document["budget"], document["items"]
    total = sum(item["tokens"] for item in items)
    yield "sum", total == budget["usedTokens"], f"the items sum to {total}"
    spent = total + budget["reservedForOutput"]
    yield "budget", spent <= budget["maxTokens"], f"{spent} of {budget['maxTokens']}"
    ranks = [item["rank"] for item in items]
    yield "ranks", ranks == list(range(1, len(items) + 1)), f"{len(items)} items"


def check_contents(document: Json, contents: list[Json]) -> Iterator[Check]:
    items = document["items"]
    same = [(one["rank"], one["contentHash"]) for one in contents] == [
        (item["rank"], item["contentHash"]) for item in items
    ]
    yield "contents", same, f"{len(contents)} texts for {len(items)} items"
    wrong = [
        one["rank"] for one in contents if digest_of(one["text"].encode()) != one["contentHash"]
    ]
    yield "content hashes", not wrong, f"ranks {wrong} differ" if wrong else "all match"


def check_prompt(document: Json, answer: httpx.Response, contents: list[Json]) -> Iterator[Check]:
    budget = document["budget"]
    encoding = tiktoken.get_encoding(budget["encoding"])
    if budget["format"] == "messages":
        messages = answer.json()["messages"]
        parts = [text for one in messages for text in (one["role"], one["content"])]
        whole, overhead = "".join(parts), MESSAGE_TOKENS * len(messages)
    else:
        parts, overhead = [answer.content.decode()], 0
        whole = parts[0]
    counted = overhead + sum(len(encoding.encode_ordinary(part)) for part in parts)
    yield "tokens", counted == budget["usedTokens"], f"the prompt counts {counted}"
    missing = [one["rank"] for one in contents if one["text"] not in whole]
    yield "prompt", not missing, f"lacks ranks {missing}" if missing else "holds every text"


def check_report(document: Json, report: Json) -> Iterator[Check]:
    bound, scope = document["budget"]["assembly"], document["scope"]
    yield "report", bound["reportHash"] == digest_of(canonical(report)), bound["reportHash"]
    strategy = digest_of(canonical(report["strategy"]))
    yield "strategy", bound["strategyHash"] == strategy, strategy
    predicate = report["scope"]["predicate"]
    expected = digest_of(canonical(predicate))
    yield "predicate", scope["policy"]["predicateHash"] == expected, expected
    given = {leg["predicateHash"] for leg in report["retrievers"]}
    yield "pushdown", given <= {expected}, f"{len(report['retrievers'])} retrievers"
    recorded = {name: value for name, value in report["scope"].items() if name != "predicate"}
    yield "scope", recorded == scope, "the report speaks of the same scope"
    outside = [item["rank"] for item in document["items"] if not is_admitted(item, predicate)]
    yield "admitted", not outside, f"ranks {outside} are outside" if outside else "every item"


def is_admitted(item: Json, predicate: Json) -> bool:
    levels = ["public", "internal", "confidential", "restricted"]
    projects = predicate["projects"]
    return (
        (projects == ["*"] or item["project"] in projects)
        and item["class"] in predicate["classes"]
        and levels.index(item["classification"]) <= levels.index(predicate["maxClassification"])
    )


def verify(client: httpx.Client, ref: str, schemas: Path, stored: bytes | None) -> Iterator[Check]:
    """All checks of one snapshot; `stored` are bytes to check in place of those served."""

    def fetch(part: str) -> httpx.Response:
        return client.get(f"/snapshots/{ref}{part}").raise_for_status()

    served = fetch("")
    yield "entity tag", served.headers["etag"] == f'"{served.json()["hash"]}"', "is the hash"
    raw = served.content if stored is None else stored
    yield from check_document(raw, ref, schemas)
    document = json.loads(raw)
    contents = fetch("/contents").json()["contents"]
    yield from check_contents(document, contents)
    yield from check_prompt(document, fetch("/prompt"), contents)
    yield from check_report(document, fetch("/report").json()["report"])


def verdict(checks: Iterator[Check]) -> list[Json]:
    """The checks made; one that cannot go on is a failed one."""
    made: list[Json] = []
    try:
        for name, ok, detail in checks:
            made.append({"name": name, "ok": ok, "detail": detail})
    except (httpx.HTTPError, KeyError, TypeError, ValueError, AttributeError) as error:
        made.append({"name": "readable", "ok": False, "detail": f"{type(error).__name__}: {error}"})
    return made


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(description="Check snapshots from outside.")
    parser.add_argument("url", help="the service's address")
    parser.add_argument("refs", nargs="+", metavar="ref", help="a hash or a snapshotId")
    parser.add_argument("--token", default=environment.get("CTXSNAP_TOKEN", ""))
    parser.add_argument("--file", type=Path, help="bytes to check in place of those served")
    parser.add_argument("--schemas", type=Path, default=PROJECT / "openapi" / "schemas")
    given = parser.parse_args(arguments)
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(PROJECT / "app" / "adapters" / "encodings"))
    stored = given.file.read_bytes() if given.file else None
    headers = {"Authorization": f"Bearer {given.token}"}
    with httpx.Client(base_url=given.url, headers=headers, timeout=30, trust_env=False) as client:
        found = {ref: verdict(verify(client, ref, given.schemas, stored)) for ref in given.refs}
    passed = all(check["ok"] for checks in found.values() for check in checks)
    print(json.dumps({"ok": passed, "snapshots": found}, indent=2, ensure_ascii=False))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
