"""Return memory that Python has freed to the operating system."""

from __future__ import annotations

import ctypes

from engine.doctor.machine_info import resident_mb

# A trim pauses the process for some milliseconds, so smaller growth is ignored.
_MIN_GROWTH_MB = 32


class Heap:
    """Trims the C library's heap after it has grown.

    glibc keeps much of the memory that large request bodies used: after a large block has been
    freed, it allocates blocks of that size from its heap, which shrinks only from its end. Without
    a trim the server would keep the memory of an attack for good.
    """

    def __init__(self) -> None:
        self._last_mb = resident_mb()

    def trim_if_grown(self) -> bool:
        """Return free memory to the system if the process has grown much since the last call."""
        current_mb = resident_mb()
        if current_mb is None or self._last_mb is None:  # not on Linux
            return False
        has_grown = current_mb > self._last_mb + _MIN_GROWTH_MB
        if has_grown:
            _trim()
            current_mb = resident_mb()
        self._last_mb = current_mb
        return has_grown


def _trim() -> None:
    # Only glibc has this function.
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
