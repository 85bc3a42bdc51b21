"""The whole service with recipes of a test's own, on the database that all tests share."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from asgi_lifespan import LifespanManager
from fastapi import FastAPI

from app.config import Settings
from app.main import create_app


def write_recipes(folder: Path, recipes: Mapping[str, str]) -> Path:
    """Recipes by id, each as what its YAML file says besides id, version and description."""
    for name, body in recipes.items():
        text = f"id: {name}\nversion: 1\ndescription: Of a test.\n{body}\n"
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


@asynccontextmanager
async def serving(settings: Settings, folder: Path) -> AsyncIterator[FastAPI]:
    """The service as `settings` have it, with the recipes of a folder."""
    app = create_app(settings.model_copy(update={"strategies_dir": folder}))
    async with LifespanManager(app, startup_timeout=60, shutdown_timeout=60):
        yield app


@asynccontextmanager
async def calling(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client
