"""The command line options of a run."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How often and how much to measure.

    `pairs` is the number of turns of ours and the peer. `quick` shortens all parts of a run, to try
    out the benchmarks; its figures are not evidence.
    """

    pairs: int = 10
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        """Return the amount to measure, depending on `quick`."""
        return quick if self.quick else full


def print_progress(text: str) -> None:
    """Print the current measurement to stderr; stdout is for the tables."""
    print(text, file=sys.stderr, flush=True)
