"""Property 3: hash and id can be recomputed by anyone, and bind the question."""

import hashlib
import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import settings as examples

from app.canonical import canonical_bytes
from tests.property.service import Service
from tests.property.worlds import Caller, Json, situations


def _recompute(document: Json) -> tuple[str, str]:
    """What the contract says, in a few lines that use none of the service's code."""
    covered = {k: v for k, v in document.items() if k not in ("hash", "snapshotId")}
    digest = hashlib.sha256(rfc8785.dumps(covered)).digest()
    raw = bytearray(digest[:16])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    return "sha256:" + digest.hex(), str(uuid.UUID(bytes=bytes(raw)))


def _floats(value: Any) -> list[float]:
    if isinstance(value, float):
        return [value]
    if isinstance(value, dict):
        return [found for part in value.values() for found in _floats(part)]
    if isinstance(value, list):
        return [found for part in value for found in _floats(part)]
    return []


@examples(max_examples=60)
@given(situation=situations())
async def test_anyone_can_recompute_hash_and_id(
    service: Service, situation: tuple[list[Json], Caller, Json]
) -> None:
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    answer = await service.assemble(tenant, caller, request)
    document = answer.json()
    assert (document["hash"], document["snapshotId"]) == _recompute(document)
    assert uuid.UUID(document["snapshotId"]).version == 8
    assert answer.content == rfc8785.dumps(document)
    assert _floats(document) == []


@examples(max_examples=25)
@given(situation=situations())
async def test_the_hash_binds_request_strategy_and_report(
    service: Service, situation: tuple[list[Json], Caller, Json]
) -> None:
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    claims = caller.claims()
    snapshot = (await service.assemble(tenant, caller, request)).json()
    bound = snapshot["budget"]["assembly"]
    raw = (await service.get(tenant, f"/snapshots/{snapshot['hash']}/report", **claims)).content
    report = json.loads(raw)["report"]
    digest = "sha256:" + hashlib.sha256(rfc8785.dumps(report)).hexdigest()
    assert bound["reportHash"] == digest
    strategy = "sha256:" + hashlib.sha256(rfc8785.dumps(report["strategy"])).hexdigest()
    assert bound["strategyHash"] == strategy
    other = {**request, "query": request["query"] + " elsewhere"}
    changed = (await service.assemble(tenant, caller, other)).json()
    assert changed["budget"]["assembly"]["requestHash"] != bound["requestHash"]
    assert changed["hash"] != snapshot["hash"]


@pytest.mark.shared_data
async def test_canonical_bytes_are_those_of_rfc_8785(shared_data: Path) -> None:
    compared = 0
    for given_file in sorted((shared_data / "vectors" / "jcs" / "input").glob("*.json")):
        expected = (shared_data / "vectors" / "jcs" / "output" / given_file.name).read_bytes()
        value = json.loads(given_file.read_bytes())
        if _floats(value):
            with pytest.raises(TypeError):
                canonical_bytes(value)
            assert rfc8785.dumps(value) == expected.strip()
        else:
            assert canonical_bytes(value) == expected.strip()
        compared += 1
    assert compared >= 5


@pytest.mark.shared_data
async def test_numbers_are_written_as_rfc_8785_says(shared_data: Path) -> None:
    lines = (shared_data / "vectors" / "jcs" / "es6testfile10k.txt").read_text().splitlines()
    for line in lines:
        bits, expected = line.split(",")
        number = struct.unpack(">d", bytes.fromhex(bits.zfill(16)))[0]
        assert rfc8785.dumps(number).decode() == expected
    assert len(lines) == 10_000
