"""The wire between the engine and its host process: length-prefixed JSON."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

_HEADER = struct.Struct(">I")
# Above any prompt that a body limit lets through; a longer frame means the stream is out of step.
MAX_FRAME_BYTES = 256 * 1024 * 1024


def encode(message: Any) -> bytes:
    """Return one message as a frame, dataclasses in it as objects.

    Raises TypeError for what JSON cannot carry.
    """
    return add_header(orjson.dumps(message))


def add_header(body: bytes) -> bytes:
    """Return a message that is JSON already as a frame."""
    return _HEADER.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into messages; owned by whoever reads the socket."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterable[Any]:
        """Return the messages that `data` completes.

        Raises ValueError when out of step, here or on the way through them.
        """
        if not self._buffer and len(data) > _HEADER.size:
            (length,) = _HEADER.unpack_from(data)
            if _HEADER.size + length == len(data):
                # One whole frame, as a lone token is: nothing to put together.
                return (orjson.loads(data[_HEADER.size :]),)
        return self._cut(data)

    def _cut(self, data: bytes | memoryview) -> Iterator[Any]:
        buffer = self._buffer
        buffer += data
        done = 0
        try:
            while len(buffer) - done >= _HEADER.size:
                (length,) = _HEADER.unpack_from(buffer, done)
                if length > MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {length} bytes cannot be right")
                end = done + _HEADER.size + length
                if len(buffer) < end:
                    break
                message = orjson.loads(memoryview(buffer)[done + _HEADER.size : end])
                # Before it is handed out: whoever takes it may raise, and must not get it again.
                done = end
                yield message
        finally:
            del buffer[:done]
