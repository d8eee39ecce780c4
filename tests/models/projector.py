"""Build a small projector: random weights that turn an image into four vectors for a model.

No real projector can be downloaded where the tests run. This one has a type that llama.cpp supports
(LLaVA's), so the tests run llama.cpp's own code for images, but the model does not understand what
the images show: it only answers differently.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.models.gguf_file import FloatArray, write_gguf

_SIDE, _PATCH, _WIDTH, _HEADS = 28, 14, 32, 2


def build_projector(path: Path, model_width: int) -> Path:
    """Write a projector for models with vectors of `model_width`; return its path."""
    random = np.random.default_rng(1)

    def weights(*shape: int) -> FloatArray:
        return random.normal(0, shape[-1] ** -0.5, shape)

    tensors: dict[str, FloatArray] = {
        "v.class_embd": weights(_WIDTH),
        "v.patch_embd.weight": weights(_WIDTH, 3, _PATCH, _PATCH),
        "v.position_embd.weight": weights((_SIDE // _PATCH) ** 2 + 1, _WIDTH),
        "mm.0.weight": weights(model_width, _WIDTH),
        "mm.0.bias": np.zeros(model_width),
        "mm.2.weight": weights(model_width, model_width),
        "mm.2.bias": np.zeros(model_width),
    }
    for name in ("v.pre_ln", "v.blk.0.ln1", "v.blk.0.ln2"):
        tensors |= {f"{name}.weight": np.ones(_WIDTH), f"{name}.bias": np.zeros(_WIDTH)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down"):
        tensors[f"v.blk.0.{name}.weight"] = weights(_WIDTH, _WIDTH)
        tensors[f"v.blk.0.{name}.bias"] = np.zeros(_WIDTH)
    properties: dict[str, object] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": True,
        "clip.vision.image_size": _SIDE,
        "clip.vision.patch_size": _PATCH,
        "clip.vision.embedding_length": _WIDTH,
        "clip.vision.feed_forward_length": _WIDTH,
        "clip.vision.projection_dim": model_width,
        "clip.vision.attention.head_count": _HEADS,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.block_count": 1,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }
    return write_gguf(path, properties, tensors)
