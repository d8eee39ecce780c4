"""Clients that are closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.integration.emulator.batches.support import Client
from tests.integration.emulator.serving import Server


@pytest.fixture
async def clients() -> AsyncIterator[Callable[[Server], Client]]:
    async with AsyncExitStack() as stack:

        def made(server: Server, **options: Any) -> Client:
            client = Client(server, **options)
            stack.push_async_callback(client.openai.close)
            return client

        yield made
