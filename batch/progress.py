"""Progress of a run: lines answered, failed and retried, and the rates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class BatchProgress:
    """Counts lines as they are answered; the progress display reads the counts periodically.

    `before` is the number of lines that earlier runs answered. They count in `done`, but not in
    the rates. `told` is called for each line with whether it succeeded.
    """

    total: int
    done: int = 0
    failed: int = 0
    tokens: int = 0
    retries: int = 0
    before: int = 0
    told: Callable[[bool], object] = lambda ok: None
    begun_s: float = field(default_factory=time.monotonic)

    def count(self, *, ok: bool, tokens: int) -> None:
        """Count an answered line."""
        self.done += 1
        self.failed += not ok
        self.tokens += tokens
        self.told(ok)

    @property
    def seconds(self) -> float:
        """Duration of this run so far."""
        return max(time.monotonic() - self.begun_s, 0.001)

    @property
    def lines_per_s(self) -> float:
        """Lines per second of this run."""
        return (self.done - self.before) / self.seconds

    @property
    def left_s(self) -> float | None:
        """Estimated remaining time at this rate; None before the first line."""
        rate = self.lines_per_s
        return (self.total - self.done) / rate if rate else None

    def rates(self) -> str:
        """Return the rates and the counts of failures and retries as text."""
        said = [f"{self.lines_per_s:,.1f} lines/s", f"{self.tokens / self.seconds:,.0f} tokens/s"]
        if self.failed:
            said.append(f"{self.failed:,} failed")
        if self.retries:
            said.append(f"{self.retries:,} retried")
        return ", ".join(said)
