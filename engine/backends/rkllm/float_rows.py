"""Rows of floats in the runtime's memory, which is valid only during a callback."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_FLOAT_BYTES = ctypes.sizeof(ctypes.c_float)


@dataclass(frozen=True, slots=True)
class FloatRows:
    """The address of the first row, the number of rows, and the number of floats in each."""

    address: int
    count: int
    width: int

    @classmethod
    def from_pointer(cls, floats: Any, count: int, width: int) -> FloatRows | None:
        """Return the rows at a pointer; None if a callback has no rows."""
        if not floats or count <= 0 or width <= 0:
            return None
        return cls(ctypes.addressof(floats.contents), count, width)

    def copy(self, first: int, count: int) -> bytes:
        """Return a copy of `count` rows, starting at row `first`."""
        size = self.width * _FLOAT_BYTES
        return ctypes.string_at(self.address + first * size, count * size)
