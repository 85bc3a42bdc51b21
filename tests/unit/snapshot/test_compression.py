"""What a report tells of shortened items is enough to have their texts again."""

import json
from typing import Any

import pytest

from app.canonical import canonical_bytes, digest_text
from app.snapshot.compression import COMPRESSION, Compression, compressions

TEXT = "One is here. Two is there. Three is gone."
KEPT = Compression(2, digest_text(TEXT), ((0, 12), (27, 41)))


def report(**changed: Any) -> Any:
    document = {COMPRESSION: {"items": [{**KEPT.canonical(), **changed}]}}
    return json.loads(canonical_bytes(document))


def test_the_text_comes_out_of_the_original_and_the_record() -> None:
    assert compressions(report()) == {2: KEPT}
    assert compressions(report())[2].text(TEXT) == "One is here. … Three is gone."
    assert compressions({}) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"originalHash": "sha256:zz"},
        {"originalHash": 5},
        {"spans": [["0", "12"]]},
        {"spans": [[0, 12.5]]},
        {"spans": [[0]]},
        {"spans": 7},
        {"rank": []},
    ],
    ids=str,
)
def test_a_forged_record_raises_nothing_but_what_readers_expect(changed: Any) -> None:
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError)):
        compressions(report(**changed))
