"""`python -m tests.property.assembling_process DATABASE_URL DATA_DIR < requests`.

Assembles each request anew in a process of its own and prints the bytes' digest, one a line.
"""

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import httpx
from asgi_lifespan import LifespanManager

from app.config import Settings
from app.main import create_app


async def _run(url: str, data_dir: str, calls: list[dict[str, Any]]) -> None:
    values: dict[str, Any] = {"database_url": url, "data_dir": Path(data_dir)}
    app = create_app(Settings(**values, log_level="error"))
    async with (
        LifespanManager(app, startup_timeout=60, shutdown_timeout=60),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://own") as client,
    ):
        for call in calls:
            answer = await client.post(
                "/snapshots?refresh=true", json=call["request"], headers=call["headers"]
            )
            print(answer.status_code, hashlib.sha256(answer.content).hexdigest())


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2], json.load(sys.stdin)))
