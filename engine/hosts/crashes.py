"""A host's crashes in a row: how long to wait after each, and when to give it up."""

from __future__ import annotations

MAX_CRASHES = 5
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
# A host that has served so long, and then dies by itself, is the first in a row.
STEADY_S = 600.0


class Crashes:
    """Counts crashes until something is answered in between. Owned by the host's event loop."""

    __slots__ = ("in_a_row",)

    def __init__(self) -> None:
        self.in_a_row = 0

    def answered(self) -> None:
        """End the row: the host does what it is for."""
        self.in_a_row = 0

    def add(self, steady_s: float) -> None:
        """Count one, after so long a life; none is steady that had to be ended."""
        if steady_s > STEADY_S:
            self.in_a_row = 0
        self.in_a_row += 1

    @property
    def too_many(self) -> bool:
        """Whether another start would end the same way."""
        return self.in_a_row >= MAX_CRASHES

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start."""
        return min(FIRST_BACKOFF_S * 2.0 ** (self.in_a_row - 1), MAX_BACKOFF_S)
