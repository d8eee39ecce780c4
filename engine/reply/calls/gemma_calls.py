"""Calls as Gemma 4 writes them: `call:name{key:<|"|>text<|"|>,other:[1,true]}`."""

from __future__ import annotations

import re

from engine.reply.calls.json_text import encode, is_json, read_string, read_until
from engine.reply.parts import CallArguments, CallStart, Reading
from engine.reply.reply_format import ReplyFormat
from engine.reply.source import TextSource

_QUOTE = '<|"|>'
_QUOTE_PATTERN = re.compile(re.escape(_QUOTE))
_KEY_END = re.compile(r"[:{}\[\],]")
_VALUE_END = re.compile(r"[{}\[\],]")


def read_gemma_calls(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    """Read calls; their arguments become JSON while they arrive."""
    yield from _read_call(source, reply_format)
    while (yield from source.attempt(_read_call(source, reply_format))):
        pass


def _read_call(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    if not (yield from source.skip_after_space("call:")):
        return
    marks = {f"{name}{{": name for name in reply_format.functions}
    if mark := (yield from source.skip(*marks)):
        yield CallStart(marks[mark])
        yield CallArguments("{")
        yield from _read_members(source)


def _read_members(source: TextSource) -> Reading[None]:
    """Read up to the bracket that closes the arguments."""
    brackets, separator = ["}"], ""
    while brackets:
        following = yield from source.skip_space()
        if not following or (following == "<" and not (yield from _has_quote(source))):
            return
        if following == brackets[-1]:
            source.position += 1
            yield CallArguments(brackets.pop())
            separator = ","
            continue
        if following == ",":
            source.position += 1
            continue
        if following in "}]:":
            return
        yield CallArguments(separator)
        separator = ","
        if brackets[-1] == "}":
            key = yield from _read_key(source)
            if key is None:
                return
            yield CallArguments(f"{encode(key)}:")
            following = yield from source.skip_space()
        if following and following in "{[":
            source.position += 1
            brackets.append("}" if following == "{" else "]")
            yield CallArguments(following)
            separator = ""
        else:
            yield from _read_scalar(source)


def _has_quote(source: TextSource) -> Reading[bool]:
    mark = yield from source.skip(_QUOTE)
    source.position -= len(mark)
    return bool(mark)


def _read_key(source: TextSource) -> Reading[str | None]:
    """Read a key and its colon; None if there is no key."""
    if (yield from source.skip(_QUOTE)):
        key = yield from read_until(source, _QUOTE_PATTERN, len(_QUOTE))
        yield from source.skip(_QUOTE)
    else:
        key = (yield from read_until(source, _KEY_END)).strip().strip('"')
    if (yield from source.skip_space()) != ":":
        return None
    source.position += 1
    return key


def _read_scalar(source: TextSource) -> Reading[None]:
    """Read a text, a number or another single value."""
    if (yield from source.skip(_QUOTE)):
        yield from _read_text(source)
    elif (yield from source.peek()) == '"':
        yield CallArguments((yield from read_string(source)))
    elif word := (yield from read_until(source, _VALUE_END)).strip():
        yield CallArguments(word if is_json(word) else encode(word))


def _read_text(source: TextSource) -> Reading[None]:
    """Read a text up to its closing mark, as a JSON string; without the mark it has no end."""
    yield CallArguments('"')
    while True:
        text, mark = source.take_until((_QUOTE,))
        if text:
            yield CallArguments(encode(text)[1:-1])
        if mark:
            yield CallArguments('"')
            return
        if source.is_complete:
            return
        yield None
