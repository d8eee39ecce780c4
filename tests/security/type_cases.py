"""Bodies in which one member has a value of a type that it must not have, for every API."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.integration.emulator.serving import Server
from tests.security.json_cases import SAMPLING, SCHEMA

MODEL = "scripted"
# The engine reports all that a request can ask for, so that no value is refused before it is read.
CAPABILITIES: dict[str, Any] = {
    **dict.fromkeys(("images", "rerank", "grammar", "json_schema", "logit_bias"), True),
    **dict.fromkeys(("min_tokens", "prompt_logprobs", "chat_template", "infill"), True),
    "max_logprobs": 5,
}
_JSON = {"content-type": "application/json"}
# How long the longest batch may take on a slow machine.
_BATCH_S = 300
# The member of a body is removed instead of replaced.
_ABSENT = object()
_WRONG_VALUES: list[Any] = [
    _ABSENT,
    *(None, True, 0, -1, 1.5, 1e300, 2**63, "", "x"),
    *([], [[]], {}, {"type": []}, {"a": {"b": None}}, [None, True, 1.5, "x", [], {"type": []}]),
    # Deeper than what can be encoded again, but not than what can be read.
    json.loads('{"a":' * 300 + "1" + "}" * 300),
]
IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
_FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
_USER = {"role": "user", "content": "hi"}
_TURNS = [
    {"role": "system", "content": "be short", "name": "s"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}]},
]
_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "s", "strict": True, "schema": SCHEMA},
}
_VALIDATION = {"json_schema": SCHEMA, "language": "en", "redact": ["email"]}
_CHAT_EXTRAS: dict[str, Any] = {
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "user": "u",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "reasoning_effort": "low",
    "reasoning_budget": 5,
    "enable_thinking": True,
    "stream": True,
    "chat_template_kwargs": {"a": 1},
    "modalities": ["text"],
    "add_generation_prompt": True,
    "continue_final_message": False,
}
_CHAT = {"messages": [_USER], "model": "scripted", **SAMPLING, **_CHAT_EXTRAS}
_CHAT_TOOLS: dict[str, Any] = {
    "messages": _TURNS,
    "tools": [{"type": "function", "function": _FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "max_tokens": 3,
    "stream": True,
}
_CHAT_FORM: dict[str, Any] = {
    "messages": [_USER],
    "response_format": _FORMAT,
    "validation": _VALIDATION,
    "max_tokens": 3,
}
_CONSTRAINTS: list[dict[str, Any]] = [
    {"messages": [_USER], "max_tokens": 3, **constraint}
    for constraint in (
        {"structured_outputs": {"regex": "[a-z]+", "disable_any_whitespace": True}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_choice": ["a", "b"]},
        {"guided_json": SCHEMA},
        {"grammar": 'root ::= "a"'},
    )
]
_COMPLETION: dict[str, Any] = {
    **SAMPLING,
    "prompt": ["hi"],
    "echo": False,
    "logprobs": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
    "best_of": 1,
    "user": "u",
    "response_format": {"type": "json_object"},
}
_RESPONSE: dict[str, Any] = {
    "model": "scripted",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "f1"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        },
        {"role": "user", "content": "again"},
    ],
    "instructions": "be short",
    "max_output_tokens": 3,
    "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "store": True,
    "stream": False,
    "temperature": 0.5,
    "tools": [
        {"type": "function", **_FUNCTION},
        {"type": "custom", "name": "g", "description": "d", "format": {"type": "text"}},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": True,
    "truncation": "auto",
    "user": "u",
}
_RESPONSE_FORM: dict[str, Any] = {
    "input": "hi",
    "text": {"format": {"type": "json_schema", "name": "s", "strict": True, "schema": SCHEMA}},
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "max_output_tokens": 3,
}
_MESSAGE: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 3,
    "system": [{"type": "text", "text": "be short", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "hi"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": [1]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "done"}],
                    "is_error": False,
                },
                {"type": "text", "text": "again"},
            ],
        },
    ],
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.9,
    "metadata": {"user_id": "u"},
    "tools": [
        {"name": "f", "description": "d", "input_schema": SCHEMA, "type": "custom"},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "disabled", "budget_tokens": 1_024},
    "output_config": {"effort": "low"},
    "stream": False,
}
_MESSAGE_FORM: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 3,
    "messages": [_USER],
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "stream": True,
}
_OLLAMA_OPTIONS: dict[str, Any] = {
    "num_predict": 3,
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.1,
    "seed": 1,
    "stop": ["x"],
    "repeat_penalty": 1.1,
    "num_ctx": 2_048,
}
_OLLAMA_CHAT: dict[str, Any] = {
    "model": "scripted",
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}],
        },
        {"role": "tool", "content": "done", "tool_name": "f"},
    ],
    "tools": [{"type": "function", "function": _FUNCTION}],
    "options": _OLLAMA_OPTIONS,
    "think": False,
    "keep_alive": "5m",
    "stream": False,
    "logprobs": True,
    "top_logprobs": 1,
}
_OLLAMA_GENERATE: dict[str, Any] = {
    "model": "scripted",
    "prompt": "hi",
    "system": "be short",
    "template": "",
    "raw": False,
    "format": SCHEMA,
    "options": _OLLAMA_OPTIONS,
    "keep_alive": 5,
    "context": [1],
    "stream": True,
    "think": False,
}
_INPUT: dict[str, Any] = {
    "messages": [_USER],
    "model": "scripted",
    "sampling_params": SAMPLING,
    "stream": True,
    "batch_size": 1,
    "max_batch_size": 2,
    "min_batch_size": 1,
    "batch_size_growth_factor": 2,
    "apply_chat_template": False,
    "validation": _VALIDATION,
    "use_openai_format": False,
}
_JOB: dict[str, Any] = {
    "input": _INPUT,
    "policy": {"executionTimeout": 10_000, "ttl": 60_000, "lowPriority": False},
    "webhook": "http://127.0.0.1:9/hook",
    "s3Config": {
        "accessId": "a",
        "accessSecret": "b",
        "bucketName": "c",
        "endpointUrl": "http://127.0.0.1:9",
    },
}
IMAGE_BODIES: dict[str, Any] = {
    "/v1/chat/completions": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is it?"},
                    {
                        "type": "image_url",
                        "image_url": {"url": f"data:image/png;base64,{IMAGE}", "detail": "low"},
                    },
                ],
            }
        ]
    },
    "/v1/responses": {
        "input": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "input_image",
                        "image_url": f"data:image/png;base64,{IMAGE}",
                        "detail": "low",
                    }
                ],
            }
        ]
    },
    "/v1/messages": {
        "model": "scripted",
        "max_tokens": 3,
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": IMAGE},
                    }
                ],
            }
        ],
    },
    "/api/chat": {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hi", "images": [IMAGE]}],
    },
}
_RERANK = {"query": "a", "documents": ["a", {"text": "b"}], "model": "scripted", "top_n": 1}
_SCORE = {"text_1": "a", "text_2": ["a", "b"], "model": "scripted", "user": "u"}
_EMBEDDING = {
    "input": ["a", "b"],
    "model": "scripted",
    "encoding_format": "float",
    "dimensions": 32,
    "user": "u",
}


def _routed(route: str, body: Any) -> Any:
    return {"input": {"openai_route": route, "openai_input": body}}


# Each API's bodies with all the members that it reads. With `CAPABILITIES` all are answered.
FULL_BODIES: list[tuple[str, Any]] = [
    *(("/v1/chat/completions", body) for body in (_CHAT, _CHAT_TOOLS, _CHAT_FORM)),
    ("/v1/completions", _COMPLETION),
    *(("/v1/chat/completions", body) for body in _CONSTRAINTS),
    ("/v1/completions", {"prompt": [1, 2], "suffix": "x", "stream": True, "max_tokens": 3}),
    ("/v1/embeddings", _EMBEDDING),
    ("/v1/rerank", _RERANK),
    ("/v1/score", _SCORE),
    ("/tokenize", {"prompt": "hi", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"messages": [_USER], "tools": _CHAT_TOOLS["tools"]}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    *(("/v1/responses", body) for body in (_RESPONSE, _RESPONSE_FORM)),
    ("/v1/responses", {"input": "hi", "background": True, "seed": 1}),
    *(("/v1/messages", body) for body in (_MESSAGE, _MESSAGE_FORM)),
    ("/v1/messages/count_tokens", _MESSAGE),
    ("/api/chat", _OLLAMA_CHAT),
    ("/api/generate", _OLLAMA_GENERATE),
    ("/api/embed", {"model": "scripted", "input": ["a"], "truncate": True, "options": {}}),
    ("/api/embeddings", {"model": "scripted", "prompt": "a", "keep_alive": 0}),
    ("/api/show", {"model": "scripted", "verbose": True}),
    ("/api/pull", {"model": "scripted", "insecure": False, "stream": False}),
    ("/run", _JOB),
    ("/runsync", {"input": _INPUT}),
    ("/runsync", {"input": {"prompt": "a", "max_tokens": 3, "stop": ["x"]}}),
    ("/runsync", _routed("/v1/chat/completions", _CHAT_TOOLS)),
    ("/runsync", _routed("/v1/responses", _RESPONSE)),
    ("/runsync", _routed("/v1/messages", _MESSAGE)),
    ("/v2/default/openai/v1/chat/completions", _CHAT_TOOLS),
    *IMAGE_BODIES.items(),
]


_LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": _CHAT}
_NEW_BATCH = {
    "input_file_id": "file-1",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
    "metadata": {"a": "b"},
    "output_expires_after": {"anchor": "created_at", "seconds": 3_600},
}
BATCH_ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score"),
    *("/v1/responses", "/v1/messages"),
)


@dataclass(frozen=True, slots=True)
class TypeCase:
    """A valid body, and the wrong value for its member at `keys`."""

    route: str
    valid: Any
    keys: tuple[str | int, ...]
    value: Any

    @property
    def body(self) -> Any:
        """A copy of the body with the wrong value."""
        # By JSON, because the bodies share their parts, and one place is to change.
        copied = json.loads(json.dumps(self.valid))
        parent = _member(copied, self.keys[:-1])
        if self.value is _ABSENT:
            del parent[self.keys[-1]]
        else:
            parent[self.keys[-1]] = self.value
        return copied

    def __str__(self) -> str:
        value = "nothing" if self.value is _ABSENT else repr(self.value)
        return f"{self.route}: {'.'.join(map(str, self.keys))} = {value}"


def body_cases() -> Iterator[TypeCase]:
    """Yield a case for each member and each wrong value of the bodies of all APIs."""
    for route, body in [*FULL_BODIES, ("/v1/batches", _NEW_BATCH)]:
        yield from _type_cases(route, body)


def line_cases() -> Iterator[TypeCase]:
    """Yield the cases of the lines of batches: wrong members of the lines themselves."""
    yield from _type_cases("/v1/files", _LINE)


def batch_cases(route: str) -> Iterator[TypeCase]:
    """Yield the cases of the bodies in the lines of a batch for a route."""
    for each, body in FULL_BODIES:
        if each == route:
            yield from _type_cases(route, body)


async def check_full_bodies(client: httpx2.AsyncClient) -> None:
    """Check that the bodies are valid: a change to a refused body tests nothing."""
    for route, body in FULL_BODIES:
        response = await _post(client, route, body)
        assert response.status_code == 200, (route, response.text)
        assert '"FAILED"' not in response.text, (route, response.text)


async def send_type_cases(client: httpx2.AsyncClient, cases: Iterable[TypeCase]) -> Counter[int]:
    """Send bodies; check that none is the server's fault and that each refusal names a field."""
    statuses: Counter[int] = Counter()
    for case in cases:
        response = await _post(client, case.route, case.body)
        statuses[response.status_code] += 1
        assert response.status_code < 500, (str(case), response.text)
        # The error of a job or of a stream has the status 200.
        assert "internal error" not in response.text, (str(case), response.text)
        if response.status_code == 400:
            _check_refusal(case, response.json())
    return statuses


async def send_lines(client: httpx2.AsyncClient, cases: Iterable[TypeCase]) -> Counter[int]:
    """Upload each case as the only line of a file; check that it is accepted or refused."""
    statuses: Counter[int] = Counter()
    for case in cases:
        response = await _upload(client, [case.body])
        statuses[response.status_code] += 1
        assert response.status_code in (200, 400), (str(case), response.text)
    return statuses


async def run_batch(server: Server, route: str, cases: Iterable[TypeCase]) -> Counter[int]:
    """Answer cases as the lines of one batch; check that none is the server's fault."""
    lines = [
        {"custom_id": f"{number} {case}"[:500], "method": "POST", "url": route, "body": case.body}
        for number, case in enumerate(cases)
    ]
    async with server.client(sends_anything=True) as client:
        file_id = (await _upload(client, lines)).json()["id"]
        body = {"input_file_id": file_id, "endpoint": route, "completion_window": "24h"}
        batch = (await _post(client, "/v1/batches", body)).json()
        async with asyncio.timeout(_BATCH_S):
            while batch["status"] != "completed":
                assert batch["status"] in ("validating", "in_progress", "finalizing"), batch
                batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
        statuses: Counter[int] = Counter()
        for name in ("output_file_id", "error_file_id"):
            if batch[name] is None:
                continue
            content = (await client.get(f"/v1/files/{batch[name]}/content")).text
            for line in map(json.loads, content.splitlines()):
                status = line["response"]["status_code"]
                statuses[status] += 1
                assert status < 500, line
    assert statuses.total() == len(lines)
    return statuses


def _check_refusal(case: TypeCase, body: dict[str, Any]) -> None:
    """Check that an error is one sentence and names a field."""
    error = body["error"]
    message = error if isinstance(error, str) else error["message"]
    param = body.get("param") if isinstance(error, str) else error.get("param")
    assert "\n" not in message, (str(case), message)
    # The Messages API has no field for the name.
    if not case.route.startswith("/v1/messages"):
        assert param, (str(case), body)


async def _post(client: httpx2.AsyncClient, route: str, body: Any) -> httpx2.Response:
    return await client.post(route, content=json.dumps(body), headers=_JSON)


async def _upload(client: httpx2.AsyncClient, lines: list[Any]) -> httpx2.Response:
    content = "\n".join(map(json.dumps, lines))
    form = {"purpose": "batch"}
    return await client.post("/v1/files", data=form, files={"file": ("a.jsonl", content)})


def _type_cases(route: str, body: Any) -> Iterator[TypeCase]:
    paths = list(_paths(body, ()))
    for keys, value in itertools.product(paths, _WRONG_VALUES):
        yield TypeCase(route, body, keys, value)
    for keys in [(), *paths]:
        if isinstance(_member(body, keys), dict):
            yield TypeCase(route, body, (*keys, "unknown_member"), {"type": []})


def _paths(value: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, member in members:
        yield (*keys, key)
        yield from _paths(member, (*keys, key))


def _member(body: Any, keys: tuple[str | int, ...]) -> Any:
    for key in keys:
        body = body[key]
    return body
