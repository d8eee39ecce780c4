"""Read the special tokens from the vocabulary in a GGUF file."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from engine.backends.gguf import read_chat_template

_MAX_HEADER_BYTES = 64 * 2**20
_STRING, _ARRAY, _INT32, _UINT32 = 8, 9, 5, 4
# The types of tokens, as llama.cpp numbers them.
_CONTROL, _USER_DEFINED = 3, 4
# Tokens after which llama.cpp ends an answer: the properties with their ids, and their texts.
_END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id".encode() for name in ("eos", "eot", "eom"))
_END_TEXTS = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"),
        *("<end_of_turn>", "<turn|>", "<|return|>", "<EOT>", "<eos>", "</s>"),
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
# It ends an answer, but for models whose answers end with the other one.
_HARMONY_END, _HARMONY_RETURN = "<|end|>", "<|return|>"


class SpecialTokens(NamedTuple):
    """The texts of the tokens that a message must not have, and the ids that end an answer."""

    control: tuple[str, ...] = ()
    end_ids: tuple[int, ...] = ()


def read_special_tokens(path: Path) -> SpecialTokens:
    """Return the special tokens of a model.

    The control tokens have the other added tokens of the chat template too, because some models
    mark turns with tokens that are no control tokens by their type. Without a vocabulary there are
    none. `read_header` has checked the file before.
    """
    template = read_chat_template(path) or ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            types = _read_types(data)
            tokens = _read_strings(data, b"tokenizer.ggml.tokens")
            added = [
                (number, kind, text.decode(errors="replace"))
                for number, (kind, text) in enumerate(zip(types, tokens, strict=False))
                if kind in (_CONTROL, _USER_DEFINED)
            ]
            end_ids = {number for key in _END_KEYS for number in _read_ids(data, key)}
        except struct.error:
            return SpecialTokens()
    texts = {text for _, _, text in added}
    end_texts = _END_TEXTS if _HARMONY_RETURN in texts else _END_TEXTS | {_HARMONY_END}
    end_ids |= {number for number, _, text in added if text in end_texts}
    return SpecialTokens(
        tuple(text for _, kind, text in added if text and (kind == _CONTROL or text in template)),
        tuple(sorted(number for number in end_ids if number < len(types))),
    )


def _find_value(data: mmap.mmap, key: bytes, *types: int) -> int:
    """Return the position after a key and the types of its value; -1 without it."""
    entry = struct.pack("<Q", len(key)) + key + struct.pack(f"<{len(types)}I", *types)
    start = data.find(entry, 0, _MAX_HEADER_BYTES)
    return start + len(entry) if start >= 0 else -1


def _read_ids(data: mmap.mmap, key: bytes) -> tuple[int, ...]:
    start = _find_value(data, key, _UINT32)
    return struct.unpack_from("<I", data, start) if start >= 0 else ()


def _read_types(data: mmap.mmap) -> tuple[int, ...]:
    start = _find_value(data, b"tokenizer.ggml.token_type", _ARRAY, _INT32)
    if start < 0:
        return ()
    (count,) = struct.unpack_from("<Q", data, start)
    if count > _MAX_HEADER_BYTES:
        return ()
    return struct.unpack_from(f"<{count}i", data, start + 8)


def _read_strings(data: mmap.mmap, key: bytes) -> Iterator[bytes]:
    start = _find_value(data, key, _ARRAY, _STRING)
    if start < 0:
        return
    (count,) = struct.unpack_from("<Q", data, start)
    position, read_length = start + 8, struct.Struct("<Q").unpack_from
    for _ in range(count):
        (length,) = read_length(data, position)
        position += 8 + length
        yield data[position - length : position]
