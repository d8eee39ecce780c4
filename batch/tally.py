"""How far a run has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts lines as they are answered; whoever shows it looks now and then.

    `before` were answered by earlier runs and are part of `done`, but not of any rate. `told` hears
    of each line whether it was answered well.
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
        """Take down a line that has been answered."""
        self.done += 1
        self.failed += not ok
        self.tokens += tokens
        self.told(ok)

    @property
    def seconds(self) -> float:
        """How long this run has taken."""
        return max(time.monotonic() - self.begun_s, 0.001)

    @property
    def lines_per_s(self) -> float:
        """How fast this run answers."""
        return (self.done - self.before) / self.seconds

    @property
    def left_s(self) -> float | None:
        """How much longer it takes at this rate; None where that is unknown."""
        rate = self.lines_per_s
        return (self.total - self.done) / rate if rate else None

    def rates(self) -> str:
        """Return the rates, and what went wrong so far, for people."""
        said = [f"{self.lines_per_s:,.1f} lines/s", f"{self.tokens / self.seconds:,.0f} tokens/s"]
        if self.failed:
            said.append(f"{self.failed:,} failed")
        if self.retries:
            said.append(f"{self.retries:,} tried again")
        return ", ".join(said)
