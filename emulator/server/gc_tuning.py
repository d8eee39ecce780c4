"""Tune Python's garbage collector so that it does not traverse all jobs again and again."""

from __future__ import annotations

import asyncio
import gc
from typing import Literal

from emulator.server.heap import Heap

# A full collection runs after two of the middle generation. Because older objects are frozen, it
# traverses only objects created since the last one: some 20,000, in 10 to 15 ms.
_THRESHOLDS = (700, 10, 2)
_CHECK_INTERVAL_S = 60.0
# Growth of the frozen objects that never causes a collection of all of them.
_MIN_GROWTH_OBJECTS = 50_000


class GarbageCollectorTuning:
    """Freezes the objects that have survived a full collection, so that the next one is short.

    A full collection traverses all objects, about 3 us per job, and blocks the event loop:
    with 100,000 jobs (the default of MAX_JOBS) it paused every stream for a third of a second.
    Frozen objects are still freed when their last reference is gone. Only reference cycles would
    stay in memory, so all objects are collected again when the number of frozen ones has doubled.

    The collector belongs to the process, so only one instance may be started, the server's. Owned
    by the event loop, except for `_freeze_survivors`, which the collector calls on any thread.
    """

    def __init__(self) -> None:
        self._original_thresholds = gc.get_threshold()
        # The lowest number of frozen objects since all objects were collected.
        self._min_frozen = 0
        self._has_collected = False
        self._task: asyncio.Task[None] | None = None
        self._heap = Heap()

    def start(self) -> None:
        """Collect and freeze all current objects, and freeze survivors from now on."""
        self._original_thresholds = gc.get_threshold()
        self._collect_all()
        gc.callbacks.append(self._freeze_survivors)
        gc.set_threshold(*_THRESHOLDS)
        self._task = asyncio.create_task(self._check_forever())

    def close(self) -> None:
        """Restore the collector's thresholds and stop freezing."""
        if self._task is not None:
            self._task.cancel()
            gc.callbacks.remove(self._freeze_survivors)
            gc.set_threshold(*self._original_thresholds)

    def check(self) -> None:
        """Collect all objects again if the number of frozen ones has doubled."""
        if not self._has_collected:
            return
        self._has_collected = False
        frozen = gc.get_freeze_count()
        if frozen > 2 * self._min_frozen + _MIN_GROWTH_OBJECTS:
            self._collect_all()
        else:
            self._min_frozen = min(self._min_frozen, frozen)

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Python delays the next full collection until there are a quarter as many new objects as
        # survived the last one. None survive this one, so there is no delay.
        gc.collect()
        self._min_frozen = gc.get_freeze_count()

    def _freeze_survivors(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            self._has_collected = True

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self.check()
            self._heap.trim_if_grown()
