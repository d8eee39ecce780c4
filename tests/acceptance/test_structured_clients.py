"""Client packages for structured output, unmodified, against `python -m emulator`.

Each client is a program in tests/clients. It requests nested and recursive models, whole and
streamed, and prints the objects that it got.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.acceptance.client_program import run_program
from tests.clients.structured_output import Arguments, Plan
from tests.integration.emulator.processes import ROOT, run_emulator

# Importing a client takes seconds, and more on a busy machine.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

# LlamaIndex accepts only names of OpenAI's models.
MODEL_NAME = "gpt-4o"
API_KEY = "open-sesame"
DEADLINE_S = 120
# Three clients need other package versions than the tests have (requirements/clients.in).
CLIENTS_PYTHON = str(ROOT / "tests" / "clients" / ".venv" / "bin" / "python")
PROGRAMS = {
    "instructor": [CLIENTS_PYTHON, "-m", "tests.clients.instructor_models"],
    "pydantic-ai": [sys.executable, "-m", "tests.clients.pydantic_ai_models"],
    "openai-agents": [CLIENTS_PYTHON, "-m", "tests.clients.openai_agents_models"],
    "pydantic-ai responses": [
        sys.executable,
        "-m",
        "tests.clients.pydantic_ai_models",
        "--responses",
    ],
    "openai-agents responses": [
        CLIENTS_PYTHON,
        "-m",
        "tests.clients.openai_agents_models",
        "--responses",
    ],
    "llama-index": [CLIENTS_PYTHON, "-m", "tests.clients.llama_index_models"],
}
# How each client gets objects from the model.
METHODS = {
    "instructor": ["call"],
    "pydantic-ai": ["call"],
    "openai-agents": ["json", "argument"],
    "pydantic-ai responses": ["call"],
    "openai-agents responses": ["json", "argument"],
    "llama-index": ["json", "call"],
}

VALUES: dict[str, dict[str, Any]] = {
    "Plan": {
        "title": "Move to Zürich",
        "priority": "high",
        "owner": {"name": "Ada"},
        "steps": [{"title": "pack", "minutes": 30}, {"title": 'say "good bye"', "minutes": None}],
        "tags": ["home", "summer"],
    },
    "Tree": {
        "name": "root",
        "children": [
            {"name": "left", "children": [{"name": "leaf", "children": []}]},
            {"name": "right", "children": []},
        ],
    },
    "Forest": {
        "trees": [
            {"name": "oak", "children": [{"name": "acorn", "children": []}]},
            {"name": "fir", "children": []},
        ]
    },
}

Reports = dict[str, dict[str, Any]]


def write_answers(model: str) -> Iterator[dict[str, Any]]:
    """Return the script's answers to the prompts for a model, in pieces of a few characters."""
    value = VALUES[model]
    answers: dict[str, Any] = {
        "json": value,
        "call": {"name": model, "arguments": value},
        "partial call": {"name": f"Partial{model}", "arguments": value},
        "argument": {"name": "save", "arguments": {"value": value}},
    }
    for method, answer in answers.items():
        text = json.dumps(answer, ensure_ascii=False)
        if method != "json":
            text = f"<tool_call>{text}</tool_call>"
        # Pauses after commas and brackets, where an incomplete object is most often valid.
        pieces = re.findall(r"[^,[]+[,[]*", text)
        yield {"when": f"Write a {model} as {method}", "pieces": pieces, "delay_ms": 10}


class ClientRunner:
    """Runs each program once and keeps what it printed."""

    def __init__(self, base_url: str, requested: list[str]) -> None:
        assert Path(CLIENTS_PYTHON).exists(), "`make test` installs requirements/clients.txt"
        arguments = Arguments(f"{base_url}/v1", API_KEY, MODEL_NAME, requested)
        self._argument = json.dumps(asdict(arguments))
        self._tasks: dict[str, asyncio.Task[Reports]] = {}

    async def run(self, client: str) -> Reports:
        """Return the reports of a client's program by case."""
        if client not in self._tasks:
            self._tasks[client] = asyncio.create_task(self._run_program(client))
        return await self._tasks[client]

    async def _run_program(self, client: str) -> Reports:
        command = [*PROGRAMS[client], self._argument]
        environment = {"PYTHONUTF8": "1", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        output = await run_program(command, ROOT, environment, DEADLINE_S)
        reports = map(json.loads, output.splitlines())
        return {report.pop("case"): report for report in reports}


@asynccontextmanager
async def run_server(**settings: str) -> AsyncIterator[str]:
    """Start a server and yield its URL."""
    settings |= {"MODEL_NAME": MODEL_NAME, "API_KEYS": API_KEY}
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        yield f"http://127.0.0.1:{server.port}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClientRunner]:
    """The clients of a server whose answers are exactly `VALUES`."""
    path = tmp_path_factory.mktemp("structured") / "script.json"
    answers = [answer for model in VALUES for answer in write_answers(model)]
    path.write_text(json.dumps({"answers": answers}))
    async with run_server(ENGINE="scripted", MODEL_PATH=str(path)) as url:
        yield ClientRunner(url, list(VALUES))


CASES = [
    (client, method, model)
    for client, methods in METHODS.items()
    for method in methods
    for model in VALUES
    # LlamaIndex fails: it drops the `$ref` that is the schema of a recursive model.
    if (client, method, model) != ("llama-index", "call", "Tree")
]


# The others of the first client are in one program with it; each client imports for seconds.
@pytest.mark.long
@pytest.mark.parametrize(("client", "method", "model"), CASES)
async def test_client_returns_object(
    client: str, method: str, model: str, clients: ClientRunner
) -> None:
    reports = await clients.run(client)
    assert reports[f"{model} {method} whole"]["value"] == VALUES[model]


@pytest.mark.long
@pytest.mark.parametrize(("client", "method", "model"), CASES)
async def test_client_streams_object_in_parts(
    client: str, method: str, model: str, clients: ClientRunner
) -> None:
    reports = await clients.run(client)
    report = reports[f"{model} {method} streamed"]
    assert report["value"] == VALUES[model]
    assert report["parts"] > 1


@pytest.mark.long
# Without LlamaIndex: it streams with `tool_choice` "auto", for which a small model calls nothing.
# Without the recursive models: a small model nests them until its context is full.
@pytest.mark.parametrize("client", ["instructor", "pydantic-ai", "openai-agents"])
async def test_client_gets_valid_objects_from_a_small_model(client: str, model_path: Path) -> None:
    async with run_server(MODEL_PATH=str(model_path), CONTEXT_LENGTH="4096") as url:
        reports = await ClientRunner(url, ["Plan"]).run(client)
    assert reports.keys() == {
        f"Plan {method} {mode}" for method in METHODS[client] for mode in ("whole", "streamed")
    }
    for report in reports.values():
        Plan.model_validate(report["value"])
