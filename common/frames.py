"""Cut a byte stream into messages, each of which has its length in front."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_HEADER = struct.Struct(">I")


def add_header(body: bytes) -> bytes:
    """Return an encoded message as a frame, with its length in front."""
    return _HEADER.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into messages, which `decode` reads; owned by the reader of the socket.

    A frame of more than `max_bytes` means that the stream is out of step.
    """

    __slots__ = ("_buffer", "_decode", "_max_bytes")

    def __init__(self, decode: Callable[[bytes | memoryview], Any], max_bytes: int) -> None:
        self._decode = decode
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterable[Any]:
        """Return the messages that `data` completes.

        Raises ValueError if the stream is out of step, here or during the iteration.
        """
        if not self._buffer and len(data) > _HEADER.size:
            (length,) = _HEADER.unpack_from(data)
            if _HEADER.size + length == len(data):
                # The common case of a lone message: exactly one frame, so nothing is buffered.
                return (self._decode(data[_HEADER.size :]),)
        return self._cut(data)

    def _cut(self, data: bytes | memoryview) -> Iterator[Any]:
        buffer = self._buffer
        buffer += data
        consumed = 0
        try:
            while len(buffer) - consumed >= _HEADER.size:
                (length,) = _HEADER.unpack_from(buffer, consumed)
                if length > self._max_bytes:
                    raise ValueError(f"a frame of {length} bytes cannot be right")
                end = consumed + _HEADER.size + length
                if len(buffer) < end:
                    break
                message = self._decode(memoryview(buffer)[consumed + _HEADER.size : end])
                # Before the `yield`: if the consumer raises, it must not get the message again.
                consumed = end
                yield message
        finally:
            del buffer[:consumed]
