"""The attempts at one job of a RunPod worker whose engine may crash under it."""

from __future__ import annotations

from contextlib import suppress

from engine import AnyEngine, Priority, Slot
from engine.errors import EngineError
from handler.job import Interruption, JobResult

# A job that was running at so many crashes is taken for their reason.
MAX_CRASHES = 3


class Attempts:
    """Decides whether a job that was interrupted by its engine runs again, and on which slot.

    RunPod's protocol has no way to give a job back, so the worker repeats it. Before its last try a
    job gets the engine for itself, so that of the jobs that ran side by side at the crashes only
    the one that causes them fails.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._crashes = 0

    async def next_slot(self) -> Slot | None:
        """Wait until the engine is ready, or dead; return a reserved slot for a last try."""
        with suppress(EngineError):
            if self._crashes == MAX_CRASHES - 1:
                return await self._engine.reserve(Priority.JOB, exclusive=True)
            await self._engine.ready()
        return None

    def may_repeat(self, kind: Interruption) -> bool:
        """Count an interruption and return whether the job runs again."""
        self._crashes += kind is Interruption.CRASH
        return self._crashes < MAX_CRASHES

    def failure(self, reason: str) -> JobResult:
        """Return the result of a job that runs no more, which names it as the likely cause."""
        return JobResult(
            error=f"the job was running at {self._crashes} crashes of the engine in a row and is "
            f"not tried again; the last time: {reason}"
        )
