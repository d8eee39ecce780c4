"""Calls as JSON objects: `{"name": …, "arguments": {…}}`, one or several, in an array or not."""

from __future__ import annotations

import orjson

from engine.reply.calls.json_text import pass_on, read_value
from engine.reply.parts import CallArguments, CallStart, Reading
from engine.reply.reply_format import ReplyFormat
from engine.reply.source import TextSource

_KEYS = ("name", "arguments", "parameters", "function", "type", "id", "index")


def read_json_calls(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    """Read one call or several, separated by commas, semicolons or white space."""
    is_list = (yield from source.skip_space()) == "["
    source.position += is_list
    yield from _ObjectReader(source, reply_format).read()
    while (yield from source.attempt(_ObjectReader(source, reply_format).read())):
        pass
    if is_list:
        yield from source.skip_after_space("]", ",]")


class _ObjectReader:
    """Reads one object, whose keys may come in any order.

    The arguments are passed on while they arrive if the name comes before them. Other keys are read
    over, and so is an object around the call: `{"type": "function", "function": {…}}`.
    """

    def __init__(self, source: TextSource, reply_format: ReplyFormat) -> None:
        self._source = source
        self._names = tuple(reply_format.functions)
        self._name = ""
        self._arguments: str | None = None
        self._depth = 0
        self._has_started = False

    def read(self) -> Reading[None]:
        """Read the object at the position, if it is a call of a known function."""
        yield from self._source.skip_after_space(",", ";")
        if (yield from self._source.skip_space()) != "{":
            return
        while (yield from self._read_member()):
            pass
        if self._name and not self._depth and not self._has_started:
            yield CallStart(self._name)
            yield CallArguments(self._arguments or "{}")

    def _read_member(self) -> Reading[bool]:
        """Read the next bracket or member; return whether the object goes on."""
        source = self._source
        following = yield from source.skip_space()
        if following and following in "{}":
            source.position += 1
            self._depth += 1 if following == "{" else -1
            if following == "}" and self._depth:
                yield from source.skip_after_space(",")
            return self._depth > 0
        key = yield from source.skip(*(f'"{key}"' for key in _KEYS))
        if not key or (yield from source.skip_space()) != ":":
            return False
        source.position += 1
        following = yield from source.skip_space()
        is_read = yield from self._read_member_value(key[1:-1], following)
        if is_read:
            yield from source.skip_after_space(",")
        return is_read

    def _read_member_value(self, key: str, following: str) -> Reading[bool]:
        source = self._source
        if key == "function" and following == "{":
            # The members of the object are read as if they were those of the outer one.
            return True
        if key in ("name", "function"):
            quoted = yield from source.skip(*(f'"{name}"' for name in self._names))
            self._name = quoted[1:-1]
            return bool(quoted)
        if key not in ("arguments", "parameters"):
            return (yield from read_value(source)) is not None
        if self._name and following == "{":
            self._has_started = True
            yield CallStart(self._name)
            yield from pass_on(source)
            return True
        value = yield from read_value(source)
        self._arguments = _unquote(value) if value is not None else None
        return self._arguments is not None


def _unquote(value: str) -> str | None:
    """Return the arguments, which some models write as a string of JSON; None if they are not."""
    if value == "null":
        return "{}"
    if not value.startswith('"'):
        return value
    try:
        text: str = orjson.loads(value)
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return text
