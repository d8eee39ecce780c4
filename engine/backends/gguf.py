"""The little that must be known of a GGUF before llama.cpp is asked to load it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadFailed

_MAGIC = b"GGUF"
# Format of GGUF's scalar value types by their number (ggml's GGUF specification, version 3).
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_CONTEXT = 4096


def trained_context(path: Path) -> int:
    """Return the context length a GGUF was trained for, having checked that it is one.

    Raises:
        ModelLoadFailed: no such file, unreadable, not a GGUF, or cut short in its header.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise ModelLoadFailed(f"MODEL_PATH: {path} is not a GGUF file")
            size = path.stat().st_size

            def read(count: int) -> bytes:
                # Damage can make any length of it, and memory is reserved before it is read.
                data = file.read(count) if count <= size else b""
                if len(data) < count:
                    raise ValueError("cut short")
                return data

            return _context_length(read)
    except FileNotFoundError as error:
        raise ModelLoadFailed(f"MODEL_PATH: there is no file {path}") from error
    except OSError as error:
        raise ModelLoadFailed(f"MODEL_PATH: {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, RecursionError) as error:
        raise ModelLoadFailed(f"MODEL_PATH: {path} is damaged or cut short") from error


def _context_length(read: Callable[[int], bytes]) -> int:
    def scalar(form: str) -> Any:
        return struct.unpack("<" + form, read(struct.calcsize("<" + form)))[0]

    def value(kind: int) -> Any:
        if kind == _STRING:
            return read(scalar("Q"))
        if kind == _ARRAY:
            element, count = scalar("I"), scalar("Q")
            if element in _SCALARS:
                read(struct.calcsize("<" + _SCALARS[element]) * count)
            else:
                for _ in range(count):
                    value(element)
            return None
        return scalar(_SCALARS[kind])

    _version, _tensors, pairs = scalar("I"), scalar("Q"), scalar("Q")
    for _ in range(pairs):
        key = value(_STRING)
        found = value(scalar("I"))
        if key.endswith(b".context_length"):
            if not isinstance(found, int) or found < 1:
                raise ValueError("no length")
            return found
    return _DEFAULT_CONTEXT
