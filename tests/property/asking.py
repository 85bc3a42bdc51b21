"""What a caller asks and is told, whole, so that the answers in two worlds can be compared."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.property.pairs import Choices, Key, Pair, some_words
from tests.property.service import Service
from tests.property.worlds import CLASSES, PROJECTS, Caller, Json

_REQUEST_ID = "the-same-for-every-request"
"""It is in each answer, and in the body of each refusal."""
_ROOMY_TOKENS = 100_000
_BEYOND = "scope-exceeds-grant"
_WHICH_CHUNK: tuple[Json, ...] = ({}, {}, {"chunkId": "0"}, {"chunkId": "9"})
_LANGUAGES: tuple[Json, ...] = ({}, {}, {"language": "en"}, {"language": "de"})


@dataclass(frozen=True)
class Told:
    """An answer, to its last header and byte."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    document: Any = field(compare=False)


@dataclass(frozen=True)
class Asker:
    """One caller in one tenant."""

    service: Service
    tenant: str
    caller: Caller

    async def ask(
        self, method: str, path: str, *, body: Json | None = None, **parameters: str
    ) -> Told:
        headers = self.service.token.headers(self.tenant, **self.caller.claims())
        answer = await self.service.client.request(
            method,
            path,
            json=body,
            params=parameters,
            headers={**headers, "X-Request-Id": _REQUEST_ID},
        )
        is_json = "json" in answer.headers["content-type"]
        return Told(
            answer.status_code,
            answer.headers.raw,
            answer.content,
            answer.json() if is_json else None,
        )

    async def pages(
        self, path: str, limit: int, between: Callable[[], Awaitable[object]] | None = None
    ) -> list[Told]:
        """A list from its beginning to its end; `between` happens after each page but the last."""
        pages = [await self.ask("GET", path, limit=str(limit))]
        while cursor := pages[-1].document["nextCursor"]:
            if between:
                await between()
            pages.append(await self.ask("GET", path, limit=str(limit), cursor=cursor))
        return pages


def ids(number: int) -> Json:
    return dict.fromkeys(("runId", "attemptId"), f"{number:08x}-0000-4000-8000-000000000000")


def a_request(choice: Choices, pair: Pair, number: int) -> Json:
    """A request that gets a snapshot: it names anything, but needs only what is known."""
    pins = [_pin(name, required=True) for name in _a_few(choice, list(pair.known))]
    pins += [
        _pin(name, required=False) | choice.pick(_WHICH_CHUNK)
        for name in _a_few(choice, pair.names)
    ]
    items = _items(choice, pair)
    tight = choice.pick((200, 1000, 8000))
    return {
        **ids(number),
        "scope": pair.scope,
        "budget": {
            "maxTokens": _ROOMY_TOKENS if pins or items else tight,
            "reservedForOutput": 100,
            "format": choice.pick(("text", "messages")),
        },
        "pins": pins,
        "items": items,
        **choice.pick(_LANGUAGES),
        **({} if choice.once_in(8) else {"query": some_words(choice)}),
    }


def a_refused_request(choice: Choices, pair: Pair) -> tuple[Json, str]:
    """A request that cannot have an answer, and the code of what it gets."""
    request = a_request(choice, pair, 0)
    code = choice.pick(("pin-unavailable", "pin-unavailable", "budget-too-small", _BEYOND))
    if code == _BEYOND:
        return request | {"scope": {**pair.scope, "groups": ["never-granted"]}}, code
    if code == "budget-too-small" and pair.known:
        needed = [_pin(name, required=True) for name in pair.known]
        bounds = {"maxTokens": 20, "reservedForOutput": 0}
        return request | {"budget": bounds, "pins": needed}, code
    missing = [name for name in pair.names if name not in pair.known]
    pins = [_pin(name, required=True) for name in (choice.pick(missing), choice.pick(missing))]
    return request | {"pins": request["pins"] + pins}, "pin-unavailable"


def _a_few(choice: Choices, names: list[Key]) -> list[Key]:
    return [choice.pick(names) for _ in range(choice.pick((0, 1, 2)))] if names else []


def _pin(name: Key, *, required: bool) -> Json:
    return {"project": name[0], "sourceId": name[1], "required": required}


def _items(choice: Choices, pair: Pair) -> list[Json]:
    """Texts of either world under labels of the grant, in scope or not."""
    caller, sources = pair.caller, {**pair.before, **pair.after}
    projects = PROJECTS if caller.projects == ["*"] else caller.projects
    held = CLASSES if caller.classes is None else caller.classes
    classes = [name for name in held if name != "policy"]
    if not projects or not classes:
        return []
    return [
        {
            "project": choice.pick(projects),
            "class": choice.pick(classes),
            "sourceId": choice.pick(pair.names)[1],
            "sourceRevision": "1",
            "chunkId": str(at),
            "text": choice.pick([*sources.values()])["chunks"][0]["text"] if sources else "cancel",
        }
        for at in range(choice.pick((0, 1, 2)))
    ]
