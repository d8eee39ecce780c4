"""Four unmodified OpenAI clients, one of them in two forms, against `python -m emulator`.

Each is a program in tests/clients that prints its observations, which have to be the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.emulator.processes import ROOT, run_emulator

# Importing two of the clients takes seconds, and more on a busy machine.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

MODEL = "little"
KEY, LIMITED = "open-sesame", "but-rarely"
DEADLINE_S = 120
CLIENTS = ROOT / "tests" / "clients"
PROGRAMS: dict[str, list[str]] = {
    "openai-python": [sys.executable, "-m", "tests.clients.openai_sync"],
    "openai-python-async": [sys.executable, "-m", "tests.clients.openai_async"],
    "openai-node": ["node", str(CLIENTS / "openai.mjs")],
    "langchain": [sys.executable, "-m", "tests.clients.langchain_chat"],
    "litellm": [sys.executable, "-m", "tests.clients.litellm_chat"],
}

PIECES = ["Good", " day,", " Z", {"hex": "c3"}, {"hex": "bc"}, "rich\n\n", "\u2028data: [DONE]"]
TEXT = "Good day, Zürich\n\n\u2028data: [DONE]"
CALL = [
    "<tool",
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
        {"when": "a city as JSON", "pieces": ['{"name": "Zürich",', ' "people"', ": 443000}"]},
        {"pieces": PIECES, "delay_ms": 2},
    ],
    "slots": 4,
}

Observations = dict[str, list[dict[str, Any]]]


class Clients:
    """Runs each program once, on the first request for its observations."""

    def __init__(self, base_url: str, down_url: str) -> None:
        refused = {
            "400": {"temperature": 3},
            "401": {"key": "wrong"},
            "404": {"model": "gpt-4"},
            # The bare routes are limited by key.
            "429": {"key": LIMITED, "base_url": base_url},
            "503": {"base_url": f"{down_url}/v1"},
        }
        arguments = {"base_url": f"{base_url}/v1", "key": KEY, "model": MODEL, "refused": refused}
        self._arguments = json.dumps(arguments)
        self._observations: dict[str, Observations] = {}

    async def observations_of(self, client: str) -> Observations:
        """Return the observations of a client's program, by scenario."""
        if client not in self._observations:
            self._observations[client] = await self._run(client)
        return self._observations[client]

    async def _run(self, client: str) -> Observations:
        assert (CLIENTS / "node_modules").is_dir(), "`make test` installs what tests/clients needs"
        process = await asyncio.create_subprocess_exec(
            *PROGRAMS[client],
            self._arguments,
            cwd=ROOT,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONUTF8": "1",
                # Without it, LiteLLM would fetch the prices of models.
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LANGSMITH_TRACING": "false",
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, out.decode() + err.decode()
        observations: Observations = {}
        for line in out.decode().split("\n"):
            if line.startswith("{"):
                observation = json.loads(line)
                observations.setdefault(observation.pop("scenario"), []).append(observation)
        return observations


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clients]:
    folder = tmp_path_factory.mktemp("clients")
    scripts = {"up": SCRIPT, "down": {"load_error": "there is no memory left for the model"}}
    async with AsyncExitStack() as stack:
        servers = []
        for name, script in scripts.items():
            path = folder / f"{name}.json"
            path.write_text(json.dumps(script))
            settings = {
                "ENGINE": "scripted",
                "MODEL_PATH": str(path),
                "MODEL_NAME": MODEL,
                "API_KEYS": f"{KEY},{LIMITED}",
                "RATE_LIMIT_CHAT": "1/hour",
            }
            if name == "down":
                # A server without any model exits; one that has another model stays.
                models = [
                    {"path": str(path), "name": MODEL},
                    {"path": str(folder / "up.json"), "name": "other"},
                ]
                settings = {"ENGINE": "scripted", "MODELS": json.dumps(models), "API_KEYS": KEY}
            servers.append(await stack.enter_async_context(run_emulator(settings, "--port", "0")))
        for server in servers:
            await server.wait_until_listening()
        up, down = (f"http://127.0.0.1:{server.port}" for server in servers)
        async with servers[0].client() as http:
            taken = await http.post(
                "/chat/completions",
                json={"messages": [{"role": "user", "content": "hello"}]},
                headers={"authorization": f"Bearer {LIMITED}"},
            )
            assert taken.status_code == 200
        yield Clients(up, down)


@pytest.fixture(params=PROGRAMS)
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_answer_that_is_not_streamed(client: str, clients: Clients) -> None:  # R32, R35
    (observation,) = (await clients.observations_of(client))["whole"]
    assert observation == {"text": TEXT, "finish": "stop", "usage": [3, len(PIECES)]}


async def test_streamed_answer_with_its_usage(client: str, clients: Clients) -> None:  # R22, R36
    (observation,) = (await clients.observations_of(client))["stream"]
    assert observation.pop("parts") > 3
    assert observation == {"text": TEXT, "finish": "stop", "usage": [3, len(PIECES)]}


async def test_streamed_text_completion(client: str, clients: Clients) -> None:  # R20, R32
    assert (await clients.observations_of(client))["completion"] == [{"text": TEXT}]


async def test_tools_are_called_in_both_forms(client: str, clients: Clients) -> None:  # R39
    (observation,) = (await clients.observations_of(client))["tools"]
    assert observation["called"] == [["get_weather", {"city": "Zürich"}]] * 2
    assert observation["text"] == "It is sunny."


@pytest.mark.long_except("openai-python", "openai-node")
async def test_structured_answer(client: str, clients: Clients) -> None:  # R39
    (observation,) = (await clients.observations_of(client))["structured"]
    assert observation["value"] == {"name": "Zürich", "people": 443_000}


# The exception class and message for each status (R53); LiteLLM has its own class for 503.
CLASSES = {
    "400": ("BadRequestError", "temperature must be"),
    "401": ("AuthenticationError", "an API key is needed"),
    "404": ("NotFoundError", MODEL),
    "429": ("RateLimitError", "Rate limit exceeded. Try again in"),
    "503": ("InternalServerError", "Completion service temporarily unavailable"),
}


@pytest.mark.long_except(
    "openai-python-400",
    "openai-python-async-401",
    "openai-node-429",
    "langchain-503",
    "openai-python-404",
)
@pytest.mark.parametrize("status", CLASSES)
async def test_refusal_raises_the_clients_own_class(
    status: str, client: str, clients: Clients
) -> None:  # R7, R9, R40, R41, R54
    expected, message = CLASSES[status]
    if (client, status) == ("litellm", "503"):
        expected = "ServiceUnavailableError"
    attempts = (await clients.observations_of(client))[status]
    # R30: before the first text a stream is refused as anything else is.
    assert [attempt["stream"] for attempt in attempts] == [False, True]
    for attempt in attempts:
        assert expected in attempt["raised"]
        assert attempt["status"] == int(status)
        assert message in attempt["said"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("langchain", "ContextOverflowError"),
        pytest.param("litellm", "ContextWindowExceededError", marks=pytest.mark.long),
    ],
)
async def test_prompt_that_is_too_long_raises_the_clients_own_class(
    program: str, expected: str, clients: Clients
) -> None:  # R64: agents shorten the conversation or go to another model then.
    (observation,) = (await clients.observations_of(program))["overflow"]
    assert expected in observation["raised"], observation["said"]
    assert "This model's maximum context length is 4096 tokens" in observation["said"]


@pytest.mark.long
async def test_fault_during_a_stream_is_raised(client: str, clients: Clients) -> None:  # R30
    observations = await clients.observations_of(client)
    (observation,) = observations["cut"]
    assert observation["text"] == "so far"
    assert "APIError" in observation["raised"]
    assert "the engine process was killed by SIGKILL" in observation["said"]
    # The server still gives the full answer to the next request.
    assert observations["after"] == [{"text": TEXT}]
