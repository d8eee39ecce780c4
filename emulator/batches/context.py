"""What all batches have in common while they are answered."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from batch.line_executor import LineExecutor
from emulator.batches.input_validation import LineLimits
from emulator.batches.repository import BatchStore
from engine import AnyEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How batches are answered.

    `share` is the part of the engine's slots that they may have, one at least; `window_s` is how
    long a batch may take, and `kept_s` how long files are kept that nobody said it of.
    """

    limits: LineLimits
    share: float
    tries: int
    window_s: float
    kept_s: float

    def concurrency(self, slots: int) -> int:
        """Return how many lines may be under way."""
        return max(1, math.floor(self.share * slots))


@dataclass(frozen=True, slots=True)
class Means:
    """What all batches share: `turn` is had by the one that is being answered.

    `on_line` is told of each line whether it was answered well.
    """

    store: BatchStore
    answerer: LineExecutor
    engine: AnyEngine
    terms: Terms
    turn: asyncio.Lock
    on_line: Callable[[bool], object]
