"""The policy and the shared parts that all batches are answered with."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from batch.line_executor import LineExecutor
from emulator.batches.input_validation import LineLimits
from emulator.batches.repository import BatchRepository
from engine import AnyEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPolicy:
    """How batches are answered.

    `share` is the fraction of the engine's slots that batches may use, at least one slot. A batch
    expires after `window_s`. Files without an expiry of their own are deleted after `retention_s`.
    """

    limits: LineLimits
    share: float
    max_attempts: int
    window_s: float
    retention_s: float

    def concurrency(self, slots: int) -> int:
        """Return how many lines may be answered at the same time."""
        return max(1, math.floor(self.share * slots))


@dataclass(frozen=True, slots=True)
class BatchContext:
    """The parts and settings that all batches share.

    The batch that holds `answer_lock` is the one whose lines are answered. `on_line` is called for
    each answered line with whether it succeeded.
    """

    repository: BatchRepository
    line_executor: LineExecutor
    engine: AnyEngine
    policy: BatchPolicy
    answer_lock: asyncio.Lock
    on_line: Callable[[bool], object]
