"""Import of numpy on one thread, for the small arrays of one text."""

from __future__ import annotations

import os
from typing import Any


def import_numpy() -> Any:
    """Return numpy, limited to one thread unless OPENBLAS_NUM_THREADS is set.

    By default OpenBLAS wakes a thread per core even for twenty rows, and on a busy machine waits
    for them thirty times as long as the work takes. It reads the variable at the first import of
    numpy, so this has no effect after another import.

    Raises:
        ImportError: numpy is not installed.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numpy as np

    return np
