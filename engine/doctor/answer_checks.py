"""Judge what a model answers, and make the picture that it is asked about."""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Sequence
from operator import mul

# The shortest answer that is judged, and the share of letters and digits that any language has.
_MIN_JUDGED = 16
_MIN_READABLE = 0.4


def find_cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of two vectors; 1.0 if one of them has no direction, as equal ones."""
    length = math.hypot(*one) * math.hypot(*other)
    return sum(map(mul, one, other)) / length if length else 1.0


def build_picture(colour: bytes) -> bytes:
    """Return a PNG of 28 by 28 pixels of one colour, in red, green and blue."""
    side = 28

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = (b"\0" + colour * side) * side
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def is_garbage(text: str) -> bool:
    """Return whether an answer has hardly any letters or digits, as those of a broken model.

    Boards reported endless exclamation marks, and bytes that are no text.
    """
    visible = [character for character in text if not character.isspace()]
    readable = sum(character.isalnum() for character in visible)
    return len(visible) >= _MIN_JUDGED and readable < _MIN_READABLE * len(visible)


def is_count(text: str) -> bool:
    """Return whether an answer counts: a model that generates nonsense may use real words.

    Boards reported texts of mixed scripts, of zeros, and of one repeated word.
    """
    words = set(re.findall(r"[^\W_]+", text.casefold()))
    return any(words >= {two, three} for two, three in (("two", "three"), ("2", "3")))
