"""How much one text may cost."""

from __future__ import annotations

# In places to look at, each of which costs as much as reading some hundred characters. A megabyte
# of an answer has a few hundred; a text that has more than that is made to cost time.
MAX_POSITIONS = 40_000


class BudgetExceeded(Exception):
    """A text has more places to look at than any answer."""


class Budget:
    """What is left to spend on one text, over all passes."""

    def __init__(self, places: int = MAX_POSITIONS) -> None:
        self.left = places

    def spend(self, places: int = 1) -> None:
        """Count places that are looked at.

        Raises:
            TooMuchError: there is nothing left.
        """
        self.left -= places
        if self.left < 0:
            raise BudgetExceeded
