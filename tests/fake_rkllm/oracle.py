"""The stand-in's model of `vocabulary`, once more in Python: what its logits have to be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_NO_HASH = 2166136261


def logits_after(tokens: Sequence[int], vocabulary: int, lora: str = "") -> NDArray[np.float32]:
    """Return the numbers for what comes after these tokens, the first of them at the beginning."""
    kept = _NO_HASH
    for token in tokens:
        kept = ((kept ^ token) * 16777619) % 2**32
    kept = (kept + len(lora)) % 2**32
    columns = np.arange(vocabulary, dtype=np.uint32)
    mixed = (np.uint32(kept) ^ (columns * np.uint32(2654435761))) * np.uint32(2246822519)
    return ((mixed >> np.uint32(16)) % 1000).astype(np.float32) / np.float32(100)
