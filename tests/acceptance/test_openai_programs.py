"""The client programs of the documents, run as they are written (R32, R37).

What a reader has to fill in is filled in, and nothing else: the address, the key, the model's name.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.emulator.processes import ROOT, EmulatorProcess, run_emulator
from tests.integration.emulator.serving import join_text, parse_chunks
from tests.waiting import poll_until

# A program starts in a second, but takes many seconds on a busy machine.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

MODEL = "scripted"
PROGRAMS = Path(__file__).with_name("programs")
CLIENTS = ROOT / "tests" / "clients"
DEADLINE_S = 60

# The placeholders of the documents.
ADDRESSES = ("http://localhost:8080/", "http://localhost:8000", "http://localhost/")
KEYS = (
    "YOUR_KEY",
    "YOUR_API_KEY",
    "sk-oracle-abc123def456ghi789jkl012mno345pqr678stu901vwx234yz",
)
MODELS = ("qwen3-0.6b", "llama-3-70b-bitnet", "text-davinci-003", "local-model", "llama3")

# Run as text, like `python -c`; Node.js finds the packages of its working folder.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    ".py": (sys.executable, "-c"),
    ".sh": ("bash", "-euo", "pipefail", "-c"),
    ".mjs": ("node", "--input-type=module", "--eval"),
}

# Difficult text for clients: characters split between tokens, Unicode line ends, and text that
# looks like the protocol.
KNIGHT: Sequence[str | bytes] = (
    "Once, Sir Ümläut",
    ' said "hey"',
    " \\ and rode ",
    *(bytes([byte]) for byte in "🐎".encode()),
    "\n\ndata: [DONE]\n\n",
    "data: {}\r\n",
    "\u2028\u2029\u0085",
    "\t",
    *(f" mile {number}" for number in range(150)),
    ", and slept.",
)
STORY = b"".join(each.encode() if isinstance(each, str) else each for each in KNIGHT).decode()


def first_tokens(tokens: int) -> str:
    """Return the first tokens of the story, as `max_tokens` cuts it."""
    kept = KNIGHT[:tokens]
    return b"".join(each.encode() if isinstance(each, str) else each for each in kept).decode()


def script(delay_ms: float) -> dict[str, Any]:
    pieces = [each if isinstance(each, str) else {"hex": each.hex()} for each in KNIGHT]
    return {"answers": [{"pieces": pieces, "delay_ms": delay_ms}], "slots": 8}


@dataclass(frozen=True, slots=True)
class Servers:
    """A fast server without keys, and one with keys that answers token by token."""

    open: EmulatorProcess
    keyed: EmulatorProcess


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    folder = tmp_path_factory.mktemp("programs")
    # One key per program, because the bare chat routes have a rate limit per key.
    keys = ",".join([*(path.name for path in PROGRAMS.iterdir()), "limited"])
    settings: dict[str, dict[str, str]] = {
        "open": {"RATE_LIMIT_CHAT": "off"},
        "keyed": {"API_KEYS": keys, "RATE_LIMIT_CHAT": "1/3 second"},
    }
    async with AsyncExitStack() as stack:
        processes = {}
        for name, own in settings.items():
            path = folder / f"{name}.json"
            path.write_text(json.dumps(script(0 if name == "open" else 2)))
            scripted = {"ENGINE": "scripted", "MODEL_PATH": str(path), "MODEL_NAME": MODEL}
            context = run_emulator(scripted | own, "--port", "0")
            processes[name] = await stack.enter_async_context(context)
        for server in processes.values():
            await server.wait_until_listening()
            await poll_until(partial(is_ready, server))
        yield Servers(**processes)


async def is_ready(server: EmulatorProcess) -> bool:
    """Return whether the server has loaded its model."""
    async with server.client() as client:
        return bool((await client.get("/health")).json()["status"] == "ok")


def fill_in(name: str, server: EmulatorProcess, *, key: str, model: str) -> str:
    """Return a program with its placeholders filled in."""
    source = (PROGRAMS / name).read_text()
    address = f"http://127.0.0.1:{server.port}"
    for old in ADDRESSES:
        source = source.replace(old, address + "/" * old.endswith("/"))
    for old in KEYS:
        source = source.replace(old, key)
    for old in MODELS:
        source = source.replace(old, model)
    assert address in source
    assert "localhost" not in source
    return source


@asynccontextmanager
async def running_program(
    name: str, server: EmulatorProcess, *, key: str | None = None, model: str = MODEL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a program; kill it at the end if it still runs."""
    assert (CLIENTS / "node_modules").is_dir(), "`make test` installs what tests/clients needs"
    source = fill_in(name, server, key=key or name, model=model)
    process = await asyncio.create_subprocess_exec(
        *COMMANDS[Path(name).suffix],
        source,
        cwd=CLIENTS,
        # No variables of the machine, such as a proxy; and unbuffered output.
        env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def wait_for_output(process: asyncio.subprocess.Process, name: str) -> str:
    """Return a program's output; its stderr must be empty but for curl's progress."""
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert not err or name.endswith(".sh"), err.decode()
    return out.decode()


async def run(name: str, server: EmulatorProcess, model: str = MODEL) -> str:
    """Run a program to its end and return its output."""
    async with running_program(name, server, model=model) as process:
        return await wait_for_output(process, name)


def finish_reasons(chunks: list[dict[str, Any]]) -> list[str]:
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    return [reason for reason in reasons if reason is not None]


def content(out: str) -> str:
    """Return the text of a chat that was not streamed."""
    text: str = json.loads(out)["choices"][0]["message"]["content"]
    return text


# -- S0: text completions, streamed ---------------------------------------------------------------


async def test_curl_streams_a_text_completion(servers: Servers) -> None:  # R19, R20, R21, R22
    chunks = parse_chunks((await run("text_stream.sh", servers.open)).encode())
    assert join_text(chunks) == first_tokens(50)
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert finish_reasons(chunks) == ["length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 50


@pytest.mark.long
async def test_openai_python_streams_a_text_completion(servers: Servers) -> None:
    assert await run("text_stream.py", servers.open) == first_tokens(50)


# -- S1: chats, whole and streamed ----------------------------------------------------------------


async def test_curl_waits_for_a_chat(servers: Servers) -> None:  # R35
    assert content(await run("chat_whole.sh", servers.keyed)) == STORY


@pytest.mark.parametrize("name", ["chat_stream.sh", "chat_story.sh"])
async def test_curl_streams_a_chat(name: str, servers: Servers) -> None:  # R36
    chunks = parse_chunks((await run(name, servers.keyed)).encode())
    assert join_text(chunks) == STORY
    # It was streamed; fast tokens share events.
    assert len(chunks) > 5
    assert finish_reasons(chunks) == ["stop"]
    assert chunks[-1]["choices"][0]["delta"] == {}


async def test_pretty_printer_receives_every_event(servers: Servers) -> None:
    # jq fails on the event lines, because `data: ` is no JSON, and then the program prints the line
    # unchanged. jq starts once per line, so few lines are faster.
    lines = [line for line in (await run("chat_pretty.sh", servers.open)).split("\n") if line]
    assert join_text(parse_chunks("".join(f"{line}\n\n" for line in lines).encode())) == STORY


@pytest.mark.long_except(
    "chat_openai.py-keyed", "chat_openai.mjs-open", "chat_requests.py-open", "chat_fetch.mjs-keyed"
)
@pytest.mark.parametrize("pace", ["keyed", "open"])
@pytest.mark.parametrize(
    "name", ["chat_requests.py", "chat_openai.py", "chat_fetch.mjs", "chat_openai.mjs"]
)
async def test_program_prints_the_full_answer(name: str, pace: str, servers: Servers) -> None:
    # R29, R32, R33
    expected = STORY + "\n"
    if "openai" not in name:
        # These two programs also print the joined text.
        expected += f"\n\nFull response: {STORY}\n"
    assert await run(name, getattr(servers, pace)) == expected


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_client_that_splits_at_unicode_line_ends(path: str, servers: Servers) -> None:  # R29
    body = {"stream": True, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    async with (
        servers.open.client() as client,
        client.stream("POST", path, json=body) as response,
    ):
        lines = [line async for line in response.aiter_lines() if line]
    assert join_text(parse_chunks("".join(f"{line}\n\n" for line in lines).encode())) == STORY


async def test_program_with_error_handling_has_no_errors(servers: Servers) -> None:
    assert await run("chat_requests_errors.py", servers.keyed) == STORY + "\n"


async def test_program_with_error_handling_waits_when_it_is_rate_limited(servers: Servers) -> None:
    # R41
    name, key = "chat_requests_errors.py", "limited"
    async with servers.keyed.client() as client:

        async def send_requests() -> None:
            while True:
                await client.post(
                    "/chat/completions",
                    json={"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
                    headers={"authorization": f"Bearer {key}"},
                )
                await asyncio.sleep(0.02)

        load = asyncio.create_task(send_requests())
        async with running_program(name, servers.keyed, key=key) as process:
            assert process.stdout is not None
            try:
                async with asyncio.timeout(DEADLINE_S):
                    line = (await process.stdout.readline()).decode()
            finally:
                load.cancel()
                await asyncio.gather(load, return_exceptions=True)
            waiting = re.fullmatch(r"Rate limit exceeded\. Waiting (\d) seconds\.\.\.\n", line)
            assert waiting is not None, line
            assert 1 <= int(waiting[1]) <= 4
            # The other requests may have used up the limit once more.
            rest = await wait_for_output(process, name)
    assert re.sub(waiting.re, "", rest) == STORY + "\n"


async def test_program_with_a_wrong_key_gets_an_error(servers: Servers) -> None:  # R40
    async with running_program("chat_requests.py", servers.keyed, key="wrong") as process:
        async with asyncio.timeout(DEADLINE_S):
            _, err = await process.communicate()
        assert process.returncode == 1
        assert b"Exception: Error: an API key is needed" in err
    async with running_program("chat_stream.sh", servers.keyed, key="wrong") as process:
        error = json.loads(await wait_for_output(process, "chat_stream.sh"))["error"]
        assert error["code"] == "unauthorized"


async def test_troubleshooting(servers: Servers) -> None:  # R42
    out = await run("troubleshooting.sh", servers.keyed)
    health, at = json.JSONDecoder().raw_decode(out)
    status = json.loads(out[at:])
    assert health["status"] == "ok"
    assert status["status"] == "operational"
    assert status["models"][0]["id"] == MODEL
    assert status["performance"].keys() == {
        "avg_latency_ms",
        "requests_per_minute",
        "throughput_tokens_per_second",
    }


# -- S3: the gateway ------------------------------------------------------------------------------


async def test_gateway_bodies(servers: Servers) -> None:  # R1, R5, R8, R19
    single, batch, stream = (await run("gateway.sh", servers.keyed)).split("\n", 2)
    (choice,) = json.loads(single)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (first_tokens(100), "length")
    assert choice["logprobs"] is None
    answer = json.loads(batch)
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2]
    assert {each["text"] for each in answer["choices"]} == {first_tokens(50)}
    assert answer["usage"]["completion_tokens"] == 150
    assert join_text(parse_chunks(stream.encode())) == STORY


# -- S4: the model server -------------------------------------------------------------------------


async def test_model_server_answers_curl(servers: Servers) -> None:  # R1, R2, R3
    answer = json.loads(await run("model_server.sh", servers.open))
    assert answer["choices"][0]["text"] == STORY
    assert answer["object"] == "text_completion"
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(KNIGHT)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.long
async def test_model_server_takes_what_the_client_does_not_know(servers: Servers) -> None:  # R9
    assert await run("model_server.py", servers.open) == first_tokens(100) + "\n"


# -- on the embedded model ------------------------------------------------------------------------


@pytest.mark.long
async def test_programs_on_the_embedded_model(model_path: Path) -> None:
    settings = {"ENGINE": "llamacpp", "MODEL_PATH": str(model_path), "MODEL_NAME": "small"}
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        names = ["text_stream.sh", "text_stream.py", "chat_requests_errors.py"]
        events, text, chat = await asyncio.gather(*[run(name, server, "small") for name in names])
    chunks = parse_chunks(events.encode())
    assert join_text(chunks)
    assert chunks[-1]["usage"]["completion_tokens"] <= 50
    for output in (text, chat):
        assert output.strip()
        assert "\ufffd" not in output  # R27
