"""Python's garbage collector, kept from looking through all jobs again and again."""

from __future__ import annotations

import asyncio
import gc
from typing import Literal

from emulator.server.heap import Heap

# Full looks come after so many partial ones: each is at what has come since, and some 20,000
# objects are looked at in 10 to 15 ms.
_THRESHOLDS = (700, 10, 2)
_CHECK_S = 60.0
# So many objects are always allowed to come.
_LEAST = 50_000


class GarbageCollectorTuning:
    """Sets aside what has outlived a full look of the collector, so that the next one is short.

    A full look goes through all that is kept, some 3 us for each job, and nothing else happens
    meanwhile: with 100,000 jobs, which is what MAX_JOBS allows, it took a third of a second from
    every stream. What is set aside is freed as ever when nobody refers to it any more. Only what
    refers to itself would stay, so everything is looked at again when there is twice as much.

    The collector is the process's, so there is one of these in it, and it is the server's. Owned by
    the event loop, but for `_set_aside`, which the collector calls on any thread.
    """

    def __init__(self) -> None:
        self._before = gc.get_threshold()
        # How much was set aside, at the least, since all of it was looked at.
        self._known = 0
        self._looked = False
        self._task: asyncio.Task[None] | None = None
        self._heap = Heap()

    def start(self) -> None:
        """Look once at what is there by now, and set it aside."""
        self._before = gc.get_threshold()
        self._look_at_all()
        gc.callbacks.append(self._set_aside)
        gc.set_threshold(*_THRESHOLDS)
        self._task = asyncio.create_task(self._check_forever())

    def close(self) -> None:
        """Leave the collector to look at all that comes from here on as it did before."""
        if self._task is not None:
            self._task.cancel()
            gc.callbacks.remove(self._set_aside)
            gc.set_threshold(*self._before)

    def check(self) -> None:
        """Have all of it looked at again if there is twice as much as there was."""
        if not self._looked:
            return
        self._looked = False
        found = gc.get_freeze_count()
        if found > 2 * self._known + _LEAST:
            self._look_at_all()
        else:
            self._known = min(self._known, found)

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Python waits with the next full look until a quarter of what the last one left has come.
        # This one finds nothing, so nothing is waited for.
        gc.collect()
        self._known = gc.get_freeze_count()

    def _set_aside(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            self._looked = True

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            self.check()
            self._heap.trim_if_grown()
