"""The expected logits of the fake library: its `vocabulary` model, implemented in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_NO_HASH = 2166136261


def logits_after(tokens: Sequence[int], vocabulary: int, lora: str = "") -> NDArray[np.float32]:
    """Return the logits after these tokens, which start with the first one of the context."""
    state = _NO_HASH
    for token in tokens:
        state = ((state ^ token) * 16777619) % 2**32
    state = (state + len(lora)) % 2**32
    columns = np.arange(vocabulary, dtype=np.uint32)
    mixed = (np.uint32(state) ^ (columns * np.uint32(2654435761))) * np.uint32(2246822519)
    return ((mixed >> np.uint32(16)) % 1000).astype(np.float32) / np.float32(100)
