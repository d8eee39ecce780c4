"""Limit the memory of all request bodies that have not been parsed yet."""

from __future__ import annotations

import asyncio
from collections import Counter

# The first bytes of each request are not counted: ordinary requests are served even while large
# bodies use up the budget. The number of connections bounds them.
FREE_BYTES = 65_536
# The extension of the ASGI scope that holds the request's `ReceivedBody`.
BODY_EXTENSION = "emulator.received"


class BodyBudget:
    """The sum of the received bytes of all requests that have not been parsed or stored yet.

    Each address has its own, lower limit, so that one client leaves room for others. `max_values`
    limits the JSON values of each body, because parsed values need memory too.
    Owned by the event loop.
    """

    def __init__(self, limit_bytes: int, limit_bytes_per_address: int, max_values: int) -> None:
        self.limit_bytes = limit_bytes
        self.limit_bytes_per_address = limit_bytes_per_address
        self.max_values = max_values
        self.used_bytes = 0
        self._by_address: Counter[str] = Counter()
        # Large bodies are parsed one at a time, because parsing holds the GIL.
        self.parsing = asyncio.Lock()

    def reserve(self, address: str, size: int) -> bool:
        """Count `size` bytes; return False, counting nothing, if a limit would be exceeded."""
        used_by_address = self._by_address.get(address, 0) + size
        if (
            self.used_bytes + size > self.limit_bytes
            or used_by_address > self.limit_bytes_per_address
        ):
            return False
        self.used_bytes += size
        self._by_address[address] = used_by_address
        return True

    def release(self, address: str, size: int) -> None:
        """Stop counting `size` bytes that `reserve` has counted."""
        self.used_bytes -= size
        self._by_address[address] -= size
        if not self._by_address[address]:
            del self._by_address[address]


class ReceivedBody:
    """The bytes of one request that are counted in the budget."""

    __slots__ = ("_address", "_free_bytes", "_reserved_bytes", "budget")

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self.budget = budget
        self._address = address
        self._free_bytes = FREE_BYTES
        self._reserved_bytes = 0

    def add(self, size: int) -> bool:
        """Count more bytes; return False if the budget has no room for them."""
        free = min(size, self._free_bytes)
        if size > free and not self.budget.reserve(self._address, size - free):
            return False
        self._free_bytes -= free
        self._reserved_bytes += size - free
        return True

    def release(self, size: int | None = None) -> None:
        """Stop counting `size` bytes that are no longer in memory; None: all of them."""
        size = self._reserved_bytes if size is None else min(size, self._reserved_bytes)
        if size:
            self._reserved_bytes -= size
            self.budget.release(self._address, size)
