"""The protocol between the engine and its host process: length-prefixed JSON messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

_HEADER = struct.Struct(">I")
# Larger than any prompt within the limit on request bodies: a longer frame shows that the stream is
# out of step.
MAX_FRAME_BYTES = 256 * 1024 * 1024


def encode(message: Any) -> bytes:
    """Return one message as a frame; dataclasses become JSON objects.

    Raises TypeError for values that JSON cannot represent.
    """
    return add_header(orjson.dumps(message, default=_to_tuple))


def _to_tuple(value: object) -> tuple[object, ...]:
    """Return a named tuple as a plain one, which the encoder knows."""
    if isinstance(value, tuple):
        return tuple(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def add_header(body: bytes) -> bytes:
    """Return a message that is JSON already as a frame, with its length in front."""
    return _HEADER.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into messages; owned by the reader of the socket."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterable[Any]:
        """Return the messages that `data` completes.

        Raises ValueError if the stream is out of step, here or during the iteration.
        """
        if not self._buffer and len(data) > _HEADER.size:
            (length,) = _HEADER.unpack_from(data)
            if _HEADER.size + length == len(data):
                # The common case of a lone token: exactly one frame, so nothing is buffered.
                return (orjson.loads(data[_HEADER.size :]),)
        return self._cut(data)

    def _cut(self, data: bytes | memoryview) -> Iterator[Any]:
        buffer = self._buffer
        buffer += data
        consumed = 0
        try:
            while len(buffer) - consumed >= _HEADER.size:
                (length,) = _HEADER.unpack_from(buffer, consumed)
                if length > MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {length} bytes cannot be right")
                end = consumed + _HEADER.size + length
                if len(buffer) < end:
                    break
                message = orjson.loads(memoryview(buffer)[consumed + _HEADER.size : end])
                # Before the `yield`: if the consumer raises, it must not get the message again.
                consumed = end
                yield message
        finally:
            del buffer[:consumed]
