"""Calls whose name stands before the JSON of their arguments: Mistral, DeepSeek and harmony."""

from __future__ import annotations

from engine.reply.calls.json_calls import read_json_calls
from engine.reply.calls.json_text import pass_on
from engine.reply.parts import CallStart, Reading
from engine.reply.reply_format import ReplyFormat
from engine.reply.source import TextSource

_DEEPSEEK_BEGIN = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_DEEPSEEK_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_DEEPSEEK_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
_ID_CHARS = 64


def read_mistral_calls(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    """Read an array of JSON calls, or `name[CALL_ID]id[ARGS]{…}`, whose marks are optional."""
    following = yield from source.skip_space()
    if following and following in "[{":
        yield from read_json_calls(source, reply_format)
        return
    name = yield from source.skip(*reply_format.functions)
    if not name:
        return
    if (yield from source.skip_after_space("[CALL_ID]")):
        for _ in range(_ID_CHARS):
            if not (yield from source.peek()).isalnum():
                break
            source.position += 1
    yield from source.skip_after_space("[ARGS]")
    yield from _read_arguments(source, name)


def read_named_arguments(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    """Read `name[ARGS]{…}`, as Mistral's calls are without their special token."""
    name = yield from source.skip(*reply_format.functions)
    if name and (yield from source.skip("[ARGS]")):
        yield from _read_arguments(source, name)


def read_deepseek_calls(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    """Read `function<sep>name` with fenced arguments, or `name<sep>{…}`, one or several."""
    yield from _read_deepseek_call(source, reply_format)
    while (yield from source.attempt(_read_deepseek_call(source, reply_format))):
        pass


def _read_deepseek_call(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    yield from source.skip_after_space(_DEEPSEEK_BEGIN)
    yield from source.skip_space()
    yield from source.skip("function" + _DEEPSEEK_SEPARATOR)
    name = yield from source.skip(*reply_format.functions)
    yield from source.skip_after_space(_DEEPSEEK_SEPARATOR, "```json", "```")
    if name and (yield from _read_arguments(source, name)):
        yield from source.skip_after_space("```")
        yield from source.skip_after_space(_DEEPSEEK_END)


def read_harmony_call(source: TextSource, reply_format: ReplyFormat) -> Reading[None]:
    """Read `name <|constrain|>json<|message|>{…}`, the call after `to=functions.`."""
    name = yield from source.skip(*reply_format.functions)
    if not name:
        return
    yield from source.skip_after_space("<|channel|>commentary")
    yield from source.skip_after_space("<|constrain|>json", "json")
    if (yield from source.skip_after_space("<|message|>")):
        yield from _read_arguments(source, name)


def _read_arguments(source: TextSource, name: str) -> Reading[bool]:
    """Read the object of the arguments; return whether there is one."""
    if (yield from source.skip_space()) != "{":
        return False
    yield CallStart(name)
    yield from pass_on(source)
    return True
