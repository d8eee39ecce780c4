"""Ends a host with a stuck run, after giving its other runs time to finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from engine.errors import EngineError


class Retirement:
    """Ends a host because of a stuck run, one that does not stop after an abort.

    While `error` is set, the host takes no new runs. `end` is called when only aborted runs are
    left (`is_unused`), or after `grace_s`. If the stuck runs end by themselves before that,
    `resume` is called instead, and the host takes runs again. Owned by the event loop.
    """

    def __init__(
        self,
        grace_s: float,
        is_running: Callable[[int], bool],
        is_unused: Callable[[], bool],
        end: Callable[[EngineError], None],
        resume: Callable[[], None],
    ) -> None:
        self._grace_s = grace_s
        self._is_running = is_running
        self._is_unused = is_unused
        self._end = end
        self._resume = resume
        self._stuck_runs: set[int] = set()
        self._has_stuck_call = False
        self._timer: asyncio.TimerHandle | None = None
        self.error: EngineError | None = None
        # Monotonic times, valid while `error` is set.
        self.since = 0.0
        self.finishes_by = 0.0

    def begin(self, error: EngineError, run_id: int | None = None) -> bool:
        """Start for a stuck run, or without `run_id` for a stuck side call.

        Returns False if the retirement had started before.
        """
        if run_id is None:
            self._has_stuck_call = True
        else:
            self._stuck_runs.add(run_id)
        if self.error is not None:
            return False
        self.error = error
        self.since = time.monotonic()
        self.finishes_by = self.since + self._grace_s
        self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._finish)
        return True

    def check(self) -> None:
        """End or resume the host if its runs allow it by now."""
        if self.error is None:
            return
        self._stuck_runs = set(filter(self._is_running, self._stuck_runs))
        if not self._stuck_runs and not self._has_stuck_call:
            self.stop()
            self._resume()
        elif self._is_unused():
            self._finish()

    def stop(self) -> None:
        """Cancel the retirement: the host has ended, or takes runs again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.error = None
        self._stuck_runs.clear()
        self._has_stuck_call = False

    def _finish(self) -> None:
        error = self.error
        if error is not None:
            self.stop()
            self._end(error)
