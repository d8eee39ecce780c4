"""The little that must be known of a GGUF before llama.cpp is asked to load it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadFailed

_MAGIC = b"GGUF"
# Format of GGUF's scalar value types by their number (ggml's GGUF specification, version 3).
_SCALAR_FORMATS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_CONTEXT_TOKENS = 4096
# The largest vocabularies take some 20 MB.
_MAX_HEADER_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a model says of itself.

    `context_length` is the one it was trained for; `pooling` is how it makes one vector of all its
    tokens' (llama.cpp's number), 0 for a model that was not made for vectors.
    """

    context_length: int = _DEFAULT_CONTEXT_TOKENS
    pooling: int = 0


def read_header(path: Path, setting: str = "MODEL_PATH") -> GgufHeader:
    """Return what a GGUF says of itself, having checked that it is one.

    Raises:
        ModelLoadFailed: no such file, unreadable, not a GGUF, or cut short in its header.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise ModelLoadFailed(f"{setting}: {path} is not a GGUF file")
            size = path.stat().st_size

            def read(count: int) -> bytes:
                # Damage can make any length of it, and memory is reserved before it is read.
                data = file.read(count) if count <= size else b""
                if len(data) < count:
                    raise ValueError("cut short")
                return data

            return _parse_header(read)
    except FileNotFoundError as error:
        raise ModelLoadFailed(f"{setting}: there is no file {path}") from error
    except OSError as error:
        raise ModelLoadFailed(f"{setting}: {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, RecursionError) as error:
        raise ModelLoadFailed(f"{setting}: {path} is damaged or cut short") from error


def _parse_header(read: Callable[[int], bytes]) -> GgufHeader:
    def scalar(form: str) -> Any:
        return struct.unpack("<" + form, read(struct.calcsize("<" + form)))[0]

    def value(kind: int) -> Any:
        if kind == _STRING:
            return read(scalar("Q"))
        if kind == _ARRAY:
            element, count = scalar("I"), scalar("Q")
            if element in _SCALAR_FORMATS:
                read(struct.calcsize("<" + _SCALAR_FORMATS[element]) * count)
            else:
                for _ in range(count):
                    value(element)
            return None
        return scalar(_SCALAR_FORMATS[kind])

    _version, _tensors, pairs = scalar("I"), scalar("Q"), scalar("Q")
    found: dict[str, int] = {}
    for _ in range(pairs):
        key = value(_STRING)
        if key.startswith(b"tokenizer.") and "context_length" in found:
            # The vocabulary, which is long, comes after what is said of the model.
            break
        said = value(scalar("I"))
        for name, least in (("context_length", 1), ("pooling_type", 0)):
            if key.endswith(f".{name}".encode()):
                if not isinstance(said, int) or said < least:
                    raise ValueError(f"no {name}")
                found[name] = said
    return GgufHeader(
        found.get("context_length", _DEFAULT_CONTEXT_TOKENS), found.get("pooling_type", 0)
    )


def has_chat_template(path: Path) -> bool:
    """Return whether a GGUF brings a chat template; the file has been checked by `read_header`.

    The template's key comes after the vocabulary. Searching for the key's exact bytes takes
    milliseconds, parsing a vocabulary of 150,000 strings takes tenths of a second.
    """
    key = b"tokenizer.chat_template"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<I", _STRING)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(entry, 0, _MAX_HEADER_BYTES) >= 0
