"""The application's part of the server's end: what runs, how long it may, and where it goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from emulator.drain import Drain

logger = logging.getLogger(__name__)


class Ending:
    """Waits for what runs, for `limit_s` at most or until somebody is in a hurry.

    `idle` returns when no job runs, here or on a worker elsewhere. `give_back` has the local
    worker take no more jobs, wait for those it runs for so many seconds, and give back the rest.
    Jobs on other workers keep their leases, which outlive the server.
    """

    def __init__(
        self,
        drain: Drain,
        limit_s: float,
        idle: Callable[[], Awaitable[None]],
        give_back: Callable[[float], Coroutine[Any, Any, None]],
    ) -> None:
        self.drain = drain
        self._limit_s = limit_s
        self._idle = idle
        self._give_back = give_back
        self.hurry = asyncio.Event()

    async def wait(self) -> None:
        """Let what runs finish, for as long as it may; then call it over."""
        self.drain.begin()
        local = asyncio.create_task(self._give_back(self._limit_s))
        settled = asyncio.create_task(self._settled(local))
        hurry = asyncio.create_task(self.hurry.wait())
        await asyncio.wait(
            {settled, hurry}, timeout=self._limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (settled, hurry):
            task.cancel()
        if not settled.done():
            logger.warning("not everything has ended in its time: jobs go back to the queue")
        self.drain.finish()
        local.cancel()
        await asyncio.gather(local, settled, hurry, return_exceptions=True)
        await self._give_back(0)

    async def _settled(self, local: asyncio.Task[None]) -> None:
        await asyncio.wait({local})
        await self.drain.settled(self._idle)
