"""The memory that request bodies may take until they are parsed, over all connections."""

from __future__ import annotations

import asyncio

# The first bytes of each request are not counted: ordinary requests are served even while large
# bodies use up the budget. The number of connections bounds them.
FREE_BYTES = 65_536
# The extension of a request's scope that holds its `ReceivedBody`.
RECEIVED = "emulator.received"


class BodyBudget:
    """The sum of the received bytes of all requests that have not been parsed or stored yet.

    `max_values` is the limit for the JSON values of each body, whose parsing costs memory too.
    Owned by the event loop.
    """

    def __init__(self, limit_bytes: int, max_values: int) -> None:
        self.limit_bytes = limit_bytes
        self.max_values = max_values
        self.used_bytes = 0
        # Parsing holds Python's lock: of two large bodies the second waits for the first.
        self.parsing = asyncio.Lock()

    def reserve(self, size: int) -> bool:
        """Count `size` bytes; return False, counting nothing, if the limit would be exceeded."""
        if self.used_bytes + size > self.limit_bytes:
            return False
        self.used_bytes += size
        return True

    def release(self, size: int) -> None:
        """Stop counting `size` bytes."""
        self.used_bytes -= size


class ReceivedBody:
    """The bytes of one request that are counted in the budget."""

    __slots__ = ("_free_bytes", "_reserved_bytes", "budget")

    def __init__(self, budget: BodyBudget) -> None:
        self.budget = budget
        self._free_bytes = FREE_BYTES
        self._reserved_bytes = 0

    def add(self, size: int) -> bool:
        """Count more bytes; return False if the budget has no room for them."""
        free = min(size, self._free_bytes)
        if size > free and not self.budget.reserve(size - free):
            return False
        self._free_bytes -= free
        self._reserved_bytes += size - free
        return True

    def release(self, size: int | None = None) -> None:
        """Stop counting `size` bytes that are no longer in memory; None: all of them."""
        size = self._reserved_bytes if size is None else min(size, self._reserved_bytes)
        self._reserved_bytes -= size
        self.budget.release(size)
