"""What the clients of OpenAI, Anthropic and Ollama, unmodified, report when an answer fails.

The engine fails after some text, or the server ends while it answers.
tests/integration/emulator/test_late_failures.py checks the same answers on the wire.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, AsyncStream

from engine.hooks import RequestEnded, RequestStarted
from handler.errors import UNAVAILABLE
from tests.acceptance.client_program import run_program
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import build_settings
from tests.integration.emulator.processes import ROOT
from tests.integration.emulator.serving import Server, run_server
from tests.waiting import wait_until

# Importing the clients takes seconds, and more on a busy machine.
pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

MODEL = "tiny"
DEADLINE_S = 120
# A program takes seconds to start, and this polling little.
START_INTERVAL_S = 0.05
# These clients need other package versions than the tests have (requirements/clients.in).
PYTHON = ROOT / "tests" / "clients" / ".venv" / "bin" / "python"

ANSWER = {"pieces": ["Good", " day"]}
FAILURE = {"pieces": ["some", {"error": "it broke", "delay_ms": 50}]}
HANG = {"pieces": ["some", {"hang_s": 3600}]}
# A program sends this prompt when all of its streams have text.
LAST_PROMPT = "all streams have text"
LAST_ANSWER = {"when": LAST_PROMPT, "pieces": ["yes"]}

# Why an answer fails, and a part of the server's sentence.
REASONS = {"failed": "it broke", "ended": "shut"}

Texts = AsyncIterator[str]


def run_scripted(path: Path) -> AbstractAsyncContextManager[Server]:
    """Return a context manager of a server, which does not wait for answers when it ends."""
    values = {"engine": "scripted", "engine_isolation": "thread", "model_path": path}
    settings = {"model_name": MODEL, "job_db": ":memory:", "drain_s": 0}
    return run_server(build_settings(values | settings))


async def end_server(server: Server) -> None:
    """End all answers as SIGTERM does."""
    await server.graceful_shutdown.wait()
    for task in server.tasks:
        task.cancel()


# -- OpenAI's client, in this process -------------------------------------------------------------

BASES = ["/v1", "/v2/default/openai/v1"]


def openai_client(server: Server, base: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.url + base, api_key="any", max_retries=0)


async def read_chat(client: AsyncOpenAI, *, streams: bool) -> Texts:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], stream=streams
    )
    if not isinstance(answer, AsyncStream):
        yield answer.choices[0].message.content or ""
        return
    async for chunk in answer:
        yield chunk.choices[0].delta.content or ""


async def read_completion(client: AsyncOpenAI, *, streams: bool) -> Texts:
    answer = await client.completions.create(model=MODEL, prompt="hello", stream=streams)
    if not isinstance(answer, AsyncStream):
        yield answer.choices[0].text
        return
    async for chunk in answer:
        yield chunk.choices[0].text


async def read_response(client: AsyncOpenAI, *, streams: bool) -> Texts:
    answer = await client.responses.create(model=MODEL, input="hello", stream=streams)
    if not isinstance(answer, AsyncStream):
        yield answer.output_text
        return
    async for event in answer:
        if event.type == "response.output_text.delta":
            yield event.delta


async def read_into(texts: list[str], stream: Texts, ending: Server | None = None) -> None:
    """Append the texts of a stream, and end the server `ending` after the first one."""
    async for text in stream:
        if text:
            texts.append(text)
            if ending is not None:
                await end_server(ending)


READERS: dict[str, Callable[..., Texts]] = {
    "chat.completions": read_chat,
    "completions": read_completion,
    "responses": read_response,
}
# The client raises nothing in a stream of a response, whose last events report the failure.
RAISING = [name for name in READERS if name != "responses"]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", READERS)
async def test_openai_client_raises_when_a_whole_answer_fails(
    script: ScriptFactory, base: str, name: str
) -> None:
    async with run_scripted(script(FAILURE)) as server, openai_client(server, base) as client:
        with pytest.raises(openai.InternalServerError, match="it broke"):
            await anext(READERS[name](client, streams=False))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", RAISING)
async def test_openai_client_raises_after_the_text_when_a_stream_fails(
    script: ScriptFactory, base: str, name: str
) -> None:
    texts: list[str] = []
    async with run_scripted(script(FAILURE)) as server, openai_client(server, base) as client:
        with pytest.raises(openai.APIError, match="it broke"):
            await read_into(texts, READERS[name](client, streams=True))
    assert texts == ["some"]


def check_unavailable(error: openai.APIError) -> None:
    """Check the error of a server that ends: its message is the same for each reason."""
    assert isinstance(error.body, dict)
    assert UNAVAILABLE in error.message
    assert "shut" in error.body["details"]["reason"]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", READERS)
async def test_openai_client_raises_when_the_server_ends_during_a_whole_answer(
    script: ScriptFactory, base: str, name: str
) -> None:
    async def end_during_answer(server: Server) -> None:
        await server.events.wait(RequestStarted)
        await end_server(server)

    async with (
        run_scripted(script(HANG)) as server,
        openai_client(server, base) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(end_during_answer(server))
        with pytest.raises(openai.InternalServerError) as raised:
            await anext(READERS[name](client, streams=False))
    assert raised.value.status_code == 503
    check_unavailable(raised.value)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", RAISING)
async def test_openai_client_raises_when_the_server_ends_during_a_stream(
    script: ScriptFactory, base: str, name: str
) -> None:
    texts: list[str] = []
    async with run_scripted(script(HANG)) as server, openai_client(server, base) as client:
        with pytest.raises(openai.APIError) as raised:
            await read_into(texts, READERS[name](client, streams=True), ending=server)
    check_unavailable(raised.value)
    assert texts == ["some"]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("base", BASES)
async def test_openai_client_reports_a_failed_response_as_its_last_events(
    script: ScriptFactory, base: str, reason: str
) -> None:
    events: list[Any] = []
    answer = FAILURE if reason == "failed" else HANG
    async with run_scripted(script(answer)) as server, openai_client(server, base) as client:
        async for event in await client.responses.create(model=MODEL, input="hello", stream=True):
            events.append(event)
            if reason == "ended" and event.type == "response.output_text.delta":
                await end_server(server)
    error, failed = events[-2:]
    assert (error.type, failed.type) == ("error", "response.failed")
    assert REASONS[reason] in error.message
    assert failed.response.status == "failed"
    assert REASONS[reason] in failed.response.error.message
    assert "response.completed" not in {event.type for event in events}


@pytest.mark.parametrize("base", BASES)
async def test_openai_client_has_no_final_response_when_its_stream_fails(
    script: ScriptFactory, base: str
) -> None:
    async with (
        run_scripted(script(FAILURE)) as server,
        openai_client(server, base) as client,
        client.responses.stream(model=MODEL, input="hello") as stream,
    ):
        # Neither a class of the client nor the sentence of the server, which the events have.
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            await stream.get_final_response()


@pytest.mark.parametrize("streams", [False, True])
async def test_openai_client_gets_the_same_response_from_the_queue(
    script: ScriptFactory, streams: bool
) -> None:
    texts = []
    async with run_scripted(script(ANSWER)) as server:
        for base in BASES:
            async with openai_client(server, base) as client:
                pieces = [piece async for piece in read_response(client, streams=streams)]
                texts.append("".join(pieces))
    assert texts == ["Good day", "Good day"]


# -- Anthropic's and Ollama's clients, as a program -----------------------------------------------

CALLS = ["messages", "messages in the queue", "chat", "generate"]

Observations = dict[tuple[str, str], dict[str, Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def observations(tmp_path_factory: pytest.TempPathFactory) -> Observations:
    """Run the program and return its observations by scenario and call."""
    assert PYTHON.exists(), "`make test` installs requirements/clients.txt"
    folder = tmp_path_factory.mktemp("failures")
    # Each call whole and streamed, and the last prompt.
    count = 2 * len(CALLS) + 1
    scripts = {"failing": [FAILURE], "ending": [LAST_ANSWER, HANG]}
    for name, answers in scripts.items():
        (folder / name).write_text(json.dumps({"answers": answers, "slots": count}))
    async with (
        run_scripted(folder / "failing") as failing,
        run_scripted(folder / "ending") as ending,
        asyncio.TaskGroup() as group,
    ):
        given = {"failing_url": failing.url, "ending_url": ending.url}
        given |= {"model": MODEL, "last_prompt": LAST_PROMPT}
        command = [str(PYTHON), "-m", "tests.clients.failing_answers", json.dumps(given)]
        program = group.create_task(run_program(command, ROOT, {"PYTHONUTF8": "1"}, DEADLINE_S))
        # The answer to the last prompt is the only one that ends by itself.
        seen = ending.events
        await wait_until(lambda: seen.of(RequestEnded), DEADLINE_S, START_INTERVAL_S)
        await seen.wait(RequestStarted, count)
        await end_server(ending)
        output = await program
    lines = [json.loads(line) for line in output.splitlines()]
    return {(line.pop("scenario"), line.pop("call")): line for line in lines}


def check_raised(observation: dict[str, Any], call: str, sentence: str) -> None:
    """Check that the client raised its own exception with the server's sentence."""
    own = "APIStatusError" if call.startswith("messages") else "ResponseError"
    assert own in observation["raised"]
    assert sentence in observation["said"]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("call", CALLS)
def test_client_raises_when_a_whole_answer_fails(
    observations: Observations, call: str, reason: str
) -> None:
    observation = observations[f"{reason}, whole", call]
    check_raised(observation, call, REASONS[reason])
    assert observation["status"] == (500 if reason == "failed" else 503)
    assert observation["text"] == ""


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("call", CALLS)
def test_client_raises_after_the_text_when_a_stream_fails(
    observations: Observations, call: str, reason: str
) -> None:
    observation = observations[f"{reason}, streamed", call]
    check_raised(observation, call, REASONS[reason])
    assert observation["text"] == "some"
