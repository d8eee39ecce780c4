"""Rows of floats in the runtime's memory, which ends with the callback that brings them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_FLOAT_BYTES = ctypes.sizeof(ctypes.c_float)


@dataclass(frozen=True, slots=True)
class FloatRows:
    """Where they are, how many, and how many floats each of them has."""

    address: int
    count: int
    width: int

    @classmethod
    def at(cls, floats: Any, count: int, width: int) -> FloatRows | None:
        """Return the rows that a pointer leads to, None where a callback brings none."""
        if not floats or count <= 0 or width <= 0:
            return None
        return cls(ctypes.addressof(floats.contents), count, width)

    def copied(self, first: int, count: int) -> bytes:
        """Return so many of them from the `first` on."""
        size = self.width * _FLOAT_BYTES
        return ctypes.string_at(self.address + first * size, count * size)
