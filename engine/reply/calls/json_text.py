"""Read JSON that is still arriving: pass it on as it is, or wait for a whole value."""

from __future__ import annotations

import ast
import re
from typing import Any

import orjson

from engine.reply.parts import CallArguments, Reading
from engine.reply.source import TextSource

# Python reads a literal without releasing the lock of the interpreter, about 1 µs a character.
_MAX_LITERAL_CHARS = 50_000
_IN_STRING = re.compile(r'["\\]')
# "<" and "`" are not JSON: a closing mark follows although brackets are missing.
_OUTSIDE = re.compile(r'["{}\[\],<`]')
_NOT_SPACE = re.compile(r"\S")
_WORD_END = re.compile(r"[\s,}\]<`]")


def pass_on(source: TextSource) -> Reading[None]:
    """Pass on the object or array at the position as arguments, up to its end.

    A comma before a closing bracket is left out, as models write it and JSON forbids it.
    """
    value = _PartialValue()
    while True:
        pieces, position = value.read(source.text, source.position)
        if source.is_complete and not value.is_complete:
            pieces[-1] += source.text[position:]
            position = len(source.text)
        source.position = position
        for piece in pieces:
            if piece:
                yield CallArguments(piece)
        if value.is_complete or source.is_complete:
            return
        yield None


class _PartialValue:
    """An object or array that is still arriving, and whether its end was read."""

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._in_string = False
        # White space after a comma at the position, which is not searched again.
        self._spaces = 0

    def read(self, text: str, start: int) -> tuple[list[str], int]:
        """Return the pieces of a text to pass on, and the position after them."""
        pieces: list[str] = []
        position = start
        while position < len(text) and not self.is_complete:
            match = (_IN_STRING if self._in_string else _OUTSIDE).search(text, position)
            if match is None:
                position = len(text)
                break
            mark, position = match[0], match.start()
            if mark == "\\":
                if position + 2 > len(text):
                    break
                position += 2
            elif mark == ",":
                following = self._find_following(text, position)
                if following is None:
                    break
                if text[following] in "}]":
                    pieces.append(text[start:position])
                    start = following
                position = following
            elif mark in "<`":
                position = start + len(text[start:position].rstrip())
                self.is_complete = True
            else:
                self._count(mark)
                position += 1
        return [*pieces, text[start:position]], position

    def _find_following(self, text: str, comma: int) -> int | None:
        """Return where the text after a comma begins; None if only white space has arrived."""
        following = _NOT_SPACE.search(text, comma + 1 + self._spaces)
        self._spaces = 0 if following else len(text) - comma - 1
        return following.start() if following else None

    def _count(self, mark: str) -> None:
        if mark == '"':
            self._in_string = not self._in_string
        else:
            self._depth += 1 if mark in "{[" else -1
            self.is_complete = self._depth == 0


def read_value(source: TextSource) -> Reading[str | None]:
    """Wait for the whole value at the position and return it as JSON; None if it is not JSON."""
    first = yield from source.peek()
    if first and first in "{[":
        texts: list[str] = []
        for part in pass_on(source):
            if isinstance(part, CallArguments):
                texts.append(part.text)
            else:
                yield part
        value = "".join(texts)
    elif first == '"':
        value = yield from read_string(source)
    else:
        value = yield from read_until(source, _WORD_END)
    return value if is_json(value) else None


def read_string(source: TextSource) -> Reading[str]:
    """Wait for the whole string at the position and return it as it is written."""
    length = 1
    while True:
        text, start = source.text, source.position
        match = _IN_STRING.search(text, start + length)
        if match is None:
            length = len(text) - start
        elif match[0] == '"':
            source.position = match.end()
            return text[start : source.position]
        elif match.end() < len(text):
            length = match.end() + 1 - start
            continue
        else:
            length = match.start() - start
        if source.is_complete:
            source.position = len(text)
            return text[start:]
        yield None


def read_until(source: TextSource, end: re.Pattern[str], end_chars: int = 1) -> Reading[str]:
    """Wait for the text before the next match of a pattern, or to the end, and return it.

    `end_chars` is the length of a match.
    """
    searched = 0
    while (match := end.search(source.text, source.position + searched)) is None:
        if source.is_complete:
            break
        # No match begins before this, whatever follows.
        searched = max(len(source.text) - source.position - end_chars + 1, 0)
        yield None
    start, source.position = source.position, len(source.text) if match is None else match.start()
    return source.text[start : source.position]


def read_literal(text: str) -> str | None:
    """Return a literal of Python as JSON; None if it is none, or too long to be read at once."""
    if len(text) > _MAX_LITERAL_CHARS:
        return None
    try:
        return orjson.dumps(ast.literal_eval(text)).decode()
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def is_json(text: str) -> bool:
    """Return whether a text is one JSON value."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def encode(value: Any) -> str:
    """Return a value as JSON text."""
    return orjson.dumps(value).decode()
