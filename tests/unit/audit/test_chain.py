"""The chain of seals: whatever is done to an export, the check finds it."""

import copy
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import rfc8785

from app.audit.chain import ChainCheck, Seal, seal_hash
from app.audit.event import AuditEvent, Outcome, instant

Json = dict[str, Any]
Change = Callable[[list[Json]], object]

TENANT = "acme"
START = datetime(2025, 1, 31, 9, 30, tzinfo=UTC)


def event(number: int, **members: Any) -> AuditEvent:
    usual: Json = {
        "id": f"00000000-0000-4000-8000-{number:012}",
        "at": START + timedelta(seconds=number),
        "subject": "ana",
        "agent": "agent:planner",
        "action": "createSnapshot",
        "outcome": Outcome.ALLOWED,
        "code": "assembled",
        "request_id": f"r-{number}",
        "targets": {"snapshot": "sha256:" + "0" * 64, "count": number},
    }
    return AuditEvent(**{**usual, **members})


def export(*sizes: int) -> list[Json]:
    """A chain of seals over so many events each."""
    seals: list[Json] = []
    number, previous = 0, None
    for sequence, size in enumerate(sizes, start=1):
        events = tuple(event(number + at) for at in range(size))
        number += size
        sealed_at = START + timedelta(hours=sequence)
        documents = [one.document() for one in events]
        digest = seal_hash(TENANT, sequence, instant(sealed_at), previous, documents)
        seals.append(dict(Seal(sequence, sealed_at, previous, digest, size, events).document()))
        previous = digest
    return seals


def checked(seals: list[Json], tenant: str = TENANT) -> ChainCheck:
    check = ChainCheck(tenant)
    for seal in seals:
        check.take(seal)
    return check


def test_a_chain_that_nobody_touched_holds() -> None:
    seals = export(3, 1, 2)
    check = checked(seals)
    assert check.faults == []
    assert (check.sequence, check.sealed, check.head) == (3, 6, seals[-1]["hash"])
    assert all(check.holds(seal["hash"]) for seal in seals)
    assert not check.holds("sha256:" + "1" * 64)
    assert check.covers("00000000-0000-4000-8000-000000000005")
    assert not check.covers("00000000-0000-4000-8000-000000000006")


def test_anyone_can_recompute_a_seal() -> None:
    seals = export(2, 2)
    covered = {name: seals[1][name] for name in ("sequence", "sealedAt", "previous", "events")}
    raw = rfc8785.dumps({**covered, "tenant": TENANT})
    assert seals[1]["hash"] == "sha256:" + hashlib.sha256(raw).hexdigest()
    assert seals[1]["previous"] == seals[0]["hash"]
    assert seals[0]["previous"] is None


def test_the_hash_of_a_seal_never_changes() -> None:
    """What was sealed by an older release has to hold under a newer one."""
    assert export(2)[0]["hash"] == (
        "sha256:a04b9fbce6f839a8a3e48e73e42c5f6ee165838f75baca8d7547382f7ea69953"
    )


def test_an_event_without_agent_code_and_request_id_says_nothing_of_them() -> None:
    document = event(1, agent=None, code=None, request_id=None).document()
    assert set(document) == {"id", "at", "subject", "action", "outcome", "targets"}
    assert document["at"] == "2025-01-31T09:30:01.000000Z"


def member(name: str, value: Any) -> Change:
    def change(seals: list[Json]) -> None:
        seals[1]["events"][1][name] = value

    return change


CHANGES: dict[str, Change] = {
    **{
        f"an event's {name}": member(name, value)
        for name, value in {
            "id": "00000000-0000-4000-8000-999999999999",
            "at": "2025-01-31T09:30:59.000000Z",
            "subject": "bob",
            "agent": "agent:other",
            "action": "getSnapshot",
            "outcome": "refused",
            "code": "repeat",
            "requestId": "r-x",
            "targets": {},
            "further": 1,
            "fraction": 0.5,
        }.items()
    },
    "an event's agent gone": lambda seals: seals[1]["events"][1].pop("agent"),
    "an event dropped": lambda seals: seals[1]["events"].pop(1),
    "an event dropped and the count made to fit": lambda seals: seals[1].update(
        events=seals[1]["events"][:-1], count=len(seals[1]["events"]) - 1
    ),
    "an event repeated": lambda seals: seals[1]["events"].append(seals[1]["events"][0]),
    "an event inserted": lambda seals: seals[1]["events"].insert(0, dict(event(99).document())),
    "events reordered": lambda seals: seals[1]["events"].reverse(),
    "an event moved to another seal": lambda seals: seals[2]["events"].append(
        seals[1]["events"].pop()
    ),
    "no list of events": lambda seals: seals[1].update(events=None),
    "events of another kind": lambda seals: seals[1].update(events=["x"]),
    "the first seal dropped": lambda seals: seals.pop(0),
    "a seal dropped": lambda seals: seals.pop(1),
    "a seal repeated": lambda seals: seals.insert(1, copy.deepcopy(seals[1])),
    "seals reordered": lambda seals: seals.reverse(),
    "another sequence": lambda seals: seals[1].update(sequence=7),
    "another time of sealing": lambda seals: seals[1].update(sealedAt="2025-01-31T09:30:00Z"),
    "another seal before it": lambda seals: seals[1].update(previous="sha256:" + "1" * 64),
    "no seal before it": lambda seals: seals[1].update(previous=None),
    "another hash": lambda seals: seals[1].update(hash="sha256:" + "1" * 64),
    "no hash": lambda seals: seals[1].pop("hash"),
    "another count": lambda seals: seals[1].update(count=17),
    "a sequence of another kind": lambda seals: seals[1].update(sequence="2"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_export_is_found_out(name: str) -> None:
    seals = export(3, 3, 3)
    CHANGES[name](seals)
    assert checked(seals).faults


def test_a_seal_that_was_made_anew_breaks_the_one_after_it() -> None:
    seals = export(2, 2, 2)
    forged = seals[1]
    forged["events"][0]["subject"] = "bob"
    forged["hash"] = seal_hash(TENANT, 2, forged["sealedAt"], forged["previous"], forged["events"])
    assert checked(seals).faults == ["seal 3: does not name the seal before it"]


def test_the_chain_of_another_tenant_does_not_pass_for_this_ones() -> None:
    assert checked(export(2), tenant="globex").faults


def test_a_chain_that_was_cut_off_holds_but_lacks_the_head_that_was_noted() -> None:
    seals = export(2, 2)
    check = checked(seals[:1])
    assert check.faults == []
    assert not check.holds(seals[1]["hash"])
