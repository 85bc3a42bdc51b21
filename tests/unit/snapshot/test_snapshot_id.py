"""A snapshot's hash and id follow from its other members, and from nothing else."""

import hashlib
import json
import uuid
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from app.canonical import Digest, digest_from_bytes, digest_to_bytes
from app.snapshot.snapshot import hash_of, snapshot_id_of
from tests.unit.snapshot.materials import assembled, chunk, material, outcome

MEMBERS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1),
    max_size=5,
)


@given(digest=st.binary(min_size=32, max_size=32))
def test_the_id_is_the_first_16_bytes_as_a_uuid_of_version_8(digest: bytes) -> None:
    identifier = uuid.UUID(snapshot_id_of(digest_from_bytes(digest)))
    assert identifier.version == 8
    assert identifier.variant == uuid.RFC_4122
    # All but the version's 4 and the variant's 2 bits are the digest's own.
    free = ~((0xF << 76) | (0x3 << 62)) & (2**128 - 1)
    assert identifier.int & free == int.from_bytes(digest[:16], "big") & free


@pytest.mark.parametrize(
    ("digest", "identifier"),
    [
        ("00" * 32, "00000000-0000-8000-8000-000000000000"),
        ("ff" * 32, "ffffffff-ffff-8fff-bfff-ffffffffffff"),
        (
            "00112233445566778899aabbccddeeff" + "00" * 16,
            "00112233-4455-8677-8899-aabbccddeeff",
        ),
    ],
)
def test_known_digests_have_known_ids(digest: str, identifier: str) -> None:
    assert snapshot_id_of(Digest("sha256:" + digest)) == identifier


@given(raw=st.binary(min_size=32, max_size=32))
def test_a_digest_goes_to_bytes_and_back(raw: bytes) -> None:
    digest = digest_from_bytes(raw)
    assert digest == "sha256:" + raw.hex()
    assert digest_to_bytes(digest) == raw


@given(members=MEMBERS)
def test_the_hash_covers_every_member_but_itself_and_the_id(members: dict[str, Any]) -> None:
    covered = {name: value for name, value in members.items() if name not in ("hash", "snapshotId")}
    expected = "sha256:" + hashlib.sha256(rfc8785.dumps(covered)).hexdigest()
    assert hash_of(members) == expected
    assert hash_of({**members, "hash": "any", "snapshotId": "any"}) == expected
    assert hash_of({**covered, "another": 1}) != expected


def test_a_snapshot_carries_the_hash_and_id_of_its_own_bytes() -> None:
    snapshot = assembled(material(outcome(chunk("a")))).snapshot
    document = json.loads(snapshot.canonical)
    assert document["hash"] == snapshot.hash == hash_of(document)
    assert document["snapshotId"] == snapshot.snapshot_id == snapshot_id_of(snapshot.hash)
    assert snapshot.canonical == rfc8785.dumps(document)
