"""Shut the server down when its engine is dead and no other worker uses the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine import AnyEngine

logger = logging.getLogger(__name__)

# The interval at which the watch checks whether other workers use the server.
_CHECK_INTERVAL_S = 1.0


class EngineWatch:
    """Waits until the engine is dead, and then makes the server exit with a code other than 0.

    systemd, Docker or RunPod then starts another server, which finds the jobs in its queue. As long
    as SDK workers use the server (`has_other_workers`), it continues to run for them, and only
    requests to its own engine get 503. With `stays` it continues in any case.

    Owned by the event loop.
    """

    def __init__(
        self,
        engine: AnyEngine,
        has_other_workers: Callable[[], bool],
        shut_down: Callable[[str], None],
        *,
        stays: bool = False,
    ) -> None:
        self._engine = engine
        self._has_other_workers = has_other_workers
        self._shut_down = shut_down
        self._stays = stays
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop watching. Must be called before the engine is closed, which is not a failure."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        failure = await self._engine.wait_until_dead()
        if self._stays:
            logger.error(
                "the server goes on without its engine (ENGINE_DEAD_EXIT=off): %s", failure.message
            )
            return
        if self._has_other_workers():
            logger.error(
                "the server goes on without its engine, for its SDK workers: %s", failure.message
            )
        # Workers come and go at any time, so there is no single event to wait for.
        while self._has_other_workers():  # noqa: ASYNC110
            await asyncio.sleep(_CHECK_INTERVAL_S)
        self._shut_down(failure.message)
