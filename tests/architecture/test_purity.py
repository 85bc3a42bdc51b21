"""The stages are pure: the same arguments give the same result, in any process."""

import pytest

from tests.architecture.tree import ROOT, STAGES, dotted_names, python_files

SOURCES_OF_CHANCE = (
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "hash()",  # differs from process to process for texts
    "id()",
    "locale",
    "numpy.random",
    "os.environ",
    "os.environb",
    "os.getenv",
    "os.getpid",
    "os.urandom",
    "platform",
    "random",
    "secrets",
    "socket",
    "tempfile",
    "time",
    "uuid.getnode",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid.uuid6",
    "uuid.uuid7",
    "uuid.uuid8",
)


def chance_in(source: str) -> list[str]:
    return [
        f"line {line}: {name}"
        for line, name in sorted(set(dotted_names(source)))
        if any(name == banned or name.startswith(banned + ".") for banned in SOURCES_OF_CHANCE)
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_reads_no_clock_no_randomness_and_no_environment(stage: str) -> None:
    modules = python_files(f"app/{stage}")
    assert modules
    found = {
        str(path.relative_to(ROOT)): chance
        for path in modules
        if (chance := chance_in(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import random as r",
        "from time import monotonic",
        "import os\nos.environ.get('A')",
        "from os import environ",
        "from uuid import uuid4",
        "import uuid as u\nu.uuid4()",
        "import datetime as dt\ndt.datetime.now(dt.UTC)",
        "from datetime import datetime\ndatetime.now()",
        "import numpy as np\nnp.random.default_rng()",
        "key = hash('a')",
    ],
)
def test_the_check_finds_what_differs_from_run_to_run(source: str) -> None:
    assert chance_in(source)


@pytest.mark.parametrize(
    "source",
    [
        "from uuid import UUID\nUUID(int=1)",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "import os.path\nos.path.join('a')",
        "class A:\n    def of(self) -> int:\n        return self.time.id",
        "class A:\n    id: int\n    hash: str",
    ],
)
def test_the_check_lets_pass_what_depends_on_arguments_alone(source: str) -> None:
    assert chance_in(source) == []
