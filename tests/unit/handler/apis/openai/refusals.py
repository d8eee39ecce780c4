"""Every refused body with its error message, by requirement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from handler.apis.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.input.sampling import MAX_INT32

COMPLETIONS, CHAT = "completions", "chat"
# In place of a value: the body does not have the key.
MISSING: Any = object()

# Fields and error message. The default parameter is the first word of the message.
Row = tuple[dict[str, Any], str] | tuple[dict[str, Any], str, str]
Place = tuple[Dialect, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A body that a route of a dialect refuses."""

    requirement: str
    dialect: Dialect
    route: str
    body: dict[str, Any]
    message: str
    param: str

    def __str__(self) -> str:
        return f"{self.requirement}-{self.dialect.name}-{self.route}-{'-'.join(self.body)}"


def places(
    dialects: Sequence[Dialect] = (OPENAI, ORACLE, OVMS),
    routes: Sequence[str] = (COMPLETIONS, CHAT),
) -> list[Place]:
    return list(product(dialects, routes))


EVERYWHERE = places()
IN_COMPLETIONS, IN_CHAT = places(routes=[COMPLETIONS]), places(routes=[CHAT])
BUT_OVMS = (OPENAI, ORACLE)
IN_OVMS = places([OVMS])
IN_OVMS_COMPLETIONS, IN_OVMS_CHAT = places([OVMS], [COMPLETIONS]), places([OVMS], [CHAT])

POSITIVE_INTEGER = f"a whole number from 1 to {MAX_INT32}"
STOP = (
    "stop must be a non-empty string or an array of up to 16 of them, each of up to 1024 characters"
)
TOKEN_IDS = "stop_token_ids must be an array of up to 16 token ids"
BIAS = "logit_bias must be an object of up to 10000 token ids and numbers from -100 to 100"
USAGE = "stream_options must be an object with include_usage: true or false"
NO_STREAM = "stream_options must come with stream: true"
PROMPT = "Invalid prompt format"
SINGLE = "Streaming is only supported for single prompts"
SURROGATE = "must be Unicode text, got half a surrogate pair at character 0"
ROLES = "must be one of developer, system, user, assistant, tool, function"


def wrong(name: str, words: str, *values: Any) -> list[Row]:
    return [({name: value}, f"{name} must be {words}, got {json.dumps(value)}") for value in values]


def numbers(name: str, words: str, *values: Any) -> list[Row]:
    """Return rows for these values and for values that are not numbers."""
    return wrong(name, words, *values, "1", True)


def flags(name: str) -> list[Row]:
    return wrong(name, "true or false", "yes", 1, 0)


def prompts() -> list[Row]:
    bad: list[Any] = [
        *(None, MISSING, "", 5, 1.5, True, {"text": "x"}),
        *([], [""], [[]], [None], [{}], [1, "a"], ["a", 1], ["a", ""], ["a", None], ["a", [1]]),
        *([[1], "a"], [[1], 2], [[1], []], [1.5], [True], [-1], [2**31], [["a"]], [[[1]]]),
    ]
    return [({"prompt": prompt}, PROMPT, "prompt") for prompt in bad]


def turns(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


def content(value: Any, requirement: str, place: str = "messages[0].content") -> Row:
    return turns({"role": "user", "content": value}), f"{place} must be {requirement}", place


REFUSALS: Mapping[str, Sequence[tuple[list[Place], list[Row]]]] = {
    "R6": [
        (IN_COMPLETIONS, prompts()),
        (IN_COMPLETIONS, [({"stream": True} | body, *expected) for body, *expected in prompts()]),  # type: ignore[misc]
        (
            IN_COMPLETIONS,
            [
                ({"prompt": ["x"] * 2049}, "prompt must have at most 2048 prompts, got 2049"),
                ({"prompt": "\ud800"}, f"prompt {SURROGATE}"),
                ({"prompt": ["a", "\udfff"]}, f"prompt {SURROGATE}"),
            ],
        ),
    ],
    "R7": [
        (EVERYWHERE, wrong("model", "a string", 5, True, ["m"], {})),
        (
            IN_OVMS,
            [({"model": None}, "model must be given"), ({"model": MISSING}, "model must be given")],
        ),
    ],
    "R8": [
        (EVERYWHERE, numbers("max_completion_tokens", POSITIVE_INTEGER, -2, 0, 1.5, 2**32)),
        (IN_CHAT, numbers("max_tokens", POSITIVE_INTEGER, -2, 0, 1.5, 2**32)),
        (
            IN_COMPLETIONS,
            [
                *numbers("max_tokens", f"a whole number from 0 to {MAX_INT32}", -2, 1.5, 2**32),
                ({"max_tokens": 0}, "max_tokens may be 0 only with echo: true"),
                ({"max_tokens": 0, "echo": False}, "max_tokens may be 0 only with echo: true"),
            ],
        ),
    ],
    "R9": [
        (
            EVERYWHERE,
            [
                *numbers("temperature", "a number from 0 to 2", -0.1, 2.1, []),
                *numbers("top_p", "a number from 0 to 1", -0.1, 1.1),
                *numbers("top_k", "a whole number, -1 or 0 for all tokens", -2, 1.5, 2**32),
                *numbers("min_p", "a number from 0 to 1", -0.1, 1.1),
                *numbers("repetition_penalty", "a number above 0, at most 100", 0, -1, 101),
                *numbers("frequency_penalty", "a number from -2 to 2", -2.1, 2.1),
                *numbers("presence_penalty", "a number from -2 to 2", -2.1, 2.1),
            ],
        ),
        (IN_OVMS, [({"top_p": 0}, "top_p must be above 0, at most 1, got 0")]),
    ],
    "R10": [
        (
            EVERYWHERE,
            [
                *numbers("seed", "a whole number of up to 64 bits", 1.5, 2**63, -(2**63) - 1),
                *flags("ignore_eos"),
            ],
        ),
        (
            IN_OVMS,
            [
                (
                    {"ignore_eos": True, "max_tokens": 4001},
                    "max_tokens must be at most 4000 with ignore_eos: true, got 4001",
                ),
                (
                    {"ignore_eos": True, "max_tokens": 5, "max_completion_tokens": 4001},
                    "max_completion_tokens must be at most 4000 with ignore_eos: true, got 4001",
                ),
            ],
        ),
    ],
    "R11": [
        (
            EVERYWHERE,
            [
                ({"stop": ""}, f'{STOP}, got ""'),
                ({"stop": [""]}, f'{STOP}, got [""]'),
                ({"stop": ["a", 5]}, f'{STOP}, got ["a",5]'),
                ({"stop": [None]}, f"{STOP}, got [null]"),
                ({"stop": 5}, f"{STOP}, got 5"),
                ({"stop": True}, f"{STOP}, got true"),
                ({"stop": {"a": 1}}, f'{STOP}, got {{"a":1}}'),
                ({"stop": "x" * 1025}, f'{STOP}, got "{"x" * 56}...'),
                ({"stop": ["x" * 1025]}, f"{STOP}, got an array of 1"),
                ({"stop_token_ids": [-1]}, f"{TOKEN_IDS}, got [-1]"),
                ({"stop_token_ids": ["1"]}, f'{TOKEN_IDS}, got ["1"]'),
                ({"stop_token_ids": [2**31]}, f"{TOKEN_IDS}, got [2147483648]"),
                (
                    {"stop_token_ids": [1] * 17},
                    f"{TOKEN_IDS}, got {json.dumps([1] * 17, separators=(',', ':'))}",
                ),
                ({"stop_token_ids": 5}, f"{TOKEN_IDS}, got 5"),
            ],
        ),
        (places(BUT_OVMS), [({"stop": ["a"] * 17}, "stop must have at most 16 strings, got 17")]),
        (
            IN_OVMS,
            [
                ({"stop": ["a"] * 5}, "stop must have at most 4 strings, got 5"),
                ({"stop": ["a"] * 17}, "stop must have at most 4 strings, got 17"),
            ],
        ),
    ],
    "R12": [(EVERYWHERE, flags("include_stop_str_in_output"))],
    "R13": [
        (
            places(BUT_OVMS, [COMPLETIONS]),
            numbers("logprobs", "a whole number from 0 to 20", -1, 21, 1.5),
        ),
        (
            IN_CHAT,
            [
                *wrong("logprobs", "true or false", 1, 5, "yes"),
                *numbers("top_logprobs", "a whole number from 0 to 20", -1, 21, 1.5),
                *numbers("prompt_logprobs", "a whole number from 0 to 20", -1, 21, 1.5),
                ({"top_logprobs": 2}, "top_logprobs must come with logprobs: true"),
                (
                    {"top_logprobs": 0, "logprobs": False},
                    "top_logprobs must come with logprobs: true",
                ),
            ],
        ),
        (
            IN_OVMS_COMPLETIONS,
            [
                ({"logprobs": 0}, "logprobs must be 1, got 0"),
                ({"logprobs": 5}, "logprobs must be 1, got 5"),
                *wrong("logprobs", "a whole number from 0 to 20", -1, 21, True, "1"),
                ({"logprobs": 1, "stream": True}, "logprobs must not come with stream: true"),
            ],
        ),
        (
            IN_OVMS_CHAT,
            [({"logprobs": True, "stream": True}, "logprobs must not come with stream: true")],
        ),
    ],
    "R14": [(IN_COMPLETIONS, flags("echo"))],
    "R15": [
        (EVERYWHERE, numbers("n", "a whole number from 1 to 128", 0, -1, 129, 1.5)),
        (
            IN_COMPLETIONS,
            [
                *numbers("best_of", "a whole number from 1 to 20", 0, 21, 1.5),
                ({"n": 3, "best_of": 2}, "best_of must be at least n, which is 3, got 2"),
                *numbers("length_penalty", "a number", []),
                (
                    {"prompt": ["x"] * 1025, "n": 2, "best_of": 2},
                    "prompt, n and best_of must ask for at most 2048 answers together, got 2050",
                    "prompt",
                ),
            ],
        ),
        (IN_OVMS_COMPLETIONS, [({"n": 2}, "n must be at most best_of, which is 1, got 2")]),
    ],
    # Some engines support them, so their values are checked.
    "R16": [
        (
            EVERYWHERE,
            [
                ({"logit_bias": 5}, f"{BIAS}, got 5"),
                ({"logit_bias": [1]}, f"{BIAS}, got [1]"),
                ({"logit_bias": {"1": 101}}, f'{BIAS}, got {{"1":101}}'),
                ({"logit_bias": {"1": -101}}, f'{BIAS}, got {{"1":-101}}'),
                ({"logit_bias": {"1": "5"}}, f'{BIAS}, got {{"1":"5"}}'),
                ({"logit_bias": {"1": True}}, f'{BIAS}, got {{"1":true}}'),
                ({"logit_bias": {"a": 1}}, f'{BIAS}, got the key "a"'),
                ({"logit_bias": {"-1": 1}}, f'{BIAS}, got the key "-1"'),
                ({"logit_bias": {"1.5": 1}}, f'{BIAS}, got the key "1.5"'),
            ],
        ),
        (
            IN_COMPLETIONS,
            [*wrong("suffix", "a string", 5, ["x"]), ({"suffix": "\ud800"}, f"suffix {SURROGATE}")],
        ),
    ],
    "R17": [
        (
            EVERYWHERE,
            [
                *numbers("num_assistant_tokens", "a whole number from 1 to 64", 0, -1, 65, 1.5),
                *numbers("assistant_confidence_threshold", "a number from 0 to 1", -0.1, 1.1),
            ],
        ),
        (
            IN_OVMS,
            [
                *(
                    ({name: value}, f"{name} needs a draft model, and none is loaded")
                    for name, value in (
                        ("num_assistant_tokens", 5),
                        ("assistant_confidence_threshold", 0.0),
                    )
                ),
                (
                    {"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.4},
                    "num_assistant_tokens must not come with assistant_confidence_threshold",
                ),
            ],
        ),
    ],
    "R19": [(EVERYWHERE, flags("stream"))],
    "R23": [
        (
            EVERYWHERE,
            [
                ({"stream_options": {"include_usage": True}}, NO_STREAM),
                ({"stream_options": {}}, NO_STREAM),
                ({"stream_options": 5}, NO_STREAM),
                ({"stream": False, "stream_options": {"include_usage": True}}, NO_STREAM),
                *(
                    ({"stream": True, "stream_options": options}, f"{USAGE}, got {got}")
                    for options, got in (
                        (5, "5"),
                        (True, "true"),
                        ("include_usage", '"include_usage"'),
                        ([], "[]"),
                        ({"include_usage": "yes"}, '"yes"'),
                        ({"include_usage": 1}, "1"),
                    )
                ),
            ],
        )
    ],
    "R25": [
        (
            IN_OVMS,
            [
                (
                    {"stream": True, "include_stop_str_in_output": False},
                    "include_stop_str_in_output must be true with stream: true, got false",
                )
            ],
        )
    ],
    "R28": [
        (
            IN_COMPLETIONS,
            [
                ({"prompt": prompt, "stream": True}, SINGLE, "prompt")
                for prompt in (["a", "b"], ["a"] * 2048, [[1], [2]])
            ],
        )
    ],
    "R34": [
        (
            IN_CHAT,
            [
                *wrong("messages", "a non-empty array", None, [], "hi", 5, {}),
                ({"messages": MISSING}, "messages must be a non-empty array, got null"),
                (turns("hi"), 'messages[0] must be an object, got "hi"', "messages[0]"),
                *(
                    (
                        turns({"role": role, "content": "x"}),
                        f"messages[0].role {ROLES}, got {json.dumps(role)}",
                        "messages[0].role",
                    )
                    for role in ("robot", "", None, 5, "User")
                ),
                (
                    turns({"role": "user", "content": "x"}, {"content": "x"}),
                    f"messages[1].role {ROLES}, got null",
                    "messages[1].role",
                ),
                content(None, "a string or an array of text parts, got null"),
                content(5, "a string or an array of text parts, got 5"),
                content({"text": "x"}, 'a string or an array of text parts, got {"text":"x"}'),
                content(
                    ["x"],
                    '{"type": "text", "text": …}, got "x"',
                    "messages[0].content[0]",
                ),
                content(
                    [{"type": "text", "text": "x"}, {"type": "text_part", "text": "y"}],
                    '{"type": "text", "text": …}, got {"type":"text_part","text":"y"}',
                    "messages[0].content[1]",
                ),
                (
                    turns({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
                    "messages[0].content[0].image_url.url must be a data URL such as "
                    "data:image/png;base64,…, got null",
                    "messages[0].content[0].image_url.url",
                ),
                content("\ud800", SURROGATE.removeprefix("must be ")),
                (
                    turns({"role": "user", "content": "x", "name": 5}),
                    "messages[0].name must be a string, got 5",
                    "messages[0].name",
                ),
                (
                    turns({"role": "tool", "content": "x", "tool_call_id": 5}),
                    "messages[0].tool_call_id must be a string, got 5",
                    "messages[0].tool_call_id",
                ),
                (
                    turns({"role": "assistant", "tool_calls": 5}),
                    "messages[0].tool_calls must be an array, got 5",
                    "messages[0].tool_calls",
                ),
                (
                    turns({"role": "assistant", "tool_calls": [{}]}),
                    "messages[0].tool_calls[0] must have a function with a name and arguments, "
                    "both strings, got {}",
                    "messages[0].tool_calls",
                ),
            ],
        )
    ],
}


def refusals() -> Iterator[Refusal]:
    """Yield each row for each dialect and route that it is for."""
    for requirement, groups in REFUSALS.items():
        for result, rows in groups:
            for (dialect, route), (body, message, *named) in product(result, rows):
                param = named[0] if named else message.split(" ")[0]
                yield Refusal(requirement, dialect, route, body, message, param)
