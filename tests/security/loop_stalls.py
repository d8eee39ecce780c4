"""How long an event loop is held up: measured from within it, whatever else the machine does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

_INTERVAL_S = 0.002


@dataclass(slots=True)
class LoopStalls:
    """The longest time for which the loop ran nothing else; `reset` begins anew."""

    longest_s: float = 0.0

    def reset(self) -> float:
        """Return the longest stall since the last reset."""
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s


@asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopStalls]:
    """Measure the stalls of the running loop.

    A stall counts as the processor time that this process used in it: while other processes have
    the processor, no code of ours holds up the loop.
    """
    stalls = LoopStalls()
    watching = asyncio.create_task(_watch(stalls))
    try:
        yield stalls
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(stalls: LoopStalls) -> None:
    while True:
        before_s = time.process_time()
        await asyncio.sleep(_INTERVAL_S)
        stalls.longest_s = max(stalls.longest_s, time.process_time() - before_s)
