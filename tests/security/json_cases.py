"""JSON bodies that an attacker makes of valid ones: some values are replaced by hostile ones."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tests.security.costly_requests import CHAT, COSTLY_SCHEMAS
from tests.security.raw_http import exchange

_CLIENTS = 4
# Above what the server accepts. Without a limit, repeating twice makes bodies of gigabytes.
_MAX_REPEATED_BYTES = 40_000_000

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"enum": [1, "x"]}, "maxItems": 3}},
    "required": ["a"],
}
SAMPLING: dict[str, Any] = {
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "seed": 1,
    "stop": ["x", "yz"],
    "stop_token_ids": [2],
    "logit_bias": {"1": 2.5},
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "n": 1,
    "ignore_eos": False,
}
_CHAT: dict[str, Any] = {
    **SAMPLING,
    "model": "scripted",
    "messages": [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    "stream": False,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "validation": {"json_schema": SCHEMA},
    "chat_template_kwargs": {"a": 1},
    "user": "u",
    "metadata": {"a": "b"},
}
_COMPLETION: dict[str, Any] = {
    **SAMPLING,
    "prompt": "hi",
    "echo": False,
    "logprobs": 1,
    "suffix": "x",
    "stream": False,
    "best_of": 1,
}
_JOB: dict[str, Any] = {
    "input": {
        "prompt": "hi",
        "messages": [{"role": "user", "content": "hi"}],
        "sampling_params": SAMPLING,
        "stream": False,
        "batch_size": 1,
        "apply_chat_template": False,
        "validation": {"json_schema": SCHEMA},
    },
    "policy": {"executionTimeout": 10_000, "ttl": 60_000, "lowPriority": False},
    "webhook": None,
    "s3Config": None,
}
VALID_BODIES: list[tuple[str, Any]] = [
    (CHAT, _CHAT),
    ("/v1/completions", _COMPLETION),
    ("/v1/embeddings", {"input": ["a", "b"], "model": "scripted", "encoding_format": "float"}),
    (
        "/v1/rerank",
        {"query": "a", "documents": ["a", {"text": "b"}], "model": "scripted", "top_n": 1},
    ),
    ("/v1/score", {"text_1": "a", "text_2": ["a", "b"], "model": "scripted"}),
    ("/tokenize", {"prompt": "hi", "messages": None}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/run", _JOB),
    ("/runsync", _JOB),
    ("/runsync", {"input": {"openai_route": CHAT, "openai_input": _CHAT}}),
    ("/v2/default/openai/v1/chat/completions", _CHAT),
]
_HOSTILE: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    2**64,
    10**400,
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "\0",
    "\ud800",
    "\u202e\x1b[2J",
    "9" * 400,
    "a" * 5_000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"$ref": "#"},
    {"a": {"b": {"c": []}}},
    *COSTLY_SCHEMAS.values(),
]


def json_cases(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield paths and bodies, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        path, body = chance.choice(VALID_BODIES)
        for _ in range(chance.choice([1, 1, 1, 2, 4, 12])):
            # Parsed again, because repeated values share their objects: a change would multiply.
            body = _changed(json.loads(json.dumps(body)), chance)
        text = json.dumps(body, ensure_ascii=True)
        if chance.random() < 0.05:
            start = chance.randrange(len(text))
            text = text[:start] + chance.choice(['"', "[", "}", ",", "\\", "1e", ""]) + text[start:]
        if chance.random() < 0.02:
            text = text[: chance.randrange(len(text))]
        yield path, text.encode()


async def send_cases(port: int, cases: Iterable[tuple[str, bytes]]) -> Counter[int]:
    """Send all cases; check that no status is 5xx. Return how often each status came."""
    statuses: Counter[int] = Counter()
    remaining = iter(cases)

    async def client() -> None:
        for path, body in remaining:
            response = await exchange(port, "POST", path, body=body, deadline_s=60)
            assert response.status < 500, (response, path, body[:2_000])
            statuses[response.status] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(client())
    return statuses


def _changed(value: Any, chance: random.Random) -> Any:
    """Return a value with one part replaced, removed, repeated or put one level deeper."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if chance.random() < 0.08:
            del value[key]
        elif isinstance(value, list) and len(value) < 100 and chance.random() < 0.05:
            count = chance.choice([2, 50, 2_000])
            return value * count if len(json.dumps(value)) * count < _MAX_REPEATED_BYTES else value
        else:
            value[key] = _changed(value[key], chance)
        return value
    if chance.random() < 0.02:
        deep: Any = value
        for _ in range(chance.choice([5, 100, 300])):
            deep = [deep] if chance.random() < 0.5 else {"a": deep}
        return deep
    return copy.deepcopy(chance.choice(_HOSTILE))
