"""Anthropic's client for Python, unmodified, against `python -m emulator`.

The program in tests/clients prints what it observes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.acceptance.client_program import run_program
from tests.integration.emulator.processes import ROOT, run_emulator

# Importing the client takes seconds, and more on a busy machine.
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
    # tests/integration/emulator/test_messages.py has the same calls without the client.
    pytest.mark.long,
]

# No model has this name: the default model answers.
MODEL = "claude-of-the-future"
KEY = "open-sesame"
DEADLINE_S = 120
# The client needs other package versions than the tests have (requirements/clients.in).
PYTHON = ROOT / "tests" / "clients" / ".venv" / "bin" / "python"

PIECES = ["Good", " day,", " Z", {"hex": "c3"}, {"hex": "bc"}, "rich\n\n", "\u2028data: [DONE]"]
TEXT = "Good day, Zürich\n\n\u2028data: [DONE]"
CALL = [
    "Let me see. <tool",
    '_call>{"name": "get_',
    'weather", "arguments": {"city": "Zü',
    'rich"}}</tool_call>',
]
SCRIPT: dict[str, Any] = {
    "answers": [
        # The engine's process dies during this answer.
        {"when": "user: die", "pieces": ["so", " far", {"signal": "SIGKILL", "delay_ms": 300}]},
        {"when": "(tool: |<tool_response>\n)sunny", "pieces": ["It", " is", " sunny."]},
        {"when": "the weather in", "pieces": CALL},
        {"when": "user: think", "pieces": ["<think>", "one", " two", "</think>", "three"]},
        {"pieces": PIECES, "delay_ms": 2},
    ],
    "slots": 4,
}
REFUSED: dict[str, dict[str, Any]] = {
    "400": {"extra_body": {"temperature": 3}},
    "401": {"key": "wrong"},
    "404": {"model": "gpt-4"},
    "too long": {"is_long": True},
}

Observations = dict[str, list[dict[str, Any]]]


async def observe(base_url: str) -> Observations:
    """Run the program and return its observations by scenario."""
    assert PYTHON.exists(), "`make test` installs requirements/clients.txt"
    arguments = {"base_url": base_url, "key": KEY, "model": MODEL, "refused": REFUSED}
    command = [str(PYTHON), "-m", "tests.clients.anthropic_messages", json.dumps(arguments)]
    output = await run_program(command, ROOT, {"PYTHONUTF8": "1"}, DEADLINE_S)
    observations: Observations = {}
    for line in output.split("\n"):
        if line:
            observation = json.loads(line)
            observations.setdefault(observation.pop("scenario"), []).append(observation)
    return observations


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["", "/v2/default/openai"])
async def observations(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Observations]:
    path = tmp_path_factory.mktemp("anthropic") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    settings = {
        "ENGINE": "scripted",
        "MODEL_PATH": str(path),
        "MODEL_NAME": "little",
        "API_KEYS": KEY,
    }
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        yield await observe(f"http://127.0.0.1:{server.port}{request.param}")


def read_both(observations: Observations, scenario: str) -> dict[str, Any]:
    """Return the message of a scenario, which must be the same whole and streamed."""
    whole, streamed = observations[scenario]
    assert (whole.pop("streamed"), streamed.pop("streamed")) == (False, True)
    kinds = streamed.pop("kinds")
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("message_delta") == 1
    # The client has fields of its own in the blocks of a stream.
    assert [read_block(block) for block in streamed["content"]] == [
        read_block(block) for block in whole["content"]
    ]
    for name in ("model", "stop", "usage"):
        assert streamed[name] == whole[name]
    return {**whole, "content": [read_block(block) for block in whole["content"]]}


def read_block(block: dict[str, Any]) -> dict[str, Any]:
    keys = ("type", "text", "thinking", "name", "input")
    return {key: block[key] for key in keys if key in block}


async def test_text(observations: Observations) -> None:
    assert read_both(observations, "text") == {
        "model": MODEL,
        "content": [{"type": "text", "text": TEXT}],
        "stop": ["end_turn", None],
        "usage": [6, 7],
    }


async def test_call_of_a_tool_and_its_result(observations: Observations) -> None:
    called = read_both(observations, "tools")
    assert called["content"] == [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "name": "get_weather", "input": {"city": "Zürich"}},
    ]
    assert called["stop"] == ["tool_use", None]
    answered = read_both(observations, "result")
    assert answered["content"] == [{"type": "text", "text": "It is sunny."}]


async def test_thinking(observations: Observations) -> None:
    signatures = [each["content"][0]["signature"] for each in observations["thinking"]]
    assert all(signatures)
    assert read_both(observations, "thinking")["content"] == [
        {"type": "thinking", "thinking": "one two"},
        {"type": "text", "text": "three"},
    ]


async def test_stop_sequence(observations: Observations) -> None:
    stopped = read_both(observations, "stop")
    assert stopped["content"] == [{"type": "text", "text": "Good day, Zü"}]
    assert stopped["stop"] == ["stop_sequence", "rich"]


async def test_models_are_listed(observations: Observations) -> None:
    assert observations["models"] == [{"ids": ["little"]}]


async def test_tokens_are_counted(observations: Observations) -> None:
    assert observations["count"] == [{"tokens": 3}]


async def test_beta_methods_work(observations: Observations) -> None:
    (message,) = observations["beta"]
    assert read_block(message["content"][0]) == {"type": "text", "text": TEXT}


@pytest.mark.parametrize(
    ("scenario", "status", "raised", "kind"),
    [
        ("400", 400, "BadRequestError", "invalid_request_error"),
        ("401", 401, "AuthenticationError", "authentication_error"),
        ("404", 404, "NotFoundError", "not_found_error"),
        ("too long", 400, "BadRequestError", "invalid_request_error"),
    ],
)
async def test_errors_have_the_clients_classes(
    scenario: str, status: int, raised: str, kind: str, observations: Observations
) -> None:
    errors = observations[scenario]
    assert [each["stream"] for each in errors] == [False, True]
    for error in errors:
        assert error["status"] == status
        assert error["raised"][0] == raised
        assert error["body"]["type"] == "error"
        assert error["body"]["error"]["type"] == kind
        assert error["body"]["request_id"]
        if scenario == "too long":
            assert error["body"]["error"]["message"].startswith("prompt is too long: ")


async def test_broken_stream_raises(observations: Observations) -> None:
    (error,) = observations["broken"]
    assert error["text"] == "so far"
    assert "APIStatusError" in error["raised"]
    assert error["body"]["error"]["type"] == "api_error"
