"""Why a host has no loaded model, and when it will be started again."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

# The longest delay of a retry that error responses suggest.
_MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Downtime:
    """A period without a loaded model that began with a failure; times are monotonic seconds.

    `crashes` is the number of crashes in a row. `next_start` is when the process is started again;
    None means that it is starting, or still has runs to finish. `finishes_by` is when a process
    with a stuck run is killed, whatever its other runs do. `load_s` is how long the last load took.
    """

    since: float
    reason: str
    crashes: int = 0
    next_start: float | None = None
    finishes_by: float | None = None
    load_s: float = 0.0

    @property
    def sentence(self) -> str:
        """A sentence on the restart, its time and its reason: "restarting in 2.0 s: …"."""
        now = time.monotonic()
        if self.finishes_by is not None:
            left_s = max(self.finishes_by - now, 0.0)
            when = f"restarting when the other requests have ended, in {left_s:.0f} s at the latest"
        elif self.next_start is not None:
            when = f"restarting in {max(self.next_start - now, 0.0):.1f} s"
        else:
            when = "starting again"
        after = ""
        if self.crashes:
            after = f" after {self.crashes} {'crash' if self.crashes == 1 else 'crashes in a row'}"
        return f"{when}{after}: {self.reason}"

    @property
    def retry_after_s(self) -> int:
        """Whole seconds after which a request may find the model loaded; from 1 to 60."""
        now = time.monotonic()
        start = max(self.next_start or now, self.finishes_by or now, now)
        return max(1, min(math.ceil(start - now + self.load_s), _MAX_RETRY_AFTER_S))
