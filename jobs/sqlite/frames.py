"""Frames between a journal and its store process: length-prefixed `marshal` values.

`marshal` is the fastest format for bytes. It is safe here, because both processes run the same
interpreter and no other process has the socket. `engine/hosts` has frames of its own: jobs and
engine share no code, so that each package can be used without the other.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from typing import Any

_HEADER = struct.Struct(">I")
# Larger than any batch; a longer frame means that the stream is corrupt.
MAX_FRAME_BYTES = 1_000_000_000


def encode(message: Any) -> bytes:
    """Encode a message of tuples, lists, strings, numbers and bytes as a frame."""
    body = marshal.dumps(message)
    return _HEADER.pack(len(body)) + body


class FrameDecoder:
    """Decodes a byte stream into messages; owned by the reader of the socket."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages that `data` completes. Raises ValueError if the stream is corrupt."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes cannot be right")
            end = _HEADER.size + length
            if len(buffer) < end:
                break
            message = marshal.loads(bytes(buffer[_HEADER.size : end]))  # noqa: S302 - from our own child
            del buffer[:end]
            yield message
