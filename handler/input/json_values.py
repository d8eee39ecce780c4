"""Count the values of JSON texts from clients, and parse large texts without long pauses."""

from __future__ import annotations

import gc
from typing import Any

import orjson

# Parsing this many values of the most expensive kind, and freeing them, takes less than 100 ms.
MAX_JSON_VALUES = 250_000
# 10 MB of one-digit numbers. Numbers in a list take a tenth of a second here.
MAX_JOB_VALUES = 5_000_000
# How many numbers a list, an object or a key of a job counts as, by the time and memory it takes.
JOB_CONTAINER_COST = 4
_LARGE_BYTES = 250_000

# Each list element except the first follows a comma, each member of an object has a colon, and each
# list and object has an opening bracket.
_STRUCTURAL = b",:[{"
_CONTAINERS = b":[{"


def has_more_values(text: bytes | bytearray, limit: int, container_cost: int = 1) -> bool:
    """Return whether a JSON text has more than `limit` elements, keys, lists and objects.

    Each key, list and object counts `container_cost` times.

    The parser holds the interpreter's lock, and its time depends on the number of objects to
    create, not on the size: 7 MB of `[],[],[]` take a hundred times longer than one string of
    7 MB. Each step here is one pass over the bytes. In invalid JSON the count is correct up to the
    first error, where a parser stops.
    """
    if len(text) * container_cost <= limit:
        return False
    if _count(text, container_cost) <= limit:
        return False
    # Structural characters inside strings do not count: a long text has many commas.
    without_escapes = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if without_escapes.count(b'"') // 2 > limit:
        return True
    outside = b"".join(without_escapes.split(b'"')[::2])
    return _count(outside, container_cost) > limit


def _count(text: bytes | bytearray, container_cost: int) -> int:
    marks = len(text) - len(text.translate(None, _STRUCTURAL))
    if container_cost == 1:
        return marks
    containers = len(text) - len(text.translate(None, _CONTAINERS))
    return marks + containers * (container_cost - 1)


def parse_json(text: bytes | bytearray) -> Any:
    """Parse a JSON text. Raises orjson.JSONDecodeError.

    The garbage collector is off while a large text is parsed: it would scan the new objects
    repeatedly as their number grows, which takes several times longer than the parsing.
    """
    if len(text) <= _LARGE_BYTES or not gc.isenabled():
        return orjson.loads(text)
    gc.disable()
    try:
        return orjson.loads(text)
    finally:
        gc.enable()
