"""Read the control tokens from the vocabulary in a GGUF file."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from engine.backends.gguf import read_chat_template

_MAX_HEADER_BYTES = 64 * 2**20
_STRING, _ARRAY, _INT32 = 8, 9, 5
# The types of tokens, as llama.cpp numbers them.
_CONTROL, _USER_DEFINED = 3, 4


def read_control_tokens(path: Path) -> tuple[str, ...]:
    """Return the texts of the control tokens, and of other added tokens in the chat template.

    Some models mark turns with tokens that are no control tokens by their type. Without a
    vocabulary there are none. `read_header` has checked the file before.
    """
    template = read_chat_template(path) or ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            types = _read_types(data)
            tokens = _read_strings(data, b"tokenizer.ggml.tokens")
            added = [
                (kind, text.decode(errors="replace"))
                for kind, text in zip(types, tokens, strict=False)
                if kind in (_CONTROL, _USER_DEFINED)
            ]
        except struct.error:
            return ()
    return tuple(text for kind, text in added if text and (kind == _CONTROL or text in template))


def _find_value(data: mmap.mmap, key: bytes, *types: int) -> int:
    """Return the position after a key and the types of its value; -1 without it."""
    entry = struct.pack("<Q", len(key)) + key + struct.pack(f"<{len(types)}I", *types)
    start = data.find(entry, 0, _MAX_HEADER_BYTES)
    return start + len(entry) if start >= 0 else -1


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
