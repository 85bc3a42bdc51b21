"""Property 9: whatever became of the index since, a stored snapshot comes out again.

Histories are made from numbers drawn by a seeded generator: a hundred changes and more are
beyond what shrinks in reasonable time.
"""

import os
import random
import uuid
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.property.service import Service
from tests.property.worlds import (
    CLASSES,
    CLASSIFICATIONS,
    GROUPS,
    PRINCIPALS,
    PROJECTS,
    SOURCE_IDS,
    TIERS,
    WORDS,
    Caller,
    Json,
)

FULL = bool(os.environ.get("CTXSNAP_FULL_SIZE"))
HISTORIES, CHANGES = (200, 1000) if FULL else (10, 100)
ASKED_EVERY = 8
AUDITOR = "snapshots:assemble snapshots:read audit:read"


@pytest.mark.full_size
@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_every_snapshot_of_a_history_replays_to_its_hash(service: Service, seed: int) -> None:
    history = _History(service, service.make_tenant(), random.Random(seed))
    while history.changes < CHANGES:
        before = history.changes
        await history.change()
        if before // ASKED_EVERY != history.changes // ASKED_EVERY:
            await history.ask()
    assert history.made
    await history.open_everything()
    for snapshot in history.made:
        answer = await history.replay(snapshot)
        assert answer == {"match": True, "hash": snapshot["hash"]}, snapshot


class _History:
    """One tenant's sources as they change, and the snapshots that were made on the way."""

    def __init__(self, service: Service, tenant: str, drawn: random.Random) -> None:
        self._service, self._tenant, self._drawn = service, tenant, drawn
        self._revision = 0
        self.changes = 0
        self.made: list[Json] = []

    async def change(self) -> None:
        """Sources are written, written anew, or moved to another label, some in one call; or one
        is removed, or a newer revision of it is told of."""
        self.changes += 1
        project, source_id = self._one(PROJECTS), self._one(SOURCE_IDS)
        kind = self._drawn.random()
        if kind < 0.15:
            path = f"/sources?project={project}&sourceId={quote(source_id)}"
            assert (await self._send("DELETE", path)).status_code in (200, 404)
        elif kind < 0.25:
            head = {"project": project, "sourceId": source_id, "sourceRevision": f"r{self.changes}"}
            told = await self._send("PUT", "/sources/heads", {"heads": [head]})
            assert told.status_code == 200, told.text
        else:
            others = {(self._one(PROJECTS), self._one(SOURCE_IDS)) for _ in range(4)}
            keys = {(project, source_id), *self._drawn.sample(sorted(others), len(others) // 2)}
            self.changes += len(keys) - 1
            await self._service.index(self._tenant, [self._source(*key) for key in sorted(keys)])

    async def ask(self) -> None:
        caller = Caller(
            subject="ana",
            projects=["*"] if self._drawn.random() < 0.5 else self._some(PROJECTS),
            groups=self._some(GROUPS),
            classes=None,
            max_classification=self._one(CLASSIFICATIONS),
        )
        request: Json = {
            "runId": self._uuid(),
            "attemptId": self._uuid(),
            "query": self._text(),
            "budget": {"maxTokens": self._drawn.choice((300, 1000, 8000))},
            "pins": [
                {"project": self._one(PROJECTS), "sourceId": one, "required": False}
                for one in self._some(SOURCE_IDS)
            ],
        }
        if self._drawn.random() < 0.3:
            request["scope"] = {"sources": {"deny": ["drafts/*"]}}
        if self.made and self._drawn.random() < 0.3:
            request["asOf"] = {"snapshot": self._drawn.choice(self.made)["hash"]}
        claims = {**caller.claims(), "scope": AUDITOR}
        answer = await self._send("POST", "/snapshots", request, **claims)
        if answer.status_code == 422 and answer.json()["code"] == "as-of-unavailable":
            return
        assert answer.status_code == 201, answer.text
        self.made.append(answer.json())

    async def open_everything(self) -> None:
        """Let everybody know every source: who may read a snapshot follows present labels."""
        open_ones = [
            {**self._source(project, source_id), "classification": "public", "acl": {"deny": []}}
            for project in PROJECTS
            for source_id in SOURCE_IDS
        ]
        await self._service.index(self._tenant, open_ones)

    async def replay(self, snapshot: Json) -> Any:
        answer = await self._send("POST", f"/snapshots/{snapshot['hash']}/replay")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def _send(
        self, method: str, path: str, body: Json | None = None, **claims: Any
    ) -> httpx.Response:
        headers = self._service.token.headers(self._tenant, **claims)
        return await self._service.client.request(method, path, json=body, headers=headers)

    def _source(self, project: str, source_id: str) -> Json:
        self._revision += 1
        knowledge_class = self._one(CLASSES)
        acl: Json = {"deny": self._some(PRINCIPALS) if self._drawn.random() < 0.2 else []}
        if self._drawn.random() < 0.3:
            acl["allow"] = self._some(PRINCIPALS)
        return {
            "project": project,
            "sourceId": source_id,
            "sourceRevision": f"r{self._revision}",
            "class": knowledge_class,
            "classification": self._one(CLASSIFICATIONS),
            "trustTier": "system-policy" if knowledge_class == "policy" else self._one(TIERS),
            "acl": acl,
            "language": self._drawn.choice(("en", "de")),
            "chunks": [
                {"chunkId": str(at), "text": self._text()}
                for at in range(self._drawn.randint(1, 3))
            ],
        }

    def _one(self, names: tuple[str, ...]) -> str:
        return self._drawn.choice(names)

    def _some(self, names: tuple[str, ...]) -> list[str]:
        return self._drawn.sample(names, self._drawn.randint(0, len(names)))

    def _text(self) -> str:
        return " ".join(self._drawn.choices(WORDS, k=self._drawn.randint(1, 8)))

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._drawn.getrandbits(128)))
