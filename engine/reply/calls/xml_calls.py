"""Calls as Qwen3-Coder writes them: `<function=name><parameter=key>value</parameter>…`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.reply.calls.json_text import encode, is_json, read_literal
from engine.reply.parts import CallArguments, CallStart, Reading
from engine.reply.reply_format import ReplyFormat
from engine.reply.source import TextSource

_FUNCTION, _PARAMETER = "<function=", "<parameter="
# A value ends with the first, and with the others if the model left that out.
_VALUE_ENDS = ("</parameter>", _PARAMETER, "</function>", "</tool_call>")
_MAX_KEY_CHARS = 256


def read_xml_calls(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    """Read calls; values become JSON of the type that the function's schema has for them."""
    yield from _read_call(source, reply_format)
    while (yield from source.attempt(_read_call(source, reply_format))):
        pass


def _read_call(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    if not (yield from source.skip_after_space(_FUNCTION)):
        return
    marks = {f"{name}>": name for name in reply_format.functions}
    if mark := (yield from source.skip(*marks)):
        yield CallStart(marks[mark])
        yield from _read_parameters(source, reply_format.functions[marks[mark]])


def _read_parameters(source: TextSource, schema: Mapping[str, Any]) -> Reading[None]:
    properties = schema.get("properties")
    separator = "{"
    while (yield from source.skip_after_space(_PARAMETER)):
        key = yield from _read_key(source)
        if key is None:
            return
        part = properties.get(key) if isinstance(properties, Mapping) else None
        yield CallArguments(f"{separator}{encode(key)}:")
        separator = ","
        if not (yield from _read_value(source, _read_types(part))):
            return
    if (yield from source.skip_after_space("</function>")) or not source.is_complete:
        yield CallArguments("{}" if separator == "{" else "}")


def _read_key(source: TextSource) -> Reading[str | None]:
    key = ""
    while (character := (yield from source.peek())) != ">":
        if not character or character in "<\n" or len(key) > _MAX_KEY_CHARS:
            return None
        key += character
        source.position += 1
    source.position += 1
    return key


def _read_value(source: TextSource, types: frozenset[str]) -> Reading[bool]:
    """Read a value, as a string while it arrives or else when it is complete.

    One line break before and after it belongs to the form. Returns whether the value has an end.
    """
    yield from source.skip("\n")
    passes_on = types == {"string"}
    text = ""
    if passes_on:
        yield CallArguments('"')
    while True:
        piece, mark = _take_piece(source)
        if not passes_on:
            text += piece
        elif piece:
            yield CallArguments(encode(piece)[1:-1])
        if mark or source.is_complete:
            break
        yield None
    if mark and mark != _VALUE_ENDS[0]:
        source.position -= len(mark)
    if not passes_on:
        yield CallArguments(_convert(text) if mark else text)
    elif mark:
        yield CallArguments('"')
    return bool(mark)


def _take_piece(source: TextSource) -> tuple[str, str]:
    """Take what has arrived of a value; return it and the mark of the end, or an empty one."""
    piece, mark = source.take_until(_VALUE_ENDS)
    if mark:
        return piece.removesuffix("\n"), mark
    if not source.is_complete and piece.endswith("\n"):
        # It may be the last one.
        source.position -= 1
        return piece[:-1], mark
    return piece, mark


def _read_types(schema: Any) -> frozenset[str]:
    """Return the types that a schema allows; a schema without types is read as that of a text."""
    if not isinstance(schema, Mapping):
        return frozenset({"string"})
    kind = schema.get("type")
    types = {each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str)}
    for key in ("anyOf", "oneOf"):
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else ():
            types |= _read_types(part)
    if not types and schema.keys() & {"$ref", "enum", "const"}:
        return frozenset({"any"})
    return frozenset(types) or frozenset({"string"})


def _convert(text: str) -> str:
    """Return a value as JSON: as it is, as a literal of Python, or else as a string."""
    if is_json(text):
        return text.strip()
    literal = read_literal(text.strip())
    return encode(text) if literal is None else literal
