"""Calls as Python code: `[name(key=value), other()]` (Llama 4 and others)."""

from __future__ import annotations

import re

from engine.reply.calls.json_text import encode, is_json, read_literal
from engine.reply.parts import CallArguments, CallStart, Reading
from engine.reply.reply_format import ReplyFormat
from engine.reply.source import TextSource

_KEY = re.compile(r"[A-Za-z_]\w{0,255}\s*=(?!=)")
_KEY_START = re.compile(r"[A-Za-z_]\w{0,255}\s*")
_MARKS = re.compile(r"""["'()\[\]{},\\]""")


def read_pythonic_calls(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    """Read a list of calls with keyword arguments of literal values."""
    if not (yield from source.skip_after_space("[")):
        return
    yield from _read_call(source, reply_format)
    while (yield from source.attempt(_read_call(source, reply_format))):
        pass
    yield from source.skip_after_space("]", ",]")


def _read_call(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    yield from source.skip_after_space(",")
    yield from source.skip_space()
    marks = {f"{name}(": name for name in reply_format.functions}
    if mark := (yield from source.skip(*marks)):
        yield from _read_arguments(source, marks[mark])


def _read_arguments(source: TextSource, name: str) -> Reading[None]:
    """Read the arguments of a call and its closing bracket."""
    has_started = False
    while True:
        following = yield from source.skip_space()
        key = ""
        if following != ")":
            key = yield from _read_key(source)
            if not key:
                return
        if not has_started:
            yield CallStart(name)
        if not key:
            source.position += 1
            yield CallArguments("}" if has_started else "{}")
            return
        yield CallArguments(f"{',' if has_started else '{'}{encode(key)}:")
        has_started = True
        value, end = yield from _read_value(source)
        if not end:
            # The output has ended inside of the value.
            yield CallArguments(encode(value[1:])[:-1] if value[:1] in {"'", '"'} else value)
            return
        yield CallArguments(_convert(value))
        if end == ",":
            source.position += 1


def _read_key(source: TextSource) -> Reading[str]:
    """Skip `key=` and return the key; "" if something else comes next."""
    while True:
        text, start = source.text, source.position
        if (key := _KEY.match(text, start)) is not None:
            if key.end() < len(text) or source.is_complete:
                source.position = key.end()
                return key[0][:-1].strip()
        else:
            name = _KEY_START.match(text, start)
            if name is None or name.end() < len(text):
                return ""
        if source.is_complete:
            return ""
        yield None


def _read_value(source: TextSource) -> Reading[tuple[str, str]]:
    """Read a value up to the comma or bracket after it; return both, the latter "" at the end."""
    depth, quote, position = 0, "", source.position
    while True:
        match = _MARKS.search(source.text, position)
        if match is None:
            position = len(source.text)
        else:
            mark, position = match[0], match.start()
            if mark == "\\":
                if position + 2 <= len(source.text):
                    position += 2
                    continue
            else:
                if not quote and not depth and mark in ",)":
                    value = source.text[source.position : position]
                    source.position = position
                    return value, mark
                position += 1
                if quote:
                    quote = "" if mark == quote else quote
                elif mark in "\"'":
                    quote = mark
                elif mark != ",":
                    depth += 1 if mark in "([{" else -1
                continue
        if source.is_complete:
            value, source.position = source.text[source.position :], len(source.text)
            return value, ""
        ahead = position - source.position
        yield None
        position = source.position + ahead


def _convert(text: str) -> str:
    """Return a Python literal as JSON; anything else as a string."""
    text = text.strip()
    if (literal := read_literal(text)) is not None:
        return literal
    # JSON's names of values: true, false and null.
    return text if is_json(text) else encode(text)
