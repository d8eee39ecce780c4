"""A host's crashes in a row: how long to wait after each, and when another start is useless."""

from __future__ import annotations

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 30.0
# A host that has served for so long and then dies by itself starts a new row.
STEADY_S = 600.0
# A model that was never loaded gets so many starts: a damaged file crashes the library each time.
MAX_FIRST_CRASHES = 5


class RestartPolicy:
    """Counts crashes until something is answered in between. Owned by the host's event loop."""

    __slots__ = ("in_a_row",)

    def __init__(self) -> None:
        self.in_a_row = 0

    def reset(self) -> None:
        """End the row: the host works."""
        self.in_a_row = 0

    def record_crash(self, lived_s: float) -> None:
        """Count a crash of a host that had lived for so long; 0 if it had to be killed."""
        if lived_s > STEADY_S:
            self.in_a_row = 0
        self.in_a_row += 1

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start: doubled with each crash, up to a maximum."""
        doublings = min(max(self.in_a_row - 1, 0), 30)
        return min(FIRST_BACKOFF_S * 2.0**doublings, MAX_BACKOFF_S)
