"""Memory that Python has freed, given back to the operating system."""

from __future__ import annotations

import ctypes

from engine.machine_info import resident_mb

# Less growth than this is not worth a pause of some milliseconds.
_GROWTH_MB = 32


class Heap:
    """Trims the C library's heap after it has grown.

    glibc keeps much of what large request bodies used: once a large block has been freed, it takes
    blocks of that size from its heap, which shrinks only from its end. Without a trim the server
    would keep the memory of an attack for good.
    """

    def __init__(self) -> None:
        self._known_mb = resident_mb()

    def trim_if_grown(self) -> bool:
        """Give free memory back if the process has grown much since the last call."""
        resident = resident_mb()
        if resident is None or self._known_mb is None:  # no Linux
            return False
        has_grown = resident > self._known_mb + _GROWTH_MB
        if has_grown:
            _trim()
            resident = resident_mb()
        self._known_mb = resident
        return has_grown


def _trim() -> None:
    # Only glibc has it.
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
