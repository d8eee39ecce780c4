"""The special tokens in the vocabulary of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends.gguf_vocabulary import SpecialTokens, read_special_tokens
from tests.models.gguf_file import write_gguf

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def write(path: Path, tokens: dict[str, int], **ids: int) -> Path:
    properties: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": list(tokens.values()),
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()},
        "tokenizer.chat_template": "<turn>",
    }
    return write_gguf(path / "tiny.gguf", properties, {"a": np.zeros(32)})


def test_control_tokens_are_read_with_those_of_the_template(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": NORMAL, "<s>": CONTROL, "<turn>": 4, "<table>": USER_DEFINED})
    assert read_special_tokens(path).control == ("<s>", "<turn>")


@pytest.mark.parametrize(
    ("tokens", "ids", "expected"),
    [
        # The header names one end token, and the turns end with another.
        (["a", "<|endoftext|>", "<|im_end|>"], {"eos": 1}, (1, 2)),
        (["<eos>", "<end_of_turn>", "a"], {"eos": 0, "eot": 1}, (0, 1)),
        # In harmony the other mark separates the parts of an answer.
        (["<|end|>", "<|return|>"], {"eos": 1}, (1,)),
        (["<|endoftext|>", "<|end|>"], {"eos": 0}, (0, 1)),
        # An id that no token has.
        (["a"], {"eos": 7}, ()),
        (["a"], {}, ()),
    ],
)
def test_end_tokens_are_those_of_the_header_and_of_known_texts(
    tmp_path: Path, tokens: list[str], ids: dict[str, int], expected: tuple[int, ...]
) -> None:
    kinds = {text: CONTROL if text.startswith("<") else NORMAL for text in tokens}
    assert read_special_tokens(write(tmp_path, kinds, **ids)).end_ids == expected


def test_file_without_a_vocabulary_has_no_special_tokens(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"general.architecture": "bert"}, {"a": np.zeros(32)})
    assert read_special_tokens(path) == SpecialTokens()
