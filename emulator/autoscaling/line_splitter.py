"""Split what a program prints into lines, as a terminal would show them."""

from __future__ import annotations

_MAX_LINE_BYTES = 65_536


class LineSplitter:
    """Turns blocks of bytes into complete lines of text, however the blocks are cut.

    A carriage return within a line starts it again, as on a terminal: of a progress bar, only the
    last state is left. Bytes that are not UTF-8 become U+FFFD. A longer line is cut, with a note.
    """

    def __init__(self, max_line_bytes: int = _MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._line = bytearray()
        # How many bytes of this line were dropped, because it is too long.
        self._dropped = 0
        # Whether the last byte was a carriage return, which may be half of a line end.
        self._has_return = False

    def feed(self, block: bytes) -> list[str]:
        """Return the lines that are complete now, without their ends."""
        *ended, rest = block.split(b"\n")
        lines = []
        for part in ended:
            self._extend(part)
            lines.append(self._take_line())
        self._extend(rest)
        return lines

    def finish(self) -> list[str]:
        """Return the last line if it has no end; empty if there is none."""
        return [self._take_line()] if self._line else []

    def _extend(self, part: bytes) -> None:
        text = part.rstrip(b"\r")
        if not text:
            self._has_return = self._has_return or bool(part)
            return
        _, has_inner_return, last = text.rpartition(b"\r")
        if self._has_return or has_inner_return:
            self._line.clear()
            self._dropped = 0
        self._has_return = len(text) < len(part)
        room = self._max_line_bytes - len(self._line)
        self._line += last[:room]
        self._dropped += max(0, len(last) - room)

    def _take_line(self) -> str:
        line = self._line.decode("utf-8", "replace")
        if self._dropped:
            line += f" … ({self._dropped:,} more bytes)"
        self._line.clear()
        self._dropped = 0
        self._has_return = False
        return line
