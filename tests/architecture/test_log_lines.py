"""A log line is a constant event name with named values: nothing is pasted into it."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.tree import ROOT, python_files

_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
_EVENT = re.compile(r"[a-z]+([_-][a-z]+)*")


def faults(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        logger = node.func.value
        is_line = isinstance(logger, ast.Name) and logger.id in ("log", "_log")
        if not is_line or node.func.attr not in _LEVELS:
            continue
        event = node.args[0] if len(node.args) == 1 else None
        name = event.value if isinstance(event, ast.Constant) else None
        if not (isinstance(name, str) and _EVENT.fullmatch(name)):
            yield f"line {node.lineno}"
        if any(one.arg in ("exc_info", "stack_info") for one in node.keywords):
            yield f"line {node.lineno}: the text of an exception"


def test_every_log_line_has_a_constant_name() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in python_files("app")
        if (lines := list(faults(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        'log.info(f"read {name}")',
        "_log.error(event)",
        '_log.warning("read %s", name)',
        '_log.warning("Read It")',
        "log.info()",
        '_log.error("failed", exc_info=True)',
    ],
)
def test_the_check_finds_what_is_not_constant(source: str) -> None:
    assert list(faults(source))
