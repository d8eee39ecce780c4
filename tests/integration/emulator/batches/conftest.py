"""A fixture for clients of batches, which are closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.integration.emulator.batches.support import BatchClient
from tests.integration.emulator.serving import Server


@pytest.fixture
async def clients() -> AsyncIterator[Callable[[Server], BatchClient]]:
    async with AsyncExitStack() as stack:

        def make_client(server: Server, **options: Any) -> BatchClient:
            client = BatchClient(server, **options)
            stack.push_async_callback(client.openai.close)
            return client

        yield make_client
