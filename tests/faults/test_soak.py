"""Writers and assemblers at the same time, on a service and a database of their own.

Property 9 under load: what was stored comes out again. Property 11: nobody gets a 500, and no
two calls wait for each other for ever.
"""

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.adapters.development_key import load_or_create_development_key
from tests.shared.service_process import ServiceProcess, free_port
from tests.tokens import TokenFactory

Json = dict[str, Any]

AT_ONCE = 50
"""Writers, and as many assemblers."""

SECONDS = 60
TENANTS = ("acme", "globex")
PROJECTS = ("booking", "billing")
SOURCES = tuple(f"{name}.md" for name in ("a", "b", "c", "d", "e", "f", "g", "h"))
WORDS = ("cancel", "refund", "booking", "invoice", "late", "seat", "Anfrage", "日本語")
BUSY = {503}
"""What a service that has more to do than it can may answer beside success."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, free_port()) as running:
        yield running


@dataclass
class _Soak:
    """What was sent and answered; each caller draws from numbers of its own."""

    client: httpx.AsyncClient
    token: TokenFactory
    until: float
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    made: dict[str, set[str]] = field(default_factory=dict)

    async def write(self, number: int) -> None:
        drawn = random.Random(f"writer {number}")
        while time.monotonic() < self.until:
            tenant, project, name = map(drawn.choice, (TENANTS, PROJECTS, SOURCES))
            kind = drawn.random()
            if kind < 0.15:
                params = {"project": project, "sourceId": name}
                await self._send("DELETE", "/sources", tenant, {200, 404}, params=params)
            elif kind < 0.3:
                head = {"project": project, "sourceId": name, "sourceRevision": f"r{number}"}
                await self._send("PUT", "/sources/heads", tenant, {200}, json={"heads": [head]})
            else:
                names = drawn.sample(SOURCES, drawn.randint(1, 3))
                sources = [_source(drawn, project, one) for one in names]
                await self._send("PUT", "/sources", tenant, {200}, json={"sources": sources})

    async def assemble(self, number: int) -> None:
        drawn = random.Random(f"assembler {number}")
        while time.monotonic() < self.until:
            tenant = drawn.choice(TENANTS)
            request = {
                "runId": str(uuid.UUID(int=drawn.getrandbits(128), version=4)),
                "attemptId": str(uuid.UUID(int=drawn.getrandbits(128), version=4)),
                "query": _text(drawn),
                "scope": {"projects": drawn.sample(PROJECTS, drawn.randint(1, 2))},
                "budget": {"maxTokens": drawn.choice((300, 1000, 8000))},
            }
            answer = await self._send("POST", "/snapshots", tenant, {200, 201}, json=request)
            if answer.is_success:
                self.made.setdefault(tenant, set()).add(answer.json()["hash"])

    async def replay(self) -> int:
        """Replay all that was stored, and return how many that were."""
        waiting = [(tenant, ref) for tenant, refs in self.made.items() for ref in sorted(refs)]
        number = len(waiting)

        async def work() -> None:
            while waiting:
                tenant, ref = waiting.pop()
                answer = await self._send("POST", f"/snapshots/{ref}/replay", tenant, {200})
                assert answer.json() == {"match": True, "hash": ref}

        await asyncio.gather(*(work() for _ in range(4)))
        return number

    async def _send(
        self, method: str, path: str, tenant: str, right: set[int], **content: Any
    ) -> httpx.Response:
        headers = self.token.headers(tenant)
        answer = await self.client.request(method, path, headers=headers, **content)
        call = "replay" if path.endswith("/replay") else f"{method} {path}"
        self.statuses[call, answer.status_code] += 1
        assert answer.status_code in right | BUSY, (answer.status_code, answer.text)
        return answer


def _source(drawn: random.Random, project: str, name: str) -> Json:
    return {
        "project": project,
        "sourceId": name,
        "sourceRevision": f"r{drawn.randrange(1000)}",
        "class": drawn.choice(("documents", "code")),
        "classification": drawn.choice(("public", "internal")),
        "chunks": [{"chunkId": str(at), "text": _text(drawn)} for at in range(drawn.randint(1, 4))],
    }


def _text(drawn: random.Random) -> str:
    return " ".join(drawn.choices(WORDS, k=drawn.randint(1, 12)))


@pytest.mark.long
async def test_fifty_writers_and_fifty_assemblers_leave_snapshots_that_replay(
    process: ServiceProcess,
) -> None:
    token = TokenFactory(load_or_create_development_key(process.data_dir))
    # No expiry: on a busy machine the client's pool closes a connection as idle, after 5 s, that it
    # has just handed to a request (seen as ReadError).
    limits = httpx.Limits(max_connections=2 * AT_ONCE, keepalive_expiry=None)
    async with httpx.AsyncClient(
        base_url=process.url, timeout=60, limits=limits, trust_env=False
    ) as client:
        soak = _Soak(client, token, time.monotonic() + SECONDS)
        async with asyncio.TaskGroup() as everybody:
            for number in range(AT_ONCE):
                everybody.create_task(soak.write(number))
                everybody.create_task(soak.assemble(number))
        replayed = await soak.replay()
    print(sorted(soak.statuses.items()))
    written = soak.statuses["PUT /sources", httpx.codes.OK]
    assert replayed > AT_ONCE
    assert written > AT_ONCE
    assert "deadlock" not in process.log.read_text()
