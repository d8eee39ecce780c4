"""When the next worker may be started after some have crashed or failed to start."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 60.0
# More would not change the pause.
_MAX_COUNTED_CRASHES = 10


class StartBackoff:
    """Counts workers that ended too soon, and makes the next start wait longer after each.

    Owned by the event loop; the autoscaler and its `WorkerExits` call it.
    """

    def __init__(self) -> None:
        # How many workers in a row ended before they asked for a job.
        self.failed_starts = 0
        # Why the next start has to wait, as a sentence about the last worker.
        self.reason = ""
        self._crashes_in_a_row = 0
        self._no_start_before = -float("inf")

    @property
    def has_crashes(self) -> bool:
        """Whether the last worker ended too soon."""
        return bool(self._crashes_in_a_row)

    def remaining_s(self, now: float) -> float:
        """Return how long the next start still has to wait; 0 if it may start."""
        return max(0.0, self._no_start_before - now)

    def record_fault(self, now: float, reason: str) -> None:
        """Make the next start wait, twice as long as after the fault before."""
        pause_s = min(_FIRST_BACKOFF_S * 2**self._crashes_in_a_row, _MAX_BACKOFF_S)
        self._crashes_in_a_row = min(self._crashes_in_a_row + 1, _MAX_COUNTED_CRASHES)
        self._no_start_before = now + pause_s
        self.reason = reason
        logger.error("%s; the next one starts in %g s at the earliest", reason, pause_s)

    def forget_crashes(self) -> None:
        """Begin with the shortest pause again: the last worker has worked."""
        self._crashes_in_a_row = 0

    def reset(self) -> None:
        """Forget all of it: the code is another one."""
        self.failed_starts = 0
        self._crashes_in_a_row = 0
        self._no_start_before = -float("inf")
