"""Write a tiny reranking model as a GGUF file: BERT with one layer and random weights.

Its scores mean nothing, but llama.cpp computes them as those of bge-reranker.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from pathlib import Path

CONTEXT = 64
_WIDTH, _INNER_WIDTH = 32, 64
_ALIGNMENT = 32
# The numbers of GGUF's value types, and of the type of the tensors.
_INT32, _UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 5, 4, 6, 7, 8, 9
_TENSOR_FLOAT32 = 0
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = ("capital", "of", "france", "paris", "bananas", "are", "yellow", "one", "a", "b")


def write_reranking_model(path: Path) -> None:
    """Write the model, whose vocabulary has a few words; the same file every time."""
    tokens = (*_SPECIAL, *(f"\u2581{word}" for word in _WORDS))
    types = [3] * len(_SPECIAL) + [1] * len(_WORDS)
    numbers = {
        "bert.block_count": 1,
        "bert.context_length": CONTEXT,
        "bert.embedding_length": _WIDTH,
        "bert.feed_forward_length": _INNER_WIDTH,
        "bert.attention.head_count": 2,
        "bert.pooling_type": 4,
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }
    pairs = [
        _pair("general.architecture", _STRING, _text("bert")),
        *(_pair(name, _UINT32, struct.pack("<I", value)) for name, value in numbers.items()),
        _pair("bert.attention.layer_norm_epsilon", _FLOAT32, struct.pack("<f", 1e-12)),
        _pair("bert.attention.causal", _BOOL, b"\0"),
        _pair("tokenizer.ggml.model", _STRING, _text("bert")),
        _array("tokenizer.ggml.tokens", _STRING, [_text(token) for token in tokens]),
        _array("tokenizer.ggml.token_type", _INT32, [struct.pack("<i", each) for each in types]),
    ]
    weights = random.Random(1)
    infos, data = b"", b""
    shapes = _tensor_shapes(len(tokens))
    for name, shape in shapes.items():
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += _text(name) + dimensions + struct.pack("<IQ", _TENSOR_FLOAT32, len(data))
        count = math.prod(shape)
        values = [weights.uniform(-1, 1) for _ in range(count)]
        data += _padded(struct.pack(f"<{count}f", *values))
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(pairs))
    path.write_bytes(_padded(header + b"".join(pairs) + infos) + data)


def _tensor_shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    linear = {f"blk.0.attn_{name}": (_WIDTH, _WIDTH) for name in ("q", "k", "v", "output")}
    linear |= {"blk.0.ffn_up": (_WIDTH, _INNER_WIDTH), "blk.0.ffn_down": (_INNER_WIDTH, _WIDTH)}
    # The head that turns the first token's vector into the score.
    linear |= {"cls": (_WIDTH, _WIDTH), "cls.output": (_WIDTH, 1)}
    norms = ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm")
    return {
        "token_embd.weight": (_WIDTH, tokens),
        "position_embd.weight": (_WIDTH, CONTEXT),
        "token_types.weight": (_WIDTH, 2),
        **{f"{name}.{part}": (_WIDTH,) for name in norms for part in ("weight", "bias")},
        **{f"{name}.weight": shape for name, shape in linear.items()},
        **{f"{name}.bias": shape[1:] for name, shape in linear.items()},
    }


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _pair(name: str, value_type: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", value_type) + value


def _array(name: str, value_type: int, values: Sequence[bytes]) -> bytes:
    return _pair(name, _ARRAY, struct.pack("<IQ", value_type, len(values)) + b"".join(values))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
