"""Requests that would cost too much are refused, and the accepted ones do no harm."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine import BackendConfig, Engine
from engine.errors import EngineCrashed
from engine.request import GenerationRequest, SamplingParams
from engine.schema.grammar_cost import (
    MAX_ITEMS,
    MAX_LENGTH,
    MAX_OPTIONAL_PARTS,
    find_cost_violation,
)
from tests.conftest import EngineFactory
from tests.integration.emulator.conftest import Serve
from tests.llama_grammar import allows
from tests.security.costly_requests import (
    CHAT,
    COSTLY_GRAMMARS,
    COSTLY_SCHEMAS,
    HOSTILE_GRAMMARS,
    LARGEST_SCHEMAS,
    chat,
    with_schema,
    with_tool,
)
from tests.security.json_cases import VALID_BODIES, json_cases, send_cases
from tests.security.loop_stalls import watched_loop
from tests.security.raw_http import RawResponse, exchange
from validation.options.schema import SchemaCheck

# Ten times the stall of the largest body on a quiet machine.
STALL_LIMIT_S = 0.35
COMPLETIONS = "/v1/completions"


def message_of(response: RawResponse, status: int = 400) -> str:
    """Return the message of an error, after checking that it is one clear sentence."""
    assert response.status == status, response.body[:500]
    error = json.loads(response.body)["error"]
    message = error["message"] if isinstance(error, dict) else error
    assert "\n" not in message
    assert "Traceback" not in message
    assert 0 < len(message) < 400
    return str(message)


# -- schemas and grammars --------------------------------------------------------------------------


# In the parameters of a tool a reference leads nowhere, and is refused for that.
COSTLY_CALLS = {name: with_schema(schema) for name, schema in COSTLY_SCHEMAS.items()} | {
    f"{name} in a tool": with_tool(schema)
    for name, schema in COSTLY_SCHEMAS.items()
    if "$ref" not in json.dumps(schema)
}


@pytest.mark.parametrize("name", COSTLY_CALLS)
async def test_costly_schema_is_refused_without_a_stall(serve: Serve, name: str) -> None:
    server = await serve()
    async with watched_loop() as stalls:
        response = await exchange(server.port, "POST", CHAT, body=COSTLY_CALLS[name])
        assert stalls.reset() < STALL_LIMIT_S
    assert "asks for too much" in message_of(response)


@pytest.mark.parametrize("name", COSTLY_SCHEMAS)
async def test_costly_schema_of_a_job_is_refused_and_the_next_job_runs(
    serve: Serve, name: str
) -> None:
    server = await serve()
    call = json.loads(with_schema(COSTLY_SCHEMAS[name]))
    body = json.dumps({"input": {"openai_route": CHAT, "openai_input": call}}).encode()
    response = await exchange(server.port, "POST", "/runsync", body=body)
    assert b"asks for too much" in response.body
    assert json.loads(response.body).get("status", "FAILED") == "FAILED"
    response = await exchange(server.port, "POST", "/runsync", body=b'{"input": {"prompt": "hi"}}')
    assert json.loads(response.body)["status"] == "COMPLETED"


@pytest.mark.long
async def test_costly_requests_leave_a_real_engine_alive_and_answering(
    serve: Serve, model_path: Path
) -> None:
    server = await serve(
        engine="llamacpp", engine_isolation="process", model_path=model_path, context_length=1024
    )
    post = partial(exchange, server.port, "POST", deadline_s=60)
    assert (await post(CHAT, body=chat())).status == 200
    process = server.engine._host._supervisor._process  # type: ignore[attr-defined]
    for schema in COSTLY_SCHEMAS.values():
        message_of(await post(CHAT, body=with_schema(schema)))
    # One after another and all at once: each is compiled while others wait for the engine.
    accepted = [post(CHAT, body=with_schema(schema)) for schema in LARGEST_SCHEMAS.values()]
    assert [response.status for response in await asyncio.gather(*accepted)] == [200] * len(
        accepted
    )
    # 19 MB of one word, and special tokens, which take quadratic time.
    for prompt in ("word " * 3_800_000, "<|im_start|>" * 20_000):
        body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
        for path in (COMPLETIONS, "/tokenize"):
            assert " context" in message_of(await post(path, body=body))
    for path, body, name in [
        ("/detokenize", b'{"tokens": [1, 99999999]}', "tokens"),
        (COMPLETIONS, b'{"prompt": [99999999]}', "prompt"),
        (COMPLETIONS, b'{"prompt": "x", "logit_bias": {"99999999": 1}}', "logit_bias"),
        ("/v1/embeddings", b'{"input": [99999999]}', "input"),
    ]:
        assert f"{name}: 99999999 is no token id" in message_of(await post(path, body=body))
    assert (await post(CHAT, body=chat())).status == 200
    assert server.engine._host._supervisor._process is process  # type: ignore[attr-defined]


async def test_schema_with_the_smallest_integer_leaves_the_server_alive(
    serve: Serve, model_path: Path
) -> None:
    # The library that checks schemas would end the server's process, and llama.cpp the engine's.
    server = await serve(
        engine="llamacpp", engine_isolation="process", model_path=model_path, context_length=1024
    )
    post = partial(exchange, server.port, "POST", deadline_s=60)
    assert (await post(CHAT, body=chat())).status == 200
    process = server.engine._host._supervisor._process  # type: ignore[attr-defined]
    smallest = -(2**63)
    for schema in (
        {"const": smallest},
        {"enum": [smallest + 1, 1]},
        {"type": "integer", "minimum": -1e300, "maximum": smallest},
    ):
        response = await post(CHAT, body=with_schema(schema))
        assert response.status == 200, response.body
        [warning] = json.loads(response.body)["warnings"]
        assert "numbers must be at least" in warning
    assert server.engine._host._supervisor._process is process  # type: ignore[attr-defined]


async def test_hostile_grammar_is_refused_by_every_name_and_the_engine_lives_on(
    serve: Serve, model_path: Path, subtests: pytest.Subtests
) -> None:
    server = await serve(
        engine="llamacpp", engine_isolation="process", model_path=model_path, context_length=1024
    )
    post = partial(exchange, server.port, "POST", deadline_s=60)
    assert (await post(CHAT, body=chat())).status == 200
    process = server.engine._host._supervisor._process  # type: ignore[attr-defined]
    _, smallest = HOSTILE_GRAMMARS["smallest integer"]
    names = ("grammar", "guided_grammar", "ebnf", "structured_outputs")
    calls = {name: (name, smallest) for name in names}
    calls |= {name: ("grammar", text) for name, text in COSTLY_GRAMMARS.items()}
    calls |= {"chain of rules": ("grammar", HOSTILE_GRAMMARS["chain of rules"][1])}
    for name, (param, grammar) in calls.items():
        value = {"grammar": grammar} if param == "structured_outputs" else grammar
        completion = {"prompt": "hi", param: value}
        job = {"input": {"openai_route": CHAT, "openai_input": json.loads(chat(**{param: value}))}}
        plain = {"input": {"prompt": "hi", "sampling_params": {"max_tokens": 4, param: value}}}
        with subtests.test(name):
            message = message_of(await post(CHAT, body=chat(**{param: value})))
            assert message.startswith(param)
            streamed = chat(stream=True, **{param: value})
            assert message_of(await post(CHAT, body=streamed)) == message
            message_of(await post(COMPLETIONS, body=json.dumps(completion).encode()))
            for body in (job, plain):
                response = await post("/runsync", body=json.dumps(body).encode())
                if response.status == 200:
                    assert json.loads(response.body)["status"] == "FAILED"
                    error = json.loads(response.body)["error"]
                    # A plain job's error has the name of the engine's parameter.
                    assert f"{param}: it" in error or "grammar: it" in error
                else:
                    message_of(response)
    assert (await post(CHAT, body=chat(grammar="start: /[0-9]/"))).status == 200
    assert server.engine._host._supervisor._process is process  # type: ignore[attr-defined]


@pytest.mark.long
async def test_engine_that_reaches_its_memory_limit_names_the_setting_and_restarts(
    engine_factory: EngineFactory, model_path: Path, hosts_of: Callable[[int], list[int]]
) -> None:
    options = {"model_path": str(model_path), "model_name": "tiny", "context_length": 512}
    hungry = [
        GenerationRequest(prompt="hi", sampling=SamplingParams(max_tokens=2, json_schema=schema))
        for schema in LARGEST_SCHEMAS.values()
    ]
    modest = GenerationRequest(prompt="hi", sampling=SamplingParams(max_tokens=2))
    others = set(hosts_of(os.getpid()))
    engine = engine_factory(BackendConfig.from_wire("llamacpp", options))
    await generated(engine, modest)
    [host] = set(hosts_of(os.getpid())) - others
    # Enough for the model, and not for the grammars of all schemas.
    limit_mb = data_mb(host) + 8
    engine = engine_factory(BackendConfig.from_wire("llamacpp", options, memory_mb=limit_mb))
    await generated(engine, modest)
    answers = [generated(engine, request) for request in hungry]
    errors = await asyncio.gather(*answers, return_exceptions=True)
    reason = f"ran out of the {limit_mb} MB that ENGINE_MEMORY_MB"
    assert any(isinstance(each, EngineCrashed) and reason in str(each) for each in errors), errors
    await generated(engine, modest)


def data_mb(process: int) -> int:
    """Return the memory of a process that its limit counts, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    data = re.search(r"VmData:\s+(\d+) kB", status)
    assert data is not None
    return int(data[1]) // 1024


async def generated(engine: Engine, request: GenerationRequest) -> None:
    """Wait for an answer. Raises EngineError."""
    async with asyncio.timeout(60), await engine.generate(request) as stream:
        async for _ in stream:
            pass


HELD: dict[str, tuple[dict[str, Any], Any, list[Any]]] = {
    "maxItems": (
        {"type": "array", "items": {"const": 1}, "maxItems": MAX_OPTIONAL_PARTS},
        [1] * MAX_OPTIONAL_PARTS,
        [[1] * (MAX_OPTIONAL_PARTS + 1)],
    ),
    "minItems": (
        {"type": "array", "items": {"const": 1}, "minItems": MAX_ITEMS, "maxItems": MAX_ITEMS},
        [1] * MAX_ITEMS,
        [[1] * (MAX_ITEMS - 1), [1] * (MAX_ITEMS + 1)],
    ),
    "length": (
        {"type": "string", "minLength": MAX_LENGTH - 1, "maxLength": MAX_LENGTH},
        "a" * MAX_LENGTH,
        ["a" * (MAX_LENGTH - 2), "a" * (MAX_LENGTH + 1)],
    ),
    "pattern": (
        {"type": "string", "pattern": "^(a{1,20}b){1,20}$"},
        "aab" * 20,
        ["aab" * 21, "a" * 21 + "b"],
    ),
    "nested": (
        {
            "type": "array",
            "maxItems": 30,
            "items": {"type": "array", "items": {"const": 1}, "maxItems": 30},
        },
        [[1] * 30] * 30,
        [[[1] * 31], [[1]] * 31],
    ),
    "properties": (
        {"type": "object", "properties": {f"k{number}": {"const": 1} for number in range(498)}},
        {"k3": 1, "k497": 1},
        [{"k3": 2}],
    ),
    "anyOf arrays": (
        {"anyOf": [{"type": "array", "items": {"const": number}} for number in range(250)]},
        [249, 249],
        [[250], [1, 2]],
    ),
    "anyOf objects": (
        {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {f"k{number}": {"const": number}, "b": {"const": 1}},
                    "additionalProperties": False,
                }
                for number in range(250)
            ]
        },
        {"k7": 7, "b": 1},
        [{"k7": 8}, {"k7": 7, "k8": 8}],
    ),
}


@pytest.mark.long_except("minItems", "pattern", "nested", "properties", "anyOf arrays")
@pytest.mark.parametrize(("schema", "valid", "invalid"), HELD.values(), ids=HELD)
def test_accepted_counts_are_held_by_llama_cpp_and_by_validation(
    schema: dict[str, Any], valid: Any, invalid: list[Any]
) -> None:
    assert find_cost_violation(schema) is None
    issues = SchemaCheck(schema).find_issues
    assert allows(schema, valid)
    assert not issues(json.dumps(valid))
    for value in invalid:
        assert not allows(schema, value)
        assert issues(json.dumps(value))


# -- large bodies ----------------------------------------------------------------------------------

ARRAY = {"type": "array", "items": {"const": 1}, "minItems": 1}
# All but the first are within the limits of a body: bytes and JSON values.
LARGE_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "5,000,000 token ids": (COMPLETIONS, {"prompt": [1] * 5_000_000}),
    "240,000 token ids": (COMPLETIONS, {"prompt": [1] * 240_000}),
    "240,000 token ids to embed": ("/v1/embeddings", {"input": [1] * 240_000}),
    "120,000 documents": ("/v1/rerank", {"query": "a", "documents": [{"text": "a"}] * 120_000}),
    "19 MB of one document": ("/v1/rerank", {"query": "a", "documents": ["word " * 3_800_000]}),
    "2,048 pairs of long texts": (
        "/v1/score",
        {"text_1": ["x" * 4_000] * 2_048, "text_2": ["y" * 4_000] * 2_048},
    ),
    "240,000 token ids as text": ("/detokenize", {"tokens": [1] * 240_000}),
    "120,000 prompts": (COMPLETIONS, {"prompt": [[1]] * 120_000}),
    "logit_bias of 120,000": (
        COMPLETIONS,
        {"prompt": "x", "logit_bias": {str(token): 1.5 for token in range(120_000)}},
    ),
    "300,000 messages": (CHAT, {"messages": [{"role": "user", "content": ""}] * 300_000}),
    "80,000 messages": (CHAT, {"messages": [{"role": "user", "content": ""}] * 80_000}),
    "10,000 messages": (CHAT, {"messages": [{"role": "user", "content": "x" * 900}] * 10_000}),
    "100,000 parts": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]},
    ),
    "240,000 stops": (COMPLETIONS, {"prompt": "x", "stop": ["a"] * 240_000}),
    "120,000 unknown keys": (
        COMPLETIONS,
        {"prompt": "x", **{f"key{number}": 1 for number in range(120_000)}},
    ),
    "19 MB of one word": (COMPLETIONS, {"prompt": "word " * 3_800_000}),
    "19 MB of escapes": (COMPLETIONS, {"prompt": "\n" * 9_000_000}),
    "19 MB of messages": (CHAT, {"messages": [{"role": "user", "content": "x" * 19_000_000}]}),
    "240,000 values of a schema": (
        CHAT,
        json.loads(with_schema({"enum": list(range(240_000))})),
    ),
    "240,000 values of a tool": (CHAT, json.loads(with_tool({"enum": list(range(240_000))}))),
    "240,000 values of a template": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "x"}],
            "chat_template_kwargs": {"a": [1] * 240_000},
        },
    ),
    "schema of 14,000 values": (CHAT, json.loads(with_schema({"enum": list(range(14_000))}))),
    "schema of many merges": (CHAT, json.loads(with_schema(COSTLY_SCHEMAS["many merges"]))),
    "job of 240,000 values": ("/runsync", {"input": {"prompt": "x", "a": [1] * 240_000}}),
    "job of 240,000 token ids": ("/runsync", {"input": {"prompt": [1] * 240_000}}),
    "job of 9 MB": ("/runsync", {"input": {"prompt": "word " * 1_800_000}}),
    "job with a schema": (
        "/runsync",
        {"input": {"prompt": "x", "validation": {"json_schema": {"enum": [1] * 240_000}}}},
    ),
    "job of OpenAI's form": (
        "/runsync",
        {
            "input": {
                "openai_route": CHAT,
                "openai_input": {"messages": [{"role": "user", "content": ""}] * 80_000},
            }
        },
    ),
}


@pytest.mark.long_except(
    "19 MB of one word",
    "240,000 values of a schema",
    "120,000 prompts",
    "job of 9 MB",
)
@pytest.mark.parametrize("name", LARGE_BODIES)
async def test_large_body_does_not_stall_the_event_loop(serve: Serve, name: str) -> None:
    path, fields = LARGE_BODIES[name]
    body = json.dumps(fields).encode()
    server = await serve(rate_limit_chat="off")
    # Small requests first, so that imports and compilations are not part of the measured time.
    for small_path, small in (
        (CHAT, chat()),
        (CHAT, with_schema(ARRAY)),
        (COMPLETIONS, b'{"prompt": "x", "max_tokens": 1}'),
        ("/runsync", b'{"input": {"prompt": "x"}}'),
    ):
        await exchange(server.port, "POST", small_path, body=small)
    async with watched_loop() as stalls:
        response = await exchange(server.port, "POST", path, body=body, deadline_s=60)
        longest_s = stalls.reset()
    assert response.status < 500, response.body[:300]
    assert longest_s < STALL_LIMIT_S
    if path != "/runsync" and response.status != 200:
        message_of(response, response.status)


# -- hostile JSON ----------------------------------------------------------------------------------


async def test_hostile_json_causes_no_server_error_and_no_stall(
    serve: Serve, caplog: pytest.LogCaptureFixture, scale: int
) -> None:
    server = await serve(rate_limit_chat="off", max_queue=10_000, max_jobs=1_000_000)
    for path, body in VALID_BODIES:
        await exchange(server.port, "POST", path, body=json.dumps(body).encode())
    caplog.clear()
    # Made before: making them would hold up the loop of the test, which is the server's.
    cases = list(json_cases(11, 350 * scale))
    async with watched_loop() as stalls:
        statuses = await send_cases(server.port, cases)
        assert stalls.longest_s < STALL_LIMIT_S
    assert statuses[200] > 25
    assert statuses[400] > 120
    assert "Traceback" not in caplog.text
    assert (await exchange(server.port, "GET", "/health")).status == 200
