"""How many lines are in progress at a time: fewer while the servers are overloaded."""

from __future__ import annotations

import asyncio

from batch.remote.adaptive_limit import AdaptiveLimit


class ConcurrencyLimit:
    """A semaphore with the limit of an AdaptiveLimit. Owned by the event loop."""

    def __init__(self, maximum: int) -> None:
        self._adaptive = AdaptiveLimit(maximum)
        self.in_use = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def limit(self) -> float:
        """How many lines may be in progress, rounded down; at least 1."""
        return self._adaptive.value

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

    def record_answer(self, latency_s: float, tokens: int) -> None:
        """Adapt the limit to a complete answer of `tokens` tokens, at least 1."""
        self._adaptive.record_answer(latency_s, tokens, self.in_use)
        self._wake()

    def record_refusal(self) -> None:
        """Lower the limit, at most once a second."""
        self._adaptive.record_refusal()

    def _wake(self) -> None:
        free = int(self.limit) - self.in_use
        for turn in self._waiting[: max(free, 0)]:
            if not turn.done():
                turn.set_result(None)
