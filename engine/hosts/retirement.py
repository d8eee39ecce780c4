"""The end of a host with a run that does not stop: its other runs get time to finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from engine.errors import EngineError


class Retirement:
    """Ends a host because of a wedged run, after its other runs have ended or had their time.

    While `error` is set, the host takes no new runs. It ends (`end`) when `is_unused` says that
    all runs left were aborted, or after `grace_s`. If the wedged runs end by themselves before
    that, the host goes on (`resume`). Owned by the event loop.
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
        self._wedged: set[int] = set()
        self._has_lost_call = False
        self._timer: asyncio.TimerHandle | None = None
        self.error: EngineError | None = None
        # Both monotonic, and only meaningful while `error` is set.
        self.since = 0.0
        self.finishes_by = 0.0

    def begin(self, error: EngineError, run_id: int | None = None) -> bool:
        """Start it for a wedged run, or for a side call if None; False if it had started before."""
        if run_id is None:
            self._has_lost_call = True
        else:
            self._wedged.add(run_id)
        if self.error is not None:
            return False
        self.error = error
        self.since = time.monotonic()
        self.finishes_by = self.since + self._grace_s
        self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._time_is_over)
        return True

    def check(self) -> None:
        """End or resume the host if nothing keeps it from that any more."""
        if self.error is None:
            return
        self._wedged = set(filter(self._is_running, self._wedged))
        if not self._wedged and not self._has_lost_call:
            self.stop()
            self._resume()
        elif self._is_unused():
            self._time_is_over()

    def stop(self) -> None:
        """Forget about it: the host has ended, or goes on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.error = None
        self._wedged.clear()
        self._has_lost_call = False

    def _time_is_over(self) -> None:
        error = self.error
        if error is not None:
            self.stop()
            self._end(error)
