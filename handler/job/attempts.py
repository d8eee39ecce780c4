"""Rerun a RunPod worker's job after its engine has crashed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from engine import AnyEngine, Priority, Slot
from engine.errors import EngineError
from handler.job.job_result import Interruption, JobResult

# A job that was running during this many crashes is considered their cause.
MAX_CRASHES = 3
# A job without an engine waits this long, because the server of the openai engine may be busy while
# the engine itself is ready.
_RETRY_DELAY_S = 1.0


class Attempts:
    """Decides whether an interrupted job runs again, and on which slot.

    RunPod's protocol has no way to return a job to the queue, so the worker reruns it. For its last
    attempt a job has the engine to itself: of the jobs that ran concurrently during the crashes,
    only the one that causes them fails.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._crashes = 0
        self._kind: Interruption | None = None

    async def next_slot(self) -> Slot | None:
        """Wait until the engine is ready or dead; return a reserved slot for a last attempt."""
        if self._kind is Interruption.NO_ENGINE:
            await asyncio.sleep(_RETRY_DELAY_S)
        with suppress(EngineError):
            if self._crashes == MAX_CRASHES - 1:
                return await self._engine.reserve(Priority.JOB, exclusive=True)
            await self._engine.ready()
        return None

    def record_interruption(self, kind: Interruption) -> bool:
        """Count an interruption; return whether the job runs again."""
        self._kind = kind
        self._crashes += kind is Interruption.CRASH
        return self._crashes < MAX_CRASHES

    def build_failure(self, reason: str) -> JobResult:
        """Return the result of a job that does not run again, the likely cause of the crashes."""
        return JobResult(
            error=f"the job was running at {self._crashes} crashes of the engine in a row and is "
            f"not tried again; the last time: {reason}"
        )
