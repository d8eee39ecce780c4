"""The clients that agents are built with, unmodified, for Node.js; and what agents themselves send.

The programs of Codex and of Claude Code are run by tests/long/test_agents.py; they are too large to
be installed for each test run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.acceptance.client_program import run_program
from tests.acceptance.page_checks import ALL
from tests.acceptance.pages import RUN
from tests.integration.emulator.processes import ROOT, EmulatorProcess, run_emulator

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

KEY, MODEL = "open-sesame", "little"
API_KEY_HEADER = {"x-api-key": KEY}
DEADLINE_S = 120
ENVIRONMENT = {"AI_SDK_LOG_WARNINGS": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
CLIENTS_FOLDER = ROOT / "tests" / "clients"
# The programs of docs/agents.md.
EXAMPLES = [block for block in ALL if block.page == "docs/agents.md" and block.language in RUN]
CLIENTS = ("openai", "ai-sdk-openai", "ai-sdk-anthropic", "openai-agents")
WEATHER_CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
PATCH_CALL = '<tool_call>{"name": "apply_patch", "arguments": {"input": "*** a\\nb"}}</tool_call>'


def pieces_of(text: str) -> list[str]:
    return [text[start : start + 9] for start in range(0, len(text), 9)]


SCRIPT: dict[str, Any] = {
    "answers": [
        {"when": "(tool: |<tool_response>\n).?sunny", "pieces": ["It", " is", " sunny."]},
        {"when": "the weather in", "pieces": pieces_of(WEATHER_CALL)},
        # Only a model that sees its own turn can answer.
        {"when": "(?s)Good day.*what did you say", "pieces": ["I said", " hello."]},
        {"when": "a city as JSON", "pieces": ['{"name": "Oslo", ', '"site": "https://o.no/a"}']},
        {"when": "patch it", "pieces": pieces_of(PATCH_CALL)},
        {"when": "think", "pieces": ["<think>", "hm", "</think>", "42"]},
        {"pieces": ["Good", " day"], "delay_ms": 2},
    ],
    "slots": 4,
    # Less than the `max_tokens` that Claude Code sends.
    "context_length": 32_768,
}
# More tokens than the context has.
LONG_PROMPT = "word " * 40_000

Observations = dict[tuple[str, str], dict[str, Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    path = tmp_path_factory.mktemp("agents") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    settings = {"MODEL_PATH": str(path), "MODEL_NAME": MODEL, "API_KEYS": KEY}
    async with run_emulator(settings, "--port", "0") as running:
        await running.wait_until_listening()
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def observations(server: EmulatorProcess) -> Observations:
    arguments = {"url": f"http://127.0.0.1:{server.port}", "key": KEY, "model": MODEL}
    command = ["node", "agents.mjs", json.dumps(arguments)]
    output = await run_program(command, CLIENTS_FOLDER, ENVIRONMENT, DEADLINE_S)
    seen: Observations = {}
    for line in output.splitlines():
        if line.startswith("{"):
            observation = json.loads(line)
            seen[observation.pop("client"), observation.pop("scenario")] = observation
    return seen


@pytest.mark.parametrize("client", CLIENTS)
async def test_client_reads_a_whole_answer(observations: Observations, client: str) -> None:
    answer = observations[client, "whole"]
    assert answer["text"] == "Good day"
    assert answer.get("output", 2) == 2


@pytest.mark.parametrize("client", CLIENTS[:3])
async def test_client_reads_a_stream_to_its_end(observations: Observations, client: str) -> None:
    answer = observations[client, "stream"]
    assert answer["text"] == "Good day"
    assert answer["last"] in ("response.completed", "stop")


@pytest.mark.parametrize("client", CLIENTS)
async def test_client_calls_a_function_and_gets_the_answer(
    observations: Observations, client: str
) -> None:
    assert observations[client, "tool"] == {"text": "It is sunny.", "called": {"city": "Oslo"}}


@pytest.mark.parametrize("client", CLIENTS[1:3])
async def test_client_sends_the_turns_of_the_assistant(
    observations: Observations, client: str
) -> None:
    # With stored responses, the AI SDK refers to them by their ids.
    assert observations[client, "turns"] == {"text": "I said hello."}


@pytest.mark.parametrize("client", CLIENTS[1:3])
async def test_client_gets_an_object_of_its_schema(observations: Observations, client: str) -> None:
    # zod writes an address as `format: uri`, which no grammar holds.
    expected = {"name": "Oslo", "site": "https://o.no/a"}
    assert observations[client, "object"] == {"object": expected}


async def test_client_resumes_a_background_response(observations: Observations) -> None:
    assert observations["openai", "background"] == {
        "status": "queued",
        "text": "Good day",
        "first": 2,
    }


@pytest.mark.long_except('import { createOpenAI } from "@ai-sdk/openai";')
@pytest.mark.parametrize("first_line", [block.first_line for block in EXAMPLES])
async def test_example_of_the_page_prints_the_answer(
    server: EmulatorProcess, first_line: str
) -> None:
    (block,) = [each for each in EXAMPLES if each.first_line == first_line]
    text = block.text.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{server.port}")
    text = text.replace("SmolLM2-135M-Instruct", MODEL).replace('"any"', f'"{KEY}"')
    command = ["node", "--input-type=module", "--eval", text]
    if block.language == "python":
        # openai-agents needs other versions of packages than the tests.
        has_own = "from agents" in first_line
        python = str(CLIENTS_FOLDER / ".venv" / "bin" / "python") if has_own else sys.executable
        command = [python, "-c", text]
    assert await run_program(command, CLIENTS_FOLDER, ENVIRONMENT, DEADLINE_S) == "Good day\n"


# -- what agents themselves send ------------------------------------------------------------------

# The members of a request of Codex 0.171; its texts are shortened.
CODEX = {
    "model": MODEL,
    "stream": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2207b-78ed-7962-aad1-17e62c17c3e2",
    "client_metadata": {"x-codex-turn-metadata": "{}"},
    "reasoning": {"summary": "auto"},
    "text": {"verbosity": "low"},
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [
        {
            "type": "function",
            "name": "exec_command",
            "description": "Runs a command.",
            "strict": False,
            "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
        },
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "namespace", "name": "multi_agent_v1", "tools": []},
        {"type": "tool_search", "execution": "client", "description": "Finds tools."},
        {"type": "web_search"},
    ],
}
# The members of a request of Claude Code 2.1; its texts are shortened.
CLAUDE_CODE = {
    "model": "claude-opus-4-8",
    "max_tokens": 64_000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-billing: 1"},
        {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}},
    ],
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": '{"session_id": "a"}'},
    "tools": [
        {
            "name": "Bash",
            "description": "Runs a command.",
            "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
        }
    ],
}


async def post(
    server: EmulatorProcess, path: str, body: Any, headers: Mapping[str, str] = API_KEY_HEADER
) -> httpx2.Response:
    async with server.client() as client:
        headers = {**headers, "anthropic-version": "2023-06-01"}
        return await client.post(path, json=body, headers=headers)


async def stream_events(server: EmulatorProcess, path: str, body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream."""
    answer = await post(server, path, body)
    assert answer.status_code == 200, answer.text
    return [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: {")
    ]


def message(role: str, *texts: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "role": role, "content": content}


async def test_turn_of_codex_ends_with_completed_and_its_usage(server: EmulatorProcess) -> None:
    # Items without ids, instructions after the user, and reasoning without a summary.
    items = [
        message("developer", "You are an agent."),
        message("user", "one", "two"),
        message("developer", "Be careful."),
        {"type": "reasoning", "content": None, "encrypted_content": None},
        {"type": "function_call", "call_id": "c", "name": "exec_command", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "exit 0"},
        message("user", "hello"),
    ]
    events = await stream_events(server, "/v1/responses", CODEX | {"input": items})
    kinds = [event["type"] for event in events]
    assert kinds.index("response.output_item.added") < kinds.index("response.output_text.delta")
    assert kinds[-1] == "response.completed"
    response = events[-1]["response"]
    assert response["usage"]["output_tokens"] == 2
    assert sorted(response["warnings"]) == [
        "tools of type namespace are not supported and were skipped",
        "tools of type tool_search are not supported and were skipped",
        "tools of type web_search are not supported and were skipped",
    ]


async def test_patch_of_codex_is_a_custom_call_with_raw_input(server: EmulatorProcess) -> None:
    items: list[dict[str, Any]] = [message("user", "patch it")]
    events = await stream_events(server, "/v1/responses", CODEX | {"input": items})
    kinds = [event["type"] for event in events]
    added = kinds.index("response.output_item.added")
    assert added < kinds.index("response.custom_tool_call_input.delta")
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** a\nb",
    )
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    rest = [message("user", "patch it"), call, output, message("user", "hello")]
    again = await stream_events(server, "/v1/responses", CODEX | {"input": rest})
    assert again[-1]["type"] == "response.completed"


async def test_codex_with_empty_tools_is_answered(server: EmulatorProcess) -> None:
    body = CODEX | {"input": [message("user", "hello")], "tools": []}
    assert (await stream_events(server, "/v1/responses", body))[-1]["type"] == "response.completed"


async def test_codex_reads_the_code_of_a_prompt_that_is_too_long(server: EmulatorProcess) -> None:
    answer = await post(server, "/v1/responses", CODEX | {"input": [message("user", LONG_PROMPT)]})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_turn_of_claude_code_has_usage_signature_and_one_end(server: EmulatorProcess) -> None:
    content = [{"type": "text", "text": "think", "cache_control": {"type": "ephemeral"}}]
    # Instructions may stand between the messages.
    messages = [{"role": "user", "content": content}, {"role": "system", "content": "Agents: none"}]
    body = CLAUDE_CODE | {"messages": messages}
    events = await stream_events(server, "/v1/messages?beta=true", body)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas.index("signature_delta") < deltas.index("text_delta")
    assert kinds.count("message_delta") == 1
    assert kinds[-2:] == ["message_delta", "message_stop"]


async def test_results_of_claude_codes_tools_are_read(server: EmulatorProcess) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "weather"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    messages = [
        {"role": "user", "content": "the weather in Oslo"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{**result, "is_error": False}]},
    ]
    events = await stream_events(
        server, "/v1/messages?beta=true", CLAUDE_CODE | {"messages": messages}
    )
    texts = [e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta"]
    assert "".join(texts) == "It is sunny."


async def test_claude_code_reads_the_length_of_a_prompt_that_is_too_long(
    server: EmulatorProcess,
) -> None:
    # Claude Code shortens the conversation to this limit, and sends it again.
    body = CLAUDE_CODE | {"messages": [{"role": "user", "content": LONG_PROMPT}]}
    answer = await post(server, "/v1/messages?beta=true", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert re.match(r"prompt is too long: \d+ tokens > 32768 maximum", error["message"])


@pytest.mark.parametrize("headers", [API_KEY_HEADER, {"Authorization": f"Bearer {KEY}"}])
@pytest.mark.parametrize("model", ["claude-haiku-4-5-20251001", "claude-opus-4-8[1m]"])
async def test_names_and_keys_of_claude_code_are_accepted(
    server: EmulatorProcess, headers: dict[str, str], model: str
) -> None:
    messages = [{"role": "user", "content": "hello"}]
    body = CLAUDE_CODE | {"model": model, "messages": messages, "stream": False}
    answer = await post(server, "/v1/messages?beta=true", body, headers)
    assert (answer.status_code, answer.json()["model"]) == (200, model)


async def test_claude_code_finds_the_server_before_it_sends_a_message(
    server: EmulatorProcess,
) -> None:
    async with server.client() as client:
        assert (await client.head("/")).status_code == 200


async def test_refused_key_of_claude_code_is_named(server: EmulatorProcess) -> None:
    # Claude Code tells the user of an invalid key if the message has the name of the header.
    answer = await post(server, "/v1/messages?beta=true", CLAUDE_CODE, {"x-api-key": "wrong"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (401, "authentication_error")
    assert "x-api-key" in error["message"]
