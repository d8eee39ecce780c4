"""The form in which a chat template asks the model to write calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace

from engine.errors import EngineError
from engine.prompts.reasoning import PROBE_CHAT
from engine.reply.reply_format import ToolForm
from engine.request import Chat

# The example of a call in a template's instructions, for each form. A template whose example has
# another order of keys, or another notation after the same mark, matches no expression.
_INSTRUCTIONS: tuple[tuple[ToolForm, re.Pattern[str]], ...] = (
    ("qwen_xml", re.compile(r"<tool_call>\s*<function=")),
    ("hermes", re.compile(r'<tool_call>\s*\{"name": ?<[^<>]+>, "arguments": ?<')),
    ("llama", re.compile(r'\{"name": function name, "parameters": ')),
)
_MARKS = ("<tool_call>", "</tool_call>")
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}


def find_call_form(
    render: Callable[[Chat], str], control_tokens: Collection[str]
) -> ToolForm | None:
    """Return the form of calls that a rendered chat with a tool asks for.

    Returns None if no grammar can hold the form: its marks are unknown, or they are control tokens
    of the model, which a grammar of text does not allow.
    """
    try:
        prompt = render(replace(PROBE_CHAT, tools=(_PROBE_TOOL,)))
    except EngineError:
        return None
    for form, pattern in _INSTRUCTIONS:
        if pattern.search(prompt):
            is_plain = form == "llama" or not set(_MARKS).intersection(control_tokens)
            return form if is_plain else None
    return None
