"""Write a small LoRA adapter for the tiny model: random weights that change its answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.models import llama
from tests.models.gguf_file import write_gguf

_RANK = 4


def build_lora_adapter(path: Path, seed: int = 1, width: int = llama.WIDTH) -> Path:
    """Write an adapter of the attention's output; each seed is another adapter. Return its path."""
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(llama.LAYERS):
        name = f"blk.{layer}.attn_output.weight"
        tensors[f"{name}.lora_a"] = random.normal(0, width**-0.5, (_RANK, width))
        tensors[f"{name}.lora_b"] = random.normal(0, 0.5, (width, _RANK))
    properties: dict[str, object] = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(_RANK),
    }
    return write_gguf(path, properties, tensors)
