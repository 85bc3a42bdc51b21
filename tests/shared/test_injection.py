"""Prompt injections of others, and imitations of the fence, stay in their fence.

The attack strings stand at the start, in the middle and at the end of real mails, tables and
answers about code, indexed in the two lowest tiers beside trusted texts. What the long run
counts is the table in docs/security.md.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path

import pytest

from tests.api.prompt_fences import left_their_fence
from tests.api.service import Api, Json
from tests.api.test_fence import (
    ENCODINGS,
    FORMATS,
    TRUSTED,
    assembled,
    expected,
    imitations,
    whole,
)

pytestmark = pytest.mark.shared_data

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
TIERS = ("untrusted-external", "tool-result")
POSITIONS = ("start", "middle", "end")
PINS_PER_SNAPSHOT = 300

Key = tuple[str, str, str]
"""Kind of attack, position, format."""


@dataclass(frozen=True)
class Attack:
    kind: str
    position: str
    text: str

    def source(self, number: int, tier: str) -> Json:
        return whole(f"{tier}/{number}", self.text, tier)


def _strings(bipia: Path, kind: str) -> list[str]:
    files = [bipia / f"{kind}_attack_{part}.json" for part in ("test", "train")]
    return [
        text
        for file in files
        for group in json.loads(file.read_text(encoding="utf-8")).values()
        for text in group
    ]


def _documents(bipia: Path, kind: str) -> list[str]:
    lines = [
        line
        for file in sorted((bipia / kind).glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    contexts = [json.loads(line)["context"] for line in lines]
    return [one if isinstance(one, str) else "\n".join(one) for one in contexts]


def _placed(attack: str, document: str, position: str) -> str:
    lines = document.split("\n")
    at = {"start": 0, "middle": len(lines) // 2, "end": len(lines)}[position]
    return "\n".join([*lines[:at], attack, *lines[at:]])


def _attacks(bipia: Path, seen: str) -> Iterator[Attack]:
    """Every string at every position, each in the next document of its kind."""
    mails, tables, answers = (_documents(bipia, kind) for kind in ("email", "table", "code"))
    texts, codes = _strings(bipia, "text"), _strings(bipia, "code")
    for kind, strings, documents in (
        ("instruction in a mail", texts, mails),
        ("instruction in a table", texts, tables),
        ("code in an answer about code", codes, answers),
        ("imitation of the fence in a mail", list(imitations(seen).values()), mails),
    ):
        for (attack, position), document in zip(
            product(strings, POSITIONS), cycle(documents), strict=False
        ):
            yield Attack(kind, position, _placed(attack, document, position))


async def _seen(api: Api) -> str:
    """A prompt that the attacker has seen."""
    await api.index(*TRUSTED)
    prompt = await assembled(api, list(TRUSTED))
    assert isinstance(prompt, str)
    return prompt


async def _try(api: Api, placed: list[tuple[Attack, Json]]) -> tuple[Counter[Key], Counter[Key]]:
    """How many were tried, and how many left their fence, in all formats and encodings."""
    sources = [source for _, source in placed]
    await api.index(*sources)
    tried: Counter[Key] = Counter()
    left: Counter[Key] = Counter()
    for format_, encoding in product(FORMATS, ENCODINGS):
        everything = [*TRUSTED, *sources]
        prompt = await assembled(api, everything, format=format_, encoding=encoding)
        gone = {one.source_id for one in left_their_fence(prompt, expected(everything, format_))}
        assert gone.isdisjoint(source["sourceId"] for source in TRUSTED)
        for attack, source in placed:
            key = attack.kind, attack.position, format_
            tried[key] += 1
            left[key] += source["sourceId"] in gone
    return tried, left


async def test_some_attacks_of_each_kind_and_position_stay_in_their_fence(
    api: Api, shared_data: Path
) -> None:
    attacks = list(_attacks(shared_data / "injection" / "bipia", await _seen(api)))
    # No multiple of three, so that the positions take turns.
    some = list(islice(attacks, 0, None, 31))
    assert len(some) >= 36
    placed = [
        (attack, attack.source(at, tier))
        for at, (attack, tier) in enumerate(zip(some, cycle(TIERS), strict=False))
    ]
    tried, left = await _try(api, placed)
    assert +left == Counter()
    kinds = {(one.kind, one.position) for one in attacks}
    assert set(tried) == {(*one, format_) for one in kinds for format_ in FORMATS}


@pytest.mark.long
async def test_no_attack_leaves_its_fence_and_the_table_says_how_many_were_tried(
    api: Api, shared_data: Path
) -> None:
    attacks = list(_attacks(shared_data / "injection" / "bipia", await _seen(api)))
    placed = [
        (attack, attack.source(at, tier)) for at, attack in enumerate(attacks) for tier in TIERS
    ]
    tried: Counter[Key] = Counter()
    left: Counter[Key] = Counter()
    for start in range(0, len(placed), PINS_PER_SNAPSHOT):
        more_tried, more_left = await _try(api, placed[start : start + PINS_PER_SNAPSHOT])
        tried.update(more_tried)
        left.update(more_left)
    assert +left == Counter()
    rows = [
        f"| {kind} | {position} "
        + "".join(
            f"| {tried[kind, position, format_]:,} | {left[kind, position, format_]} "
            for format_ in FORMATS
        )
        + "|"
        for kind, position in dict.fromkeys((one.kind, one.position) for one in attacks)
    ]
    documented = SECURITY.read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if row not in documented] == []
