"""The log of a real server on a terminal, and as JSON in a pipe."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.job_client import submit_job, wait_for_status
from tests.integration.emulator.processes import build_environment, server_command
from tests.integration.emulator.serving import http_client
from tests.waiting import WAIT_S, wait_until

BROKEN = {"when": "broken", "pieces": ["a ", {"error": "the runtime reported error 7"}]}
SLOW = {"when": "slow", "pieces": ["a ", {"text": "b", "delay_ms": 1500}]}
HANG = {"when": "hang", "pieces": ["a ", {"hang_s": 3600}]}
PLAIN = {"pieces": ["The ", "quick ", "brown ", "fox."]}
ANSI = re.compile(r"\x1b\[\d+m")
ADDRESS = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
TIME = r"\d\d:\d\d:\d\d  "
ID = r"[0-9a-f-]{36}-u1"


class Terminal:
    """A pseudo-terminal for a server's log, and the text on it."""

    def __init__(self) -> None:
        self._controller, self.terminal = pty.openpty()
        os.set_blocking(self._controller, False)
        self.text = ""
        asyncio.get_running_loop().add_reader(self._controller, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._controller, 65_536)
        except OSError:
            # Linux raises this error at the end of a terminal.
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._controller)
        self.text += data.decode().replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        return ANSI.sub("", self.text).splitlines()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._controller)
        os.close(self._controller)


class TerminalServer:
    """`python -m emulator` with its standard error on a terminal."""

    def __init__(self, script: Path, **settings: str) -> None:
        self.variables = build_environment(
            {"MODEL_PATH": str(script), "LOG_FORMAT": "auto", "TERM": "xterm", **settings}
        )

    async def __aenter__(self) -> TerminalServer:
        self.screen = Terminal()
        self.process = await asyncio.create_subprocess_exec(
            *server_command("--port", "0"),
            env=self.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=self.screen.terminal,
        )
        os.close(self.screen.terminal)
        address = await wait_until(lambda: ADDRESS.search(self.screen.text))
        self.url = address[1]
        await wait_until(lambda: "model loaded" in self.screen.text)
        return self

    def client(self) -> httpx2.AsyncClient:
        return http_client(self.url)

    async def wait_for_exit(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.process.wait()

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self.screen.close()


async def send_three_kinds_of_requests(client: httpx2.AsyncClient) -> None:
    """Run a job that succeeds, one that fails, and a request that is answered 400."""
    for prompt, status in (("Hello", "COMPLETED"), ("broken", "FAILED")):
        answer = await client.post("/runsync", json={"input": {"prompt": prompt}})
        assert answer.json()["status"] == status
    refused = await client.post("/v1/completions", json={"prompt": "x", "temperature": 5})
    assert refused.status_code == 400
    # As the console does, once a second.
    for path in ("/", "/health", "/console/jobs", "/console/description"):
        assert (await client.get(path)).status_code == 200


def matching(lines: list[str], pattern: str) -> str:
    (line,) = [line for line in lines if re.fullmatch(pattern, line)]
    return line


@pytest.mark.long
async def test_terminal_log_has_short_aligned_lines(
    script: ScriptFactory,
) -> None:
    path = script(BROKEN, PLAIN, slots=4)
    async with TerminalServer(path, API_KEYS="secret-key") as server:
        async with server.client() as client:
            client.headers["authorization"] = "Bearer secret-key"
            await send_three_kinds_of_requests(client)
        server.process.send_signal(signal.SIGINT)
        assert await server.wait_for_exit() == 0
        await wait_until(lambda: "stopped" in server.screen.text)
        lines = server.screen.lines
    matching(lines, rf"{TIME}worker-rkllm \S+ running on {server.url}")
    for name, value in {
        "console": f"{server.url}/",
        "openai": f"{server.url}/v1",
        "engine": "scripted",
        "slots": "4",
        "context_length": "4096",
    }.items():
        matching(lines, rf" {{10}}{name} +{value}")
    settings = matching(lines, r" {10}settings .*")
    assert "API_KEYS=***" in settings
    assert "secret-key" not in server.screen.text
    matching(lines, rf"{TIME}model loaded in \d+\.\d s")
    good = matching(
        lines,
        rf"{TIME}job sync-{ID} COMPLETED +default/local  waited \d+ ms  ran \d+ ms  4 tokens",
    )
    failed = matching(
        lines,
        rf"{TIME}job sync-{ID} FAILED +default/local  waited \d+ ms  ran \d+ ms  "
        r"the runtime reported error 7",
    )
    started = [line for line in lines if re.fullmatch(rf"{TIME}job sync-{ID} started .*", line)]
    assert len(started) == 2
    assert {line.index("default/local") for line in (good, failed, *started)} == {70}
    matching(
        lines,
        rf"{TIME}POST /v1/completions 400 +[\d.]+ ms  "
        r"temperature must be a number from 0 to 2, got 5",
    )
    matching(lines, rf"{TIME}shutting down: nothing is running")
    matching(lines, rf"{TIME}stopped")
    # No polling, nothing of uvicorn's, no logger's name.
    for word in (
        "/health",
        "/console",
        "vicorn",
        "server process",
        "emulator.",
        "INFO",
        "request_",
    ):
        assert word not in "\n".join(line for line in lines if "console  " not in line), word
    assert "\x1b[31m" in server.screen.text


async def test_no_color_on_a_terminal(script: ScriptFactory) -> None:
    async with TerminalServer(script(BROKEN, PLAIN), NO_COLOR="1") as server:
        async with server.client() as client:
            await send_three_kinds_of_requests(client)
        await wait_until(lambda: " 400 " in server.screen.text)
        assert "\x1b" not in server.screen.text


async def test_control_sequences_of_clients_are_escaped(script: ScriptFactory) -> None:
    hostile = "evil\x1b[2J\x1b]0;title\x07"
    async with TerminalServer(script(PLAIN), NO_COLOR="1") as server:
        async with server.client() as client:
            body = {"prompt": "x", "model": hostile}
            assert (await client.post("/v1/completions", json=body)).status_code == 404
        await wait_until(lambda: " 404 " in server.screen.text)
        assert "evil" in server.screen.text
        assert "\x1b" not in server.screen.text
        assert "\x07" not in server.screen.text


async def test_ctrl_c_logs_the_jobs_it_waits_for_and_their_end(script: ScriptFactory) -> None:
    async with TerminalServer(script(SLOW, PLAIN), DRAIN_S="20", NO_COLOR="1") as server:
        async with server.client() as client:
            job = await submit_job(client, "", input={"prompt": "slow"})
            await wait_for_status(client, job, "IN_PROGRESS", "")
        server.process.send_signal(signal.SIGINT)
        assert await server.wait_for_exit() == 0
        lines = server.screen.lines
    tail = [line[10:] for line in lines[-4:]]
    assert tail[0] == (
        "shutting down: waiting up to 20 s for 1 job; Ctrl-C or SIGTERM again ends at once"
    )
    assert tail[1].startswith(f"job {job} COMPLETED")
    assert tail[2:] == ["everything that was running has finished", "stopped"]


@pytest.mark.long_except("15")
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
async def test_second_signal_ends_the_server_immediately(
    script: ScriptFactory, second: signal.Signals
) -> None:
    async with TerminalServer(script(HANG), DRAIN_S="600", NO_COLOR="1") as server:
        async with server.client() as client:
            job = await submit_job(client, "", input={"prompt": "hang"})
            await wait_for_status(client, job, "IN_PROGRESS", "")
        server.process.send_signal(signal.SIGINT)
        await wait_until(lambda: "waiting up to 600 s for 1 job" in server.screen.text)
        server.process.send_signal(second)
        async with asyncio.timeout(30):
            assert await server.process.wait() == 0
        await wait_until(lambda: "stopped" in server.screen.text)
        lines = [line[10:] for line in server.screen.lines]
    assert (
        "WARNING  second signal: ending 1 job that had not finished; jobs go back to the queue"
        in lines
    )
    assert f"job {job} was given back and waits again" in lines
    assert lines[-1] == "stopped"


async def test_piped_log_is_one_json_object_a_line_with_stable_names(
    script: ScriptFactory, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    variables = build_environment({"MODEL_PATH": str(script(BROKEN, PLAIN)), "LOG_FORMAT": "auto"})
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *server_command("--port", "0"),
            env=variables,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=file,
        )
    try:
        address = await wait_until(lambda: ADDRESS.search(log.read_text()))
        async with http_client(address[1]) as client:
            await send_three_kinds_of_requests(client)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(line.keys() >= {"timestamp", "level", "logger", "event"} for line in lines)
    (start,) = [line["server"] for line in lines if "server" in line]
    assert start.keys() >= {"version", "console", "model", "engine", "slots", "context_length"}
    about = {"job_id", "endpoint", "worker", "state", "queue_ms"}
    jobs = [line for line in lines if line["logger"] == "emulator.runpod.job_log"]
    assert [line["state"] for line in jobs] == ["IN_PROGRESS", "COMPLETED", "IN_PROGRESS", "FAILED"]
    assert all(line.keys() >= about for line in jobs)
    assert (jobs[1]["tokens"], jobs[1]["run_ms"] >= 0) == (4, True)
    assert jobs[3]["error"] == "the runtime reported error 7"
    (refused,) = [line for line in lines if line.get("status") == 400]
    assert refused["error"] == "temperature must be a number from 0 to 2, got 5"
    assert not [line for line in lines if line.get("path", "").startswith(("/health", "/console"))]
