from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from app.config import Settings
from tests.recipes import serving, write_recipes


@pytest.fixture(scope="module")
async def running(
    request: pytest.FixtureRequest,
    service_settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[FastAPI]:
    """The service with the recipes that the module names RECIPES."""
    folder = write_recipes(tmp_path_factory.mktemp("strategies"), request.module.RECIPES)
    async with serving(service_settings, folder) as app:
        yield app
