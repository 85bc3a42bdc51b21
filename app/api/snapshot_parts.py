"""What POST /snapshots can send along with a snapshot, as the calls that read it give it."""

from collections.abc import Iterable
from typing import Annotated

import orjson
from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.canonical import JsonValue
from app.errors import NotFoundError
from app.pipeline import Answer
from app.reading import ItemText, SnapshotReader
from app.scope.grant import Grant
from app.snapshot.assembly import Assembly
from app.storage.snapshots import StoredSnapshot

PARTS = ("contents", "report", "prompt")


def _parts_once(value: str) -> str:
    names = value.split(",")
    if len(set(names)) < len(names) or not set(names) <= set(PARTS):
        raise PydanticCustomError(
            "include",
            "Must name some of {known}, each once, with commas between.",
            {"known": ", ".join(PARTS)},
        )
    return value


_ANY_PART = f"(?:{'|'.join(PARTS)})"
Include = Annotated[
    str,
    AfterValidator(_parts_once),
    WithJsonSchema({"type": "string", "pattern": f"^{_ANY_PART}(?:,{_ANY_PART})*$"}),
]
"""Names of parts with commas between, such as `contents,prompt`."""


def contents_document(texts: Iterable[ItemText]) -> list[dict[str, object]]:
    return [
        {
            "rank": one.rank,
            "contentHash": one.content_hash,
            "text": one.text,
            "erased": one.text is None,
        }
        for one in texts
    ]


def prompt_document(rendered: JsonValue) -> JsonValue:
    """A text as it is, messages in an object of their own."""
    return rendered if isinstance(rendered, str) else {"messages": rendered}


async def with_parts(
    answer: Answer, include: str | None, grant: Grant, reader: SnapshotReader
) -> bytes:
    """`{"snapshot": …}` around the snapshot's own bytes, and what `include` names beside it.

    The prompt of a snapshot that has lost a text is null; its contents tell which.
    """
    asked = (include or "").split(",")
    members = [b'"snapshot":' + answer.canonical]
    for name in PARTS:
        if name in asked:
            part = await _part(name, answer.source, grant, reader)
            members.append(b'"%b":%b' % (name.encode(), part))
    return b"{%b}" % b",".join(members)


async def _part(
    name: str, source: Assembly | StoredSnapshot, grant: Grant, reader: SnapshotReader
) -> bytes:
    if name == "report":
        return source.report
    if name == "contents":
        return orjson.dumps(contents_document(await _texts(source, grant, reader)))
    return orjson.dumps(await _prompt(source, grant, reader))


async def _texts(
    source: Assembly | StoredSnapshot, grant: Grant, reader: SnapshotReader
) -> Iterable[ItemText]:
    if isinstance(source, StoredSnapshot):
        return await reader.contents(grant, source)
    return [
        ItemText(item.rank, item.content_hash, block.text)
        for item, block in zip(source.items, source.blocks, strict=True)
    ]


async def _prompt(
    source: Assembly | StoredSnapshot, grant: Grant, reader: SnapshotReader
) -> JsonValue:
    if isinstance(source, Assembly):
        return prompt_document(source.rendered)
    try:
        return prompt_document(await reader.prompt(grant, source))
    except NotFoundError:
        return None
