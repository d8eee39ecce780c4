"""Servers on free ports, shut down again, with nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from emulator.settings import EmulatorSettings
from tests.integration.emulator.serving import Server, serving


class Serve(Protocol):
    async def __call__(self, script: Path | None = None, **settings: Any) -> Server: ...


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts servers: the scripted engine on a thread unless the keywords, settings, say more."""
    async with AsyncExitStack() as servers:

        async def start(script: Path | None = None, **settings: Any) -> Server:
            values = {
                "engine": "scripted",
                "engine_isolation": "thread",
                "model_path": script,
                "job_db": ":memory:",
                # What a test leaves running is not waited for.
                "drain_s": 0,
            }
            return await servers.enter_async_context(serving(EmulatorSettings(**values | settings)))

        yield start


class Gate:
    """A script that is not there to be read until it is opened: a model that loads for so long."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    async def open(self, **script: Any) -> None:
        await asyncio.to_thread(self.path.write_text, json.dumps(script))


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate.json")
