"""Build a small projector: random weights that turn an image into four vectors for a model.

No real projector can be downloaded where the tests run. This one has a type that llama.cpp supports
(LLaVA's), so the tests run llama.cpp's own code for images, but the model does not understand what
the images show: it only answers differently.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 32
_SIDE, _PATCH, _WIDTH, _HEADS = 28, 14, 32, 2

Array = NDArray[np.float64]


def build_projector(path: Path, model_width: int) -> Path:
    """Write a projector for models with vectors of `model_width`; return its path."""
    random = np.random.default_rng(1)

    def weights(*shape: int) -> Array:
        return random.normal(0, shape[-1] ** -0.5, shape)

    tensors: dict[str, Array] = {
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
    path.write_bytes(encode_gguf(properties, tensors))
    return path


def encode_gguf(properties: Mapping[str, object], tensors: Mapping[str, Array]) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(properties))
    header += b"".join(_encode_text(key) + _encode_value(properties[key]) for key in properties)
    data = b""
    for name, tensor in tensors.items():
        shape = tuple(reversed(tensor.shape))
        header += _encode_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", 0, len(data))
        data += _pad(tensor.astype("<f4").tobytes())
    return _pad(header) + data


def _encode_value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _encode_text(value)
        case [*numbers]:
            return struct.pack(f"<IIQ{len(numbers)}f", 9, 6, len(numbers), *numbers)
    raise TypeError(value)


def _encode_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _pad(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)
