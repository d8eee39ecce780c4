"""One stream's way from the thread that produces to the loop that consumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class DeltaChannel(Generic[T]):
    """Hands items over with one wake-up for all that are pending.

    The producer (one thread at a time) appends and, unless a wake-up is under way already, calls
    `wake`. The consumer (one thread or loop) lets itself be woken and drains everything at once, so
    a consumer that lags finds a longer batch instead of more wake-ups: a wake-up per token costs
    5-13 µs, this costs about one. The order in `drain` matters: disarm first, take the items
    second; the other way round an item put in between would wait for a wake-up that never comes.

    Nothing here blocks or limits: the producer may be a C callback that must not wait. Callers
    bound what is pending (`TokenStream` by characters, the host's outbox by deltas).
    """

    __slots__ = ("_armed", "_wake", "pending")

    def __init__(self, wake: Callable[[], object]) -> None:
        # For others to look at, always the same list: a method would cost each token a step.
        self.pending: list[T] = []
        self._armed = False
        self._wake = wake

    def put(self, item: T) -> None:
        """Append one item; producer side."""
        self.pending.append(item)
        if not self._armed:
            self._armed = True
            self._wake()

    def append_without_wake(self, item: T) -> None:
        """Append one item for whoever drains next, and wake nobody; producer side."""
        self.pending.append(item)

    def extend(self, items: Sequence[T]) -> None:
        """Append several items with one wake-up at the most; producer side."""
        self.pending.extend(items)
        if not self._armed:
            self._armed = True
            self._wake()

    def detach(self) -> None:
        """Wake nobody any more; what is pending stays."""
        self._wake = _nobody

    def drain(self) -> list[T]:
        """Take all that is pending, in order, perhaps nothing; consumer side."""
        self._armed = False
        items = self.pending
        if not items:
            return []
        taken = len(items)
        batch = items[:taken]
        del items[:taken]
        return batch


def _nobody() -> None:
    """Nobody waits."""
