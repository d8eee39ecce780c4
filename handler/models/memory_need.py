"""Estimate the memory that a loaded model takes."""

from __future__ import annotations

from pathlib import Path

from engine.backends.gguf import read_header
from engine.errors import ModelLoadFailed

# The process, its libraries and buffers: 70 MB were measured with a small model, and buffers grow
# with the model.
_PROCESS_BYTES = 100 * 2**20
_BUFFER_SHARE = 0.05


def estimate_bytes(path: Path, context_tokens: int, projector: Path | None = None) -> int:
    """Return the memory for a model file and a cache of that many tokens, of all slots together.

    A projector turns images into input of the model.

    Other formats do not state the size of the cache, so it is not counted for them. A missing or
    damaged file counts as empty; the load of the model reports the reason.
    """
    try:
        size = path.stat().st_size
        token_bytes = read_header(path).cache_bytes_per_token if path.suffix == ".gguf" else 0
        size += projector.stat().st_size if projector is not None else 0
    except (OSError, ModelLoadFailed):
        size = token_bytes = 0
    return int(size * (1 + _BUFFER_SHARE)) + token_bytes * context_tokens + _PROCESS_BYTES
