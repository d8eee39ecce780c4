"""Progress of a batch: lines answered, failed and retried, and the rates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class BatchProgress:
    """Counts of a run, updated with each answered line and read by the progress display.

    `done_before` is the number of lines that earlier runs answered. They count in `done`, but not
    in the rates. `on_line` is called for each answered line with whether it succeeded.
    """

    total: int
    done: int = 0
    failed: int = 0
    tokens: int = 0
    retries: int = 0
    done_before: int = 0
    on_line: Callable[[bool], object] = lambda ok: None
    started_s: float = field(default_factory=time.monotonic)

    def record_line(self, *, ok: bool, tokens: int) -> None:
        """Count an answered line and the tokens of its answer."""
        self.done += 1
        self.failed += not ok
        self.tokens += tokens
        self.on_line(ok)

    @property
    def elapsed_s(self) -> float:
        """Duration of this run so far, at least 1 ms."""
        return max(time.monotonic() - self.started_s, 0.001)

    @property
    def lines_per_s(self) -> float:
        """Lines per second of this run."""
        return (self.done - self.done_before) / self.elapsed_s

    @property
    def remaining_s(self) -> float | None:
        """Estimated remaining time at this rate; None before the first line."""
        rate = self.lines_per_s
        return (self.total - self.done) / rate if rate else None

    def format_rates(self) -> str:
        """Return the rates, and the counts of failures and retries, as text.

        The rate of tokens is left out while no answer had any: embeddings have none, and some
        servers do not count them.
        """
        parts = [f"{self.lines_per_s:,.1f} lines/s"]
        if self.tokens:
            parts.append(f"{self.tokens / self.elapsed_s:,.0f} tokens/s")
        if self.failed:
            parts.append(f"{self.failed:,} failed ({self.failed / self.done:.1%})")
        if self.retries:
            parts.append(f"{self.retries:,} retried")
        return ", ".join(parts)
