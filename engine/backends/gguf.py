"""Read the parts of a GGUF file header that are needed before llama.cpp loads the model."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadFailed

_MAGIC = b"GGUF"
# struct formats of GGUF's scalar value types, by type number (GGUF specification of ggml, v3).
_SCALAR_FORMATS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_CONTEXT_TOKENS = 4096
# The properties that the size of the context's cache depends on.
_CACHE_SIZES = (
    *("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "attention.value_length"),
)
_CACHE_VALUE_BYTES = 2
# The least value of the other numbers that are read.
_MIN_LIMITS = {"context_length": 1, "pooling_type": 0}
# The largest vocabularies take some 20 MB.
_MAX_HEADER_BYTES = 64 * 2**20
# The longest chat templates of known models have some 30 KB.
_MAX_TEMPLATE_BYTES = 2**20
_MAX_PROPERTIES, _MAX_PROPERTY_BYTES = 256, 256
# How a model declares that it fills gaps: the keys of its tokens for that, or one of these tokens.
_INFILL_KEYS = (b"tokenizer.ggml.fim_pre_token_id", b"tokenizer.ggml.prefix_token_id")
_INFILL_TOKENS = (
    *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>", "<|code_prefix|>"),
    "<\uff5cfim▁begin\uff5c>",
)
Property = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The model properties in the header of a GGUF file.

    `context_length` is the context in tokens that the model was trained for. `pooling` is
    llama.cpp's number for how the model combines the vectors of its tokens into one embedding; it
    is 0 for a model that was not trained for embeddings. `file_type` is llama.cpp's number for the
    quantization, -1 if it is unknown; texts that are unknown are empty. `cache_bytes_per_token` is
    what one token takes in the context's cache, with 16 bits for each number; 0 if it is unknown.
    `properties` are the numbers and short texts of the header by their keys, without those of the
    tokenizer.
    """

    context_length: int = _DEFAULT_CONTEXT_TOKENS
    pooling: int = 0
    architecture: str = ""
    size_label: str = ""
    file_type: int = -1
    cache_bytes_per_token: int = 0
    properties: Mapping[str, Property] = field(default_factory=dict)


def read_header(path: Path, setting: str = "MODEL_PATH") -> GgufHeader:
    """Check that a file is a GGUF and return its header.

    `setting` names the environment variable in error messages.

    Raises:
        ModelLoadFailed: the file is missing, unreadable, not a GGUF, or has a truncated header.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise ModelLoadFailed(f"{setting}: {path} is not a GGUF file")
            left_bytes = min(path.stat().st_size, _MAX_HEADER_BYTES)

            def read(count: int) -> bytes:
                nonlocal left_bytes
                # A damaged file can hold any length, and `file.read` allocates before it reads.
                data = file.read(count) if count <= left_bytes else b""
                left_bytes -= count
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


class _ValueReader:
    """Reads the values of a header one after the other. Raises ValueError at its end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def scalar(self, form: str) -> Any:
        """Return a number in a format of `struct`."""
        return struct.unpack("<" + form, self._read(struct.calcsize("<" + form)))[0]

    def string(self) -> bytes:
        """Return the bytes of a string."""
        return self._read(self.scalar("Q"))

    def value(self, value_type: int) -> Any:
        """Return a value of a type; None for an array, which is skipped."""
        if value_type == _STRING:
            return self.string()
        if value_type == _ARRAY:
            self._skip_array()
            return None
        return self.scalar(_SCALAR_FORMATS[value_type])

    def _skip_array(self) -> None:
        element_type, count = self.scalar("I"), self.scalar("Q")
        if element_type in _SCALAR_FORMATS:
            self._read(struct.calcsize("<" + _SCALAR_FORMATS[element_type]) * count)
            return
        for _ in range(count):
            self.value(element_type)


def _parse_header(read: Callable[[int], bytes]) -> GgufHeader:
    reader = _ValueReader(read)
    _version, _tensors, pairs = reader.scalar("I"), reader.scalar("Q"), reader.scalar("Q")
    limits: dict[str, int] = {}
    general: dict[bytes, Any] = {}
    all_properties: dict[str, Property] = {}
    sizes: dict[str, int] = {}
    for _ in range(pairs):
        key = reader.string()
        if key.startswith(b"tokenizer.") and "context_length" in limits:
            # The model's properties come before the vocabulary, which is long.
            break
        value = reader.value(reader.scalar("I"))
        if key.startswith(b"general."):
            general[key] = value
        if len(all_properties) < _MAX_PROPERTIES and (kept := _as_property(key, value)) is not None:
            all_properties[_decode(key)] = kept
        if (name := _find_suffix(key, _CACHE_SIZES)) is not None and isinstance(value, int):
            sizes[name] = value
        if (name := _find_suffix(key, _MIN_LIMITS)) is not None:
            limits[name] = _check_limit(name, value)
    return GgufHeader(
        limits.get("context_length", _DEFAULT_CONTEXT_TOKENS),
        limits.get("pooling_type", 0),
        _decode(general.get(b"general.architecture")),
        _decode(general.get(b"general.size_label")),
        file_type if isinstance(file_type := general.get(b"general.file_type"), int) else -1,
        _cache_bytes_per_token(sizes),
        all_properties,
    )


def _find_suffix(key: bytes, names: Iterable[str]) -> str | None:
    """Return which of the names a key ends with, behind that of the model's architecture."""
    return next((name for name in names if key.endswith(f".{name}".encode())), None)


def _check_limit(name: str, value: Any) -> int:
    if not isinstance(value, int) or value < _MIN_LIMITS[name]:
        raise ValueError(f"no {name}")
    return value


def _as_property(key: bytes, value: Any) -> Property | None:
    """Return a value that is a finite number or a short text; None for others."""
    if key.startswith(b"tokenizer.") or len(key) > _MAX_PROPERTY_BYTES:
        return None
    if isinstance(value, bytes):
        return _decode(value) if len(value) <= _MAX_PROPERTY_BYTES else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float) else None


def _cache_bytes_per_token(sizes: Mapping[str, int]) -> int:
    """Return the size of the keys and values of all layers; 0 if the header does not say."""
    heads = sizes.get("attention.head_count", 0)
    layers, width = sizes.get("block_count", 0), sizes.get("embedding_length", 0)
    if heads <= 0 or layers <= 0:
        return 0
    key = sizes.get("attention.key_length", width // heads)
    value = sizes.get("attention.value_length", width // heads)
    return layers * sizes.get("attention.head_count_kv", heads) * (key + value) * _CACHE_VALUE_BYTES


def _decode(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def read_chat_template(path: Path) -> str | None:
    """Return the chat template of a GGUF, cut to a million characters; None if it has none.

    `read_header` has checked the file before. The template's key comes after the vocabulary.
    Searching for the exact bytes of the key takes milliseconds; parsing a vocabulary of 150,000
    strings takes tenths of a second. Raises OSError.
    """
    key = b"tokenizer.chat_template"
    entry = _encode_string(key) + struct.pack("<I", _STRING)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(entry, 0, _MAX_HEADER_BYTES)
        if start < 0:
            return None
        start += len(entry) + 8
        length = int.from_bytes(data[start - 8 : start], "little")
        return _decode(data[start : start + min(length, _MAX_TEMPLATE_BYTES)])


def has_infill_tokens(path: Path) -> bool:
    """Return whether a GGUF has tokens for filling gaps; see `read_chat_template`."""
    texts = (*_INFILL_KEYS, *(token.encode() for token in _INFILL_TOKENS))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(_encode_string(text), 0, _MAX_HEADER_BYTES) >= 0 for text in texts)


def _encode_string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text
