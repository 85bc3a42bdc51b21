"""Every field of every call, from the OpenAPI document: a new field is found by itself."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Path = tuple[str, ...]
"""Names of members; `*` stands for the one entry of an array."""

METHODS = ("get", "put", "post", "delete", "patch")
USUAL = {"project": "booking", "text": "words about booking"}
"""Members that are sent also where they are not required, unless their other form is filled."""
INSTEAD_OF_TEXT = "chunks"


FORMATS = {
    "uuid": "6f1c0c5e-0a57-4a3e-9d7e-2f6f5f0b8a11",
    "date-time": "2030-01-31T09:30:00Z",
}


@dataclass(frozen=True)
class Operation:
    """One call; `parameters` are those of its path and query that take a text."""

    document: Json
    method: str
    path: str
    description: Json

    @property
    def name(self) -> str:
        return str(self.description["operationId"])

    @property
    def body(self) -> Json | None:
        content = self.description.get("requestBody", {}).get("content", {})
        schema: Json | None = content.get("application/json", {}).get("schema")
        return schema

    def parameters(self, place: str) -> list[Json]:
        return [one for one in self.description.get("parameters", []) if one["in"] == place]

    def string_fields(self) -> list[Path]:
        """The places in the body where a string may stand."""
        return sorted(set(self._strings(self.body, ()))) if self.body else []

    def smallest_body(self, path: Path = (), value: str = "", *, name: str = "plain") -> Any:
        """A body that is accepted, with `value` at `path` and nothing else that is optional.

        Required strings that may be anything are `name`.
        """
        assert self.body
        return _Smallest(self._plain, name).of(self.body, path, value)

    def _strings(self, schema: Json, at: Path) -> Iterator[Path]:
        schema = self._plain(schema)
        if schema.get("type") == "string":
            yield at
        for name, member in schema.get("properties", {}).items():
            yield from self._strings(member, (*at, name))
        if "items" in schema:
            yield from self._strings(schema["items"], (*at, "*"))

    def _plain(self, schema: Json) -> Json:
        """The schema behind references and alternatives with null."""
        while True:
            if "$ref" in schema:
                schema = self.document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
            elif "anyOf" in schema:
                [schema] = [one for one in schema["anyOf"] if one.get("type") != "null"]
            else:
                return schema


def operations(document: Json) -> list[Operation]:
    return [
        Operation(document, method, path, item[method])
        for path, item in sorted(document["paths"].items())
        for method in METHODS
        if method in item
    ]


@dataclass(frozen=True)
class _Smallest:
    plain: Callable[[Json], Json]
    name: str

    def of(self, schema: Json, path: Path, value: str) -> Any:
        schema = self.plain(schema)
        kind = schema.get("type")
        if kind == "string":
            return value if value and not path else self._string(schema)
        if kind == "array":
            needed = bool(path) or schema.get("minItems", 0) > 0
            return [self.of(schema["items"], path[1:], value)] if needed else []
        if kind != "object":
            return schema.get("minimum", 1) if kind in ("integer", "number") else True
        wanted = {*schema.get("required", []), *path[:1]}
        wanted |= {name for name in USUAL if name in schema["properties"]}
        if INSTEAD_OF_TEXT in path[:1]:
            wanted.discard("text")
        return {
            name: self.of(schema["properties"][name], path[1:], value)
            if path[:1] == (name,)
            else self.of(schema["properties"][name], (), USUAL.get(name, ""))
            for name in sorted(wanted)
        }

    def _string(self, schema: Json) -> str:
        if "enum" in schema:
            return str(schema["enum"][0])
        if "const" in schema:
            return str(schema["const"])
        if "format" in schema:
            return FORMATS[schema["format"]]
        for text in (self.name, "user:ana", "en", "text/plain", "sha256:" + "0" * 64):
            if re.search(schema.get("pattern", ""), text):
                return text
        raise AssertionError(f"no example is known for {schema}")
