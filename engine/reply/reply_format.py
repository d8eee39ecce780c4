"""Which functions a model may call in its output, and how it writes the calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# The families of forms in which models write tool calls; `calls/formats.py` has the forms.
ToolForm = Literal[
    "qwen_xml",
    "hermes",
    "mistral",
    "llama",
    "llama_pythonic",
    "gemma4",
    "phi4",
    "deepseek",
    "harmony",
    "json",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How to take an output apart.

    `functions` has the JSON Schemas of the functions' parameters by name. Without
    `parallel_calls`, calls after the first one are dropped. `constrains_calls` means that a grammar
    or a check holds the calls too, which are JSON then. `tool_form` is the one family of forms of
    calls that is recognised; None for all of them.
    """

    functions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parallel_calls: bool = True
    constrains_calls: bool = False
    tool_form: ToolForm | None = None


REASONING_ONLY = ReplyFormat()
