"""Write a tiny chat model as a GGUF file: Llama with two layers and random weights.

Its answers are words without meaning, but everything else is as with a large model: they depend on
the whole prompt, end by themselves, and the model has ChatML's template and special tokens. It
loads and answers a hundred times as fast as the built-in model, which the tests use only where a
promise is about its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.models.gguf_file import FloatArray, write_gguf

WIDTH, LAYERS = 64, 2
_HEADS, _KEY_HEADS, _INNER_WIDTH = 4, 2, 128
CONTEXT = 8192
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a tiny model<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# The first three have the ids of the built-in model's.
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BEGIN, END = 1, 2
# Words that are one token, with the space before them.
_WORDS = (
    *("a", "and", "apple", "banana", "bird", "blue", "cat", "cherry", "day", "dog", "eat", "four"),
    *("go", "good", "green", "hello", "house", "I", "in", "is", "it", "moon", "of", "one", "red"),
    *("no", "river", "sea", "see", "sun", "the", "three", "to", "tree", "two", "was", "water"),
    *("word", "yes"),
)
_CONTROL_TOKEN, _NORMAL_TOKEN = 3, 1
# How much likelier a word is than any other token, and the end than a byte.
_WORD_BIAS, _END_BIAS, _OTHER_BIAS = 0.5, 0.7, -1.0


def write_llama_model(
    path: Path,
    *,
    template: str = TEMPLATE,
    special_tokens: tuple[str, ...] = (),
    properties: Mapping[str, object] | None = None,
    seed: int = 1,
) -> Path:
    """Write the model and return its path; each seed gives other weights.

    `special_tokens` are added to ChatML's, and `properties` to those of the header.
    """
    tokens, merges = _build_vocabulary((*_SPECIAL, *special_tokens))
    special = len(_SPECIAL) + len(special_tokens)
    header: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.size_label": "0.1M",
        "general.file_type": 1,
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": _INNER_WIDTH,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _KEY_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // _HEADS,
        "llama.vocab_size": len(tokens),
        # Our reader of headers stops where the vocabulary begins.
        **(properties or {}),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL_TOKEN] * special
        + [_NORMAL_TOKEN] * (len(tokens) - special),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": _BEGIN,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": template,
    }
    write_gguf(path, header, _build_tensors(tokens, seed))
    return path


def _build_tensors(tokens: list[str], seed: int) -> dict[str, FloatArray]:
    random = np.random.default_rng(seed)

    def weights(rows: int, columns: int, scale: float = 1.0) -> FloatArray:
        return random.normal(0, scale * columns**-0.5, (rows, columns))

    embeddings = random.normal(0, 1, (len(tokens), WIDTH))
    # The first dimension is the same for all tokens, so that the output can prefer some of them.
    embeddings[:, 0] = 2
    output = weights(len(tokens), WIDTH, scale=3)
    output[:, 0] = [_output_bias(token) for token in tokens]
    output[:, 0] *= 8
    tensors: dict[str, FloatArray] = {
        "token_embd.weight": embeddings,
        "output_norm.weight": np.ones(WIDTH),
        "output.weight": output,
    }
    key_width = WIDTH // _HEADS * _KEY_HEADS
    for layer in (f"blk.{number}" for number in range(LAYERS)):
        tensors |= {
            f"{layer}.attn_norm.weight": np.ones(WIDTH),
            f"{layer}.attn_q.weight": weights(WIDTH, WIDTH),
            f"{layer}.attn_k.weight": weights(key_width, WIDTH),
            f"{layer}.attn_v.weight": weights(key_width, WIDTH),
            f"{layer}.attn_output.weight": _keep_first(weights(WIDTH, WIDTH, scale=2)),
            f"{layer}.ffn_norm.weight": np.ones(WIDTH),
            f"{layer}.ffn_gate.weight": weights(_INNER_WIDTH, WIDTH),
            f"{layer}.ffn_up.weight": weights(_INNER_WIDTH, WIDTH),
            f"{layer}.ffn_down.weight": _keep_first(weights(WIDTH, _INNER_WIDTH)),
        }
    return tensors


def _keep_first(matrix: FloatArray) -> FloatArray:
    """Let a layer leave the first dimension as it is."""
    matrix[0] = 0
    return matrix


def _output_bias(token: str) -> float:
    if token.removeprefix("Ġ") in _WORDS and token.startswith("Ġ"):
        return _WORD_BIAS
    if token == _SPECIAL[END]:
        return _END_BIAS
    return _OTHER_BIAS


def _build_vocabulary(special: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the tokens and merges of a BPE tokenizer with all bytes and some words."""
    tokens = [*special, *_byte_characters()]
    merges: dict[str, None] = {}
    known = set(tokens)
    for word in _WORDS:
        token = "Ġ"
        for character in word:
            merges[f"{token} {character}"] = None
            token += character
            if token not in known:
                known.add(token)
                tokens.append(token)
    return tokens, list(merges)


def _byte_characters() -> list[str]:
    """Return the characters that stand for the 256 bytes in GPT-2's vocabulary."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]
