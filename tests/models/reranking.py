"""Write a tiny reranking model as a GGUF file: BERT with one layer and random weights.

Its scores mean nothing, but llama.cpp computes them as those of bge-reranker.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.models.gguf_file import write_gguf

CONTEXT = 64
_WIDTH, _INNER_WIDTH = 32, 64
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = ("capital", "of", "france", "paris", "bananas", "are", "yellow", "one", "a", "b")


def write_reranking_model(path: Path) -> None:
    """Write the model, whose vocabulary has a few words; the same file every time."""
    tokens = [*_SPECIAL, *(f"\u2581{word}" for word in _WORDS)]
    properties: dict[str, object] = {
        "general.architecture": "bert",
        "bert.block_count": 1,
        "bert.context_length": CONTEXT,
        "bert.embedding_length": _WIDTH,
        "bert.feed_forward_length": _INNER_WIDTH,
        "bert.attention.head_count": 2,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        # llama.cpp's number for ranking.
        "bert.pooling_type": 4,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(_SPECIAL) + [1] * len(_WORDS),
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }
    random = np.random.default_rng(1)
    shapes = _tensor_shapes(len(tokens))
    tensors = {name: random.uniform(-1, 1, shape) for name, shape in shapes.items()}
    write_gguf(path, properties, tensors)


def _tensor_shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    linear = {f"blk.0.attn_{name}": (_WIDTH, _WIDTH) for name in ("q", "k", "v", "output")}
    linear |= {"blk.0.ffn_up": (_INNER_WIDTH, _WIDTH), "blk.0.ffn_down": (_WIDTH, _INNER_WIDTH)}
    # The head that turns the first token's vector into the score.
    linear |= {"cls": (_WIDTH, _WIDTH), "cls.output": (1, _WIDTH)}
    norms = ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm")
    return {
        "token_embd.weight": (tokens, _WIDTH),
        "position_embd.weight": (CONTEXT, _WIDTH),
        "token_types.weight": (2, _WIDTH),
        **{f"{name}.{part}": (_WIDTH,) for name in norms for part in ("weight", "bias")},
        **{f"{name}.weight": shape for name, shape in linear.items()},
        **{f"{name}.bias": shape[:1] for name, shape in linear.items()},
    }
