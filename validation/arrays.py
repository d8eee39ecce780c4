"""numpy, for arrays as small as those of one text."""

from __future__ import annotations

import os
from typing import Any


def import_numpy() -> Any:
    """Return numpy, on one thread where nobody has said otherwise or imported it before.

    Its linear algebra would wake a thread for each core for twenty rows, and on a busy machine wait
    for them thirty times as long as the work takes. It reads this when it is first imported.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numpy as np

    return np
