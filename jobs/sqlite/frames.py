"""The wire between a journal and its store process: length-prefixed values.

By marshal: both ends are this interpreter, the socket is nobody else's, and nothing is faster for
bytes. The engine's process has a wire of its own in `engine/hosts`: jobs and engine share no code,
so that either can be taken without the other.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from typing import Any

_HEADER = struct.Struct(">I")
# Above any batch; a longer frame means the stream is out of step.
MAX_FRAME_BYTES = 1_000_000_000


def encode(message: Any) -> bytes:
    """Return a message of tuples, lists, texts, numbers and bytes as a frame."""
    body = marshal.dumps(message)
    return _HEADER.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into messages; owned by whoever reads the socket."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages that `data` completes. Raises ValueError when out of step."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes cannot be right")
            end = _HEADER.size + length
            if len(buffer) < end:
                break
            message = marshal.loads(bytes(buffer[_HEADER.size : end]))  # noqa: S302 - its own child's
            del buffer[:end]
            yield message
