"""Why a host has no loaded model at the moment, and when it will be started again."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

# What a client is told at most to wait before it tries again.
_MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Downtime:
    """A period without a loaded model that began with a failure; times are monotonic seconds.

    `crashes` counts those in a row, `next_start` is when the process is started again (None: it is
    starting, or still has runs to finish), `finishes_by` is until when other runs may go on beside
    one that does not stop, and `load_s` is how long the model took to load the last time.
    """

    since: float
    reason: str
    crashes: int = 0
    next_start: float | None = None
    finishes_by: float | None = None
    load_s: float = 0.0

    @property
    def sentence(self) -> str:
        """What happens, when, and for what reason."""
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
        at = max(self.next_start or now, self.finishes_by or now, now)
        return max(1, min(math.ceil(at - now + self.load_s), _MAX_RETRY_AFTER_S))
