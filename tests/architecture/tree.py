"""The checkout as the architecture tests see it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGES = ("indexing", "packing", "retrieval", "scope", "snapshot", "strategy")
"""The packages between the scope and the snapshot: no I/O, clock, randomness or global."""


def python_files(*folders: str) -> tuple[Path, ...]:
    """Every module below the folders of the checkout, sorted."""
    return tuple(sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")))


def dotted_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of all that a module imports or reaches through its imports.

    Builtins are given where they are called, as `hash()`: fields may have their names.
    """
    module = ast.parse(source)
    imported: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                imported[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute | ast.Name) and (name := _dotted(node)):
            head, _, rest = name.partition(".")
            if head in imported:
                yield node.lineno, ".".join(filter(None, (imported[head], rest)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, f"{node.func.id}()"


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := _dotted(node.value)):
        return f"{head}.{node.attr}"
    return None
