"""Ollama's clients for Python and Node.js, LangChain's and LlamaIndex's classes, unmodified.

Home Assistant and Open WebUI are services; what they send is sent as it stands.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.acceptance.client_program import run_program
from tests.clients.telling import WEATHER
from tests.integration.emulator.processes import ROOT, EmulatorProcess, run_emulator

# Importing the clients takes seconds, and more on a busy machine.
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    # tests/integration/emulator/test_ollama.py has the same calls without the clients.
    pytest.mark.long,
]

KEY, MODEL = "open-sesame", "little"
HEADERS = {"Authorization": f"Bearer {KEY}"}
DEADLINE_S = 180
CLIENTS_FOLDER = ROOT / "tests" / "clients"
# The clients need other package versions than the tests have (requirements/clients.in).
PYTHON = CLIENTS_FOLDER / ".venv" / "bin" / "python"
WEATHER_CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
TEXT = "Good day, Zürich\n\n\u2028"
SCRIPT: dict[str, Any] = {
    "answers": [
        {"when": "(tool: |<tool_response>\n).?sunny", "pieces": ["It", " is", " sunny."]},
        {
            "when": "the weather in",
            "pieces": [WEATHER_CALL[at : at + 9] for at in range(0, len(WEATHER_CALL), 9)],
        },
        {"when": "a city as JSON", "pieces": ['{"name": ', '"Oslo", "people": 7}']},
        {"when": "user: die", "pieces": ["so", {"error": "out of memory", "delay_ms": 30}]},
        {"when": "user: think", "pieces": ["<think>", "one", " two", "</think>", "three"]},
        {"pieces": ["Good", " day,", " Z", {"hex": "c3"}, {"hex": "bc"}, "rich\n\n", "\u2028"]},
    ],
    "slots": 4,
}
CLIENTS = ("ollama", "langchain", "llama-index", "node")
CALL = {"name": "get_weather", "arguments": {"city": "Oslo"}}

Observations = dict[tuple[str, str], dict[str, Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    path = tmp_path_factory.mktemp("ollama") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    settings = {"MODEL_PATH": str(path), "MODEL_NAME": MODEL, "API_KEYS": KEY}
    async with run_emulator(settings, "--port", "0") as running:
        await running.wait_until_listening()
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def observations(server: EmulatorProcess) -> Observations:
    """Run both programs and return their observations by client and step."""
    assert PYTHON.exists(), "`make test` installs requirements/clients.txt"
    given: dict[str, Any] = {"base_url": f"http://127.0.0.1:{server.port}", "key": KEY}
    given |= {"model": MODEL}
    python = [
        str(PYTHON),
        "-m",
        "tests.clients.ollama_clients",
        json.dumps(given | {"refused": {}}),
    ]
    node = ["node", "ollama.mjs", json.dumps(given | {"weather": WEATHER})]
    output = await run_program(python, ROOT, {"PYTHONUTF8": "1"}, DEADLINE_S)
    output += await run_program(node, CLIENTS_FOLDER, {}, DEADLINE_S)
    seen: Observations = {}
    # Not `splitlines`: the answers have U+2028.
    for line in output.split("\n"):
        if line:
            observation = json.loads(line)
            seen[observation.pop("scenario"), observation.pop("step")] = observation
    return seen


@pytest.mark.parametrize("client", CLIENTS)
async def test_client_gets_the_whole_text(observations: Observations, client: str) -> None:
    assert observations[client, "chat"]["text"] == TEXT


@pytest.mark.parametrize("client", CLIENTS)
async def test_client_gets_the_streamed_text(observations: Observations, client: str) -> None:
    seen = observations[client, "stream"]
    assert seen["text"] == TEXT
    assert seen.get("done", 1) == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_client_gets_a_call(observations: Observations, client: str) -> None:
    assert observations[client, "call"] == CALL


@pytest.mark.parametrize("client", ["ollama", "langchain", "node"])
async def test_model_gets_the_result_of_the_call(observations: Observations, client: str) -> None:
    assert observations[client, "result"]["text"] == "It is sunny."


@pytest.mark.parametrize("client", ["ollama", "llama-index", "node"])
async def test_client_gets_a_generated_text(observations: Observations, client: str) -> None:
    seen = observations[client, "generate"]
    assert seen["text"] == TEXT
    assert seen.get("tokens", 7) == 7


@pytest.mark.parametrize("client", ["ollama", "node"])
async def test_client_gets_the_reasoning(observations: Observations, client: str) -> None:
    assert observations[client, "think"] == {"text": "three", "thinking": "one two"}


async def test_client_gets_an_object(observations: Observations) -> None:
    assert json.loads(observations["ollama", "format"]["text"]) == {"name": "Oslo", "people": 7}
    assert observations["langchain", "format"]["text"] == "Oslo"


@pytest.mark.parametrize("client", CLIENTS)
async def test_client_gets_vectors(observations: Observations, client: str) -> None:
    seen = observations[client, "embed"]
    assert seen["count"] == 2
    assert seen["size"] > 1


@pytest.mark.parametrize("client", ["ollama", "node"])
async def test_client_lists_the_models(observations: Observations, client: str) -> None:
    seen = observations[client, "models"]
    assert seen["names"] == seen["running"] == [f"{MODEL}:latest"]
    assert {"completion", "tools"} <= set(seen["can"])


@pytest.mark.parametrize("client", ["ollama", "node"])
@pytest.mark.parametrize(("status", "said"), [("404", "does not exist"), ("400", "temperature")])
async def test_client_gets_an_error(
    observations: Observations, client: str, status: str, said: str
) -> None:
    seen = observations[client, status]
    assert seen["status"] == int(status)
    assert said in seen["text"]


# As the integration `ollama` of Home Assistant 2026.10 sends it.
HOME_ASSISTANT: dict[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": "You are a voice assistant."},
        {"role": "user", "content": "What is the weather in Oslo?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Tells the weather of a city.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    ],
    "stream": True,
    "options": {"num_ctx": 8192},
    "keep_alive": "-1s",
    "think": False,
}
# As Open WebUI's proxy for Ollama sends it.
OPEN_WEBUI: dict[str, Any] = {
    "model": f"{MODEL}:latest",
    "messages": [{"role": "user", "content": "hello", "images": []}],
    "stream": True,
    "options": {"temperature": 0.7, "num_ctx": 4096, "stop": [], "mirostat": 0},
    "keep_alive": "5m",
    "format": "",
}


@pytest.mark.parametrize(
    ("body", "text", "calls"), [(HOME_ASSISTANT, "", [CALL]), (OPEN_WEBUI, TEXT, [])]
)
async def test_request_of_a_service_is_answered(
    server: EmulatorProcess, body: dict[str, Any], text: str, calls: list[dict[str, Any]]
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    async with httpx2.AsyncClient(base_url=url, headers=HEADERS) as client:
        # Both look at these first.
        assert (await client.get("/")).status_code == 200
        listed = (await client.get("/api/tags")).json()["models"]
        response = await client.post("/api/chat", json=body)
    assert [each["model"] for each in listed] == [f"{MODEL}:latest"]
    lines = [json.loads(line) for line in response.text.split("\n") if line]
    messages = [line["message"] for line in lines]
    assert "".join(each["content"] for each in messages) == text
    called = [call["function"] for each in messages for call in each.get("tool_calls", ())]
    assert [{name: each[name] for name in ("name", "arguments")} for each in called] == calls
    assert [line["done"] for line in lines].count(True) == 1


async def test_second_port_has_the_same_routes(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(SCRIPT))
    port = unused_tcp_port_factory()
    settings = {"MODEL_PATH": str(path), "MODEL_NAME": MODEL, "OLLAMA_PORT": str(port)}
    async with run_emulator(settings, "--port", "0") as running:
        await running.wait_until_listening()
        assert running.port != port
        for each in (running.port, port):
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{each}") as client:
                assert (await client.get("/api/version")).status_code == 200
                assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_late_failure_is_raised_by_the_client(
    observations: Observations, is_streamed: bool
) -> None:
    answer = observations["ollama", f"die {is_streamed}"]
    assert "out of memory" in answer["text"]
    assert "whole" not in answer["texts"]
