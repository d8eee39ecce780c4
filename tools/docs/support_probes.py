"""Test requests, one or more for each known parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT = "completions", "chat"
BOTH = (COMPLETIONS, CHAT)

_TOOLS = {"tools": [{"type": "function", "function": {"name": "look"}}]}
_SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}

_SCHEMA_VALUES = "a JSON Schema, as an object or as text"


@dataclass(frozen=True, slots=True)
class Probe:
    """Request bodies with one parameter. Engines are tested with the first, dialects with all.

    `values_text` describes the values if no model field does. `kind` names a special form.
    """

    name: str
    bodies: Sequence[Mapping[str, Any]]
    values_text: str = ""
    routes: Sequence[str] = BOTH
    kind: str = ""


def _values(name: str, *values: Any, values_text: str = "", routes: Sequence[str] = BOTH) -> Probe:
    return Probe(name, [{name: value} for value in values], values_text, routes)


PROBES: Sequence[Probe] = (
    _values("model", "m", None, values_text="the name of a served model"),
    Probe("model", [{"model": "an-adapter"}], "the name of a LoRA adapter", kind="an adapter"),
    _values(
        "prompt",
        "a",
        ["a", "b"],
        values_text="a string, an array of strings, of token ids, of arrays of token ids",
        routes=[COMPLETIONS],
    ),
    Probe(
        "prompt",
        [{"prompt": [1, 2]}, {"prompt": [[1], [2]]}],
        "ids from the model's vocabulary",
        [COMPLETIONS],
        "token ids",
    ),
    _values(
        "messages",
        [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
        values_text="roles developer, system, user, assistant, tool, function; "
        "content: text or text parts",
        routes=[CHAT],
    ),
    _values("max_tokens", 5),
    _values("max_completion_tokens", 5),
    _values("temperature", 0.5, 0, 2),
    _values("top_p", 0.5, 0),
    _values("top_k", 5, -1),
    _values("min_p", 0.5),
    _values("repetition_penalty", 1.5),
    _values("frequency_penalty", 1.5, -2),
    _values("presence_penalty", 1.5, -2),
    _values("seed", 1),
    _values("stop", "a", ["a", "b", "c", "d", "e"]),
    _values("stop_token_ids", [1]),
    Probe(
        "include_stop_str_in_output",
        [
            {"include_stop_str_in_output": True},
            {"include_stop_str_in_output": False},
            {"include_stop_str_in_output": False, "stream": True},
        ],
    ),
    _values("stop_in_reasoning", True),
    Probe("ignore_eos", [{"ignore_eos": True}, {"ignore_eos": True, "max_tokens": 5000}]),
    _values("min_tokens", 5),
    _values("logit_bias", {"1": 5}),
    _values("allowed_token_ids", [1, 2]),
    _values("bad_words", ["no"], values_text="an array of up to 200 strings"),
    _values("n", 2, routes=[CHAT]),
    Probe("n", [{"n": 2, "best_of": 2}, {"n": 2}], routes=[COMPLETIONS]),
    Probe("best_of", [{"best_of": 2}, {"best_of": 2, "stream": True}], routes=[COMPLETIONS]),
    Probe("length_penalty", [{"length_penalty": 2.0, "best_of": 2}], routes=[COMPLETIONS]),
    _values("echo", True, routes=[COMPLETIONS]),
    Probe(
        "logprobs",
        [{"logprobs": 1}, {"logprobs": 5}, {"logprobs": 1, "stream": True}],
        routes=[COMPLETIONS],
    ),
    Probe("logprobs", [{"logprobs": True}, {"logprobs": True, "stream": True}], routes=[CHAT]),
    Probe("top_logprobs", [{"logprobs": True, "top_logprobs": 20}], routes=[CHAT]),
    _values("suffix", "z", values_text="a string", routes=[COMPLETIONS]),
    _values("stream", True),
    Probe(
        "stream_options",
        [{"stream": True, "stream_options": {"include_usage": True}}],
        "an object with `include_usage`, other members are ignored; only with `stream`",
    ),
    _values(
        "response_format",
        _SCHEMA,
        {"type": "json_object"},
        values_text="text, json_object, json_schema",
    ),
    _values(
        "structured_outputs",
        {"json": {"type": "object"}},
        {"choice": ["a"]},
        values_text="an object with one of json, regex, choice, grammar, json_object",
    ),
    _values("guided_json", {"type": "object"}, '{"type": "object"}', values_text=_SCHEMA_VALUES),
    _values("json_schema", {"type": "object"}, '{"type": "object"}', values_text=_SCHEMA_VALUES),
    _values("guided_regex", "a+", values_text="a regular expression"),
    _values("regex", "a+", values_text="a regular expression"),
    _values("guided_choice", ["a"], values_text="an array of up to 1000 texts"),
    _values("guided_grammar", 'root ::= "a"', values_text="a grammar in GBNF or Lark"),
    _values("grammar", 'root ::= "a"', values_text="a grammar in GBNF or Lark"),
    _values("ebnf", 'root ::= "a"', values_text="a grammar in GBNF or Lark"),
    Probe("tools", [_TOOLS], "an array of up to 1000 functions", [CHAT]),
    Probe(
        "tool_choice",
        [_TOOLS | {"tool_choice": "required"}],
        "none, auto, required or a function",
        [CHAT],
    ),
    Probe(
        "parallel_tool_calls", [_TOOLS | {"parallel_tool_calls": False}], "true or false", [CHAT]
    ),
    _values("enable_thinking", True, values_text="true or false", routes=[CHAT]),
    Probe(
        "continue_final_message",
        [
            {
                "continue_final_message": True,
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b"},
                ],
            }
        ],
        "true or false",
        [CHAT],
    ),
    _values(
        "reasoning_effort",
        "none",
        "high",
        values_text="none, minimal, low, medium, high, xhigh",
        routes=[CHAT],
    ),
    _values(
        "chat_template_kwargs",
        {"a": 1},
        values_text="an object with variables for the chat template",
        routes=[CHAT],
    ),
    *(
        _values(name, 5, -1, values_text="a number of tokens, or -1 for any")
        for name in ("reasoning_budget", "thinking_token_budget", "max_thinking_tokens")
    ),
    _values("num_assistant_tokens", 5),
    _values("assistant_confidence_threshold", 0.5),
    _values("prompt_logprobs", 1),
    _values("truncate_prompt_tokens", 5, -1),
    _values("skip_special_tokens", False),
    _values("enable_validation", True, values_text="true or false"),
    _values(
        "validation",
        {"language": "en"},
        values_text="[validation options](jobs.md#validation-options)",
    ),
)
