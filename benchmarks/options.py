"""What a run of the benchmarks was asked for."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How often and how much to measure.

    `pairs` is how many times ours and the peer's take turns; `quick` makes every part of a run
    shorter, for trying the benchmarks out: its figures are no evidence.
    """

    pairs: int = 10
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        """Return how much to measure of something."""
        return quick if self.quick else full


def say(text: str) -> None:
    """Tell the person who waits what is being measured; stdout is for the tables."""
    print(text, file=sys.stderr, flush=True)
