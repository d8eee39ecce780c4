"""Decode chunked request bodies (RFC 9112, section 7.1)."""

from __future__ import annotations

from enum import Enum, auto

# The line before each chunk: its size, and extensions, which are ignored.
_MAX_LINE_BYTES = 1_024
_MAX_SIZE_DIGITS = 15
# All lines behind the last chunk. Trailers are dropped, so there is no need for long ones.
_MAX_TRAILER_BYTES = 8_192
_HEX = frozenset(b"0123456789abcdefABCDEF")


class ChunkedError(ValueError):
    """The body is not validly chunked; the message is a sentence for the client."""


class _State(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    DONE = auto()


class ChunkedBody:
    """Takes the bytes of a chunked body as they arrive and returns its content.

    Only CRLF ends a line. Trailers are read and dropped: merged into the headers, they would pass
    checks that were made before they came.
    """

    def __init__(self) -> None:
        self._state = _State.SIZE
        self._line = bytearray()
        self._remaining_bytes = 0
        self._trailer_bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether the last chunk and the trailers have been received."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the content in `data`, and the bytes behind the end of the body.

        Raises:
            ChunkedError: a chunk or a trailer is malformed or too long.
        """
        content: list[bytes] = []
        at = 0
        while at < len(data) and self._state is not _State.DONE:
            if self._state is _State.DATA:
                piece = data[at : at + self._remaining_bytes]
                content.append(piece)
                at += len(piece)
                self._remaining_bytes -= len(piece)
                if not self._remaining_bytes:
                    self._state = _State.DATA_END
                continue
            end = data.find(b"\n", at)
            stop = len(data) if end < 0 else end + 1
            self._add_to_line(data[at:stop])
            at = stop
            if end >= 0:
                self._take_line()
        return b"".join(content), data[at:]

    def _add_to_line(self, piece: bytes) -> None:
        self._line += piece
        if self._state is _State.TRAILER:
            self._trailer_bytes += len(piece)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise ChunkedError(f"the trailers are longer than {_MAX_TRAILER_BYTES} bytes")
        elif self._state is _State.DATA_END and not b"\r\n".startswith(self._line):
            raise ChunkedError("a chunk is longer than its size says")
        elif len(self._line) > _MAX_LINE_BYTES:
            raise ChunkedError(f"the size line of a chunk is longer than {_MAX_LINE_BYTES} bytes")

    def _take_line(self) -> None:
        if not self._line.endswith(b"\r\n"):
            raise ChunkedError("a line of the chunked body does not end with CRLF")
        line = bytes(self._line[:-2])
        self._line.clear()
        if self._state is _State.SIZE:
            self._remaining_bytes = _parse_size(line)
            self._state = _State.DATA if self._remaining_bytes else _State.TRAILER
        elif self._state is _State.DATA_END:
            self._state = _State.SIZE
        elif not line:
            self._state = _State.DONE
        elif b"\r" in line or b":" not in line:
            raise ChunkedError("a trailer is not of the form `name: value`")


def _parse_size(line: bytes) -> int:
    """Return the chunk size that a line begins with; extensions behind a semicolon are ignored."""
    digits, _, extension = line.partition(b";")
    digits = digits.rstrip(b" \t")
    if not digits or len(digits) > _MAX_SIZE_DIGITS or not _HEX.issuperset(digits):
        raise ChunkedError("the size of a chunk is not a hexadecimal number")
    if any(byte < 32 and byte != 9 for byte in extension):
        raise ChunkedError("a chunk extension has control characters")
    return int(digits, 16)
