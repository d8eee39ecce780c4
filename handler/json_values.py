"""JSON texts from clients: how many values they have, and parsing them without long pauses."""

from __future__ import annotations

import gc
from typing import Any

import orjson

# Parsing so many values of the most expensive kind, and freeing them, takes less than 100 ms.
MAX_JSON_VALUES = 250_000
_LARGE_BYTES = 250_000

# Each list element but the first follows a comma, each member of an object has a colon, and each
# list and object has an opening bracket.
_MARKS = b",:[{"


def has_more_values(text: bytes | bytearray, limit: int) -> bool:
    """Return whether a JSON text has more than `limit` elements, keys, lists and objects.

    Python holds its lock while a text is parsed, and the time depends on the number of objects to
    create, not on the size: 7 MB of `[],[],[]` take a hundred times longer than one string of 7 MB.
    Each step here is one pass over the bytes. In a text that is not JSON the count is right up to
    the first error, which is where a parser stops.
    """
    if len(text) <= limit:
        return False
    if len(text) - len(text.translate(None, _MARKS)) <= limit:
        return False
    # Marks inside strings do not count: a long text has many commas.
    without_escapes = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if without_escapes.count(b'"') // 2 > limit:
        return True
    outside = b"".join(without_escapes.split(b'"')[::2])
    return len(outside) - len(outside.translate(None, _MARKS)) > limit


def parse_json(text: bytes | bytearray) -> Any:
    """Parse a JSON text. Raises orjson.JSONDecodeError.

    Python's garbage collector scans all new objects again and again while their number grows, which
    takes several times longer than parsing a large text, so it is off meanwhile.
    """
    if len(text) <= _LARGE_BYTES or not gc.isenabled():
        return orjson.loads(text)
    gc.disable()
    try:
        return orjson.loads(text)
    finally:
        gc.enable()
