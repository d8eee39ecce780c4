"""A limit on the work for one text."""

from __future__ import annotations

# Number of positions to examine, each of which costs as much as reading some hundred characters. A
# megabyte of a real answer has a few hundred; only a hostile text has more than this.
MAX_POSITIONS = 40_000


class BudgetExceeded(Exception):
    """A text needs more work than any real answer."""


class Budget:
    """The remaining work for one text, shared by all passes."""

    def __init__(self, positions: int = MAX_POSITIONS) -> None:
        self.remaining = positions

    def spend(self, positions: int = 1) -> None:
        """Count positions that are examined.

        Raises:
            BudgetExceeded: there is no budget left.
        """
        self.remaining -= positions
        if self.remaining < 0:
            raise BudgetExceeded
