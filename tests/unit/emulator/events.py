"""Record the events of an engine, and wait for them."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from engine.hooks import EngineEvent

E = TypeVar("E")

# Every wait takes less than a second, but more on a loaded machine.
DEADLINE_S = 40.0


class EventRecorder:
    """An engine hook that records events, so that tests wait for them instead of sleeping."""

    def __init__(self) -> None:
        self.recorded: list[EngineEvent] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, event: EngineEvent) -> None:
        self.recorded.append(event)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def of(self, kind: type[E]) -> list[E]:
        """All events of a kind so far."""
        return [event for event in self.recorded if isinstance(event, kind)]

    async def wait(self, kind: type[E], count: int = 1) -> list[E]:
        """Wait until there have been `count` events of a kind."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.of(kind)) >= count)
        return self.of(kind)
