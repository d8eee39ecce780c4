"""Build a small LoRA adapter for the built-in model: random weights that change its answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.projector import encode_gguf

_RANK = 4
# The built-in model's width and number of layers.
_WIDTH, _LAYERS = 576, 30


def build_lora_adapter(path: Path, seed: int = 1, width: int = _WIDTH) -> Path:
    """Write an adapter of the attention's output; each seed is another adapter. Return its path."""
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(_LAYERS):
        name = f"blk.{layer}.attn_output.weight"
        tensors[f"{name}.lora_a"] = random.normal(0, width**-0.5, (_RANK, width))
        tensors[f"{name}.lora_b"] = random.normal(0, 0.5, (width, _RANK))
    properties: dict[str, object] = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(_RANK),
    }
    path.write_bytes(encode_gguf(properties, tensors))
    return path
