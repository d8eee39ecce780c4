"""Write tool calls as the families of models write them, to be read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.reply.reply_format import ToolForm

Calls = Sequence[tuple[str, Mapping[str, Any]]]

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "text": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "places": {"type": "array"},
        "limits": {"type": "object"},
        "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}
FUNCTIONS = {"weather": PARAMETERS, "weather_at": PARAMETERS, "time": {}}


def _bar(name: str) -> str:
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"


def _objects(calls: Calls, key: str = "arguments", separator: str = ", ") -> str:
    return separator.join(
        json.dumps({"name": name, key: values}, ensure_ascii=False) for name, values in calls
    )


def _hermes(calls: Calls) -> str:
    each = (_objects([call]) for call in calls)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in each)


def _qwen_xml(calls: Calls) -> str:
    return "\n".join(
        "<tool_call>\n"
        + f"<function={name}>\n"
        + "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n"
            "</parameter>\n"
            for key, value in values.items()
        )
        + "</function>\n</tool_call>"
        for name, values in calls
    )


def _python(calls: Calls) -> str:
    texts = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"
        for name, values in calls
    )
    return f"[{', '.join(texts)}]"


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        members = (f"{key}:{_gemma_value(each)}" for key, each in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, value)) + "]"
    return json.dumps(value)


def _deepseek(calls: Calls) -> str:
    begin, sep, end = _bar("tool call begin"), _bar("tool sep"), _bar("tool call end")
    texts = (
        f"{begin}function{sep}{name}\n```json\n{json.dumps(values)}\n```{end}"
        for name, values in calls
    )
    return f"{_bar('tool calls begin')}{chr(10).join(texts)}{_bar('tool calls end')}"


def _deepseek_31(calls: Calls) -> str:
    begin, sep, end = _bar("tool call begin"), _bar("tool sep"), _bar("tool call end")
    texts = "".join(f"{begin}{name}{sep}{json.dumps(values)}{end}" for name, values in calls)
    return f"{_bar('tool calls begin')}{texts}{_bar('tool calls end')}"


# Each with the family that CALL_FORMS gives it.
WRITERS: Mapping[str, tuple[ToolForm, Callable[[Calls], str]]] = {
    "hermes": ("hermes", _hermes),
    "qwen_xml": ("qwen_xml", _qwen_xml),
    "mistral": ("mistral", lambda calls: f"[TOOL_CALLS][{_objects(calls)}]"),
    "mistral_args": (
        "mistral",
        lambda calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{json.dumps(v)}" for n, v in calls),
    ),
    "mistral_id": (
        "mistral",
        lambda calls: "".join(
            f"[TOOL_CALLS]{n}[CALL_ID]a1B2c3D4e[ARGS]{json.dumps(v)}" for n, v in calls
        ),
    ),
    "mistral_without_mark": (
        "mistral",
        lambda calls: "".join(f"{n}[ARGS]{json.dumps(v)}" for n, v in calls),
    ),
    "llama": ("llama", lambda calls: f"<|python_tag|>{_objects(calls, 'parameters', '; ')}"),
    "llama_pythonic": ("llama_pythonic", _python),
    "llama_4": (
        "llama_pythonic",
        lambda calls: f"<|python_start|>{_python(calls)}<|python_end|>",
    ),
    "gemma4": (
        "gemma4",
        lambda calls: "".join(
            f"<|tool_call>call:{name}{_gemma_value(values)}<tool_call|>" for name, values in calls
        ),
    ),
    "phi4": ("phi4", lambda calls: f"functools[{_objects(calls)}]"),
    "phi4_marks": ("phi4", lambda calls: f"<|tool_call|>[{_objects(calls)}]<|/tool_call|>"),
    "deepseek": ("deepseek", _deepseek),
    "deepseek_31": ("deepseek", _deepseek_31),
    "harmony": (
        "harmony",
        lambda calls: "".join(
            f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json"
            f"<|message|>{json.dumps(values)}<|call|>"
            for name, values in calls
        ),
    ),
    "fenced": ("json", lambda calls: f"```json\n{_objects(calls, separator=chr(10))}\n```"),
    "json": ("json", lambda calls: _objects(calls, separator="\n")),
    "array": ("json", lambda calls: f"[{_objects(calls)}]"),
    "wrapped": (
        "json",
        lambda calls: "\n".join(
            json.dumps({"type": "function", "function": {"name": name, "arguments": values}})
            for name, values in calls
        ),
    ),
    "arguments_first": (
        "json",
        lambda calls: "\n".join(
            json.dumps({"arguments": values, "name": name}) for name, values in calls
        ),
    ),
    "arguments_as_string": (
        "json",
        lambda calls: "\n".join(
            json.dumps({"name": name, "arguments": json.dumps(values)}) for name, values in calls
        ),
    ),
}
