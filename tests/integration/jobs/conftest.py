from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import jobs.memory.store
from jobs import MemoryJobStore
from tests.integration.jobs.stores import DRIVERS, Stores


@pytest.fixture(autouse=True)
def no_automatic_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the automatic sweep: tests advance the clock and sweep themselves."""
    monkeypatch.setattr(jobs.memory.store, "TICK_S", 3600.0)


@pytest.fixture(params=DRIVERS)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    stores = Stores(request.param, tmp_path)
    yield stores
    await stores.close()


@pytest.fixture
async def store(stores: Stores) -> MemoryJobStore:
    return await stores.open()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Stores]:
    """Stores on SQLite only."""
    stores = Stores("sqlite", tmp_path)
    yield stores
    await stores.close()
