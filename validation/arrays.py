"""Import of numpy on one thread, for the small arrays of one text."""

from __future__ import annotations

import os
from typing import Any

_VARIABLE = "OPENBLAS_NUM_THREADS"


def import_numpy() -> Any:
    """Return numpy, limited to one thread unless OPENBLAS_NUM_THREADS is set.

    By default OpenBLAS wakes a thread per core even for twenty rows, and on a busy machine waits
    for them thirty times as long as the work takes. It reads the variable at the first import of
    numpy, so this has no effect after another import. The variable is removed afterwards, because
    it is not meant for the processes that this one starts. `os.environ` is left alone: another
    thread that reads all of it at the moment of the removal would get a KeyError.

    Raises:
        ImportError: numpy is not installed.
    """
    if _VARIABLE in os.environ:
        import numpy as np

        return np
    os.putenv(_VARIABLE, "1")
    try:
        import numpy as np
    finally:
        os.unsetenv(_VARIABLE)
    return np
