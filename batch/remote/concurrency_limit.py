"""How many lines are in progress at a time: fewer while the servers are overloaded."""

from __future__ import annotations

import asyncio
import time

_DECREASE = 0.7
# Refusals within this time are one sign of overload: they are answers to lines sent together.
_DECREASE_INTERVAL_S = 1.0


class ConcurrencyLimit:
    """A semaphore whose limit falls by a third at a refusal, and rises by one per round of answers.

    This is the additive increase and multiplicative decrease of TCP (RFC 5681). It begins at
    `maximum`, and is at least 1. Owned by the event loop.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.limit = float(maximum)
        self.in_use = 0
        self._decreased_at_s = float("-inf")
        self._waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        """Wait until a line may begin, and count it."""
        while self.in_use >= int(self.limit):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        self.in_use += 1

    def release(self) -> None:
        """Count one line less, and let the next ones begin."""
        self.in_use -= 1
        self._wake()

    def record_answer(self) -> None:
        """Raise the limit a little."""
        self.limit = min(self.limit + 1 / self.limit, self.maximum)
        self._wake()

    def record_refusal(self) -> None:
        """Lower the limit, at most once a second."""
        now = time.monotonic()
        if now - self._decreased_at_s >= _DECREASE_INTERVAL_S:
            self._decreased_at_s = now
            self.limit = max(self.limit * _DECREASE, 1.0)

    def _wake(self) -> None:
        free = int(self.limit) - self.in_use
        for turn in self._waiting[: max(free, 0)]:
            if not turn.done():
                turn.set_result(None)
