"""Engines for the benchmarks that measure without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.scripts import MODEL
from engine import BackendConfig, Engine, EngineConfig
from engine.config import Isolation

ISOLATIONS: tuple[Isolation, Isolation] = ("process", "thread")


@asynccontextmanager
async def both(script: Path) -> AsyncIterator[tuple[Engine, Engine]]:
    """Yield two loaded engines over one script: process isolation first, thread isolation second.

    Both live as long as this lasts, so they can take turns; an engine that is not asked sleeps.
    """
    options = {"model_path": str(script), "model_name": MODEL}
    async with AsyncExitStack() as stack:
        found = []
        for isolation in ISOLATIONS:
            engine = Engine(
                EngineConfig(backend=BackendConfig("scripted", options), isolation=isolation)
            )
            stack.push_async_callback(engine.close)
            await engine.ready()
            found.append(engine)
        yield found[0], found[1]
