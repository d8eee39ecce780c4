"""`batch run --server`: lines go to our own server, and through its faults."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import ScriptFactory
from tests.integration.batch.runs import ROOT, TIMEOUT_S, call, chat, environment, read, text, write
from tests.integration.emulator.processes import run_emulator
from tests.integration.emulator.serving import run_server
from tests.integration.emulator.test_client_faults import settings
from tests.waiting import wait_until


async def run_batch(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command beside the test's own event loop."""
    command = [sys.executable, "-m", "batch", "run", *map(str, arguments)]
    own = environment(Path("none.gguf"), PYTHONPATH=str(ROOT), **variables)
    return await asyncio.to_thread(
        subprocess.run,
        command,
        env=own,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


async def test_lines_are_answered_by_a_server_despite_its_faults(
    script: ScriptFactory, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", [chat(f"n{number}") for number in range(40)])
    out = tmp_path / "out.jsonl"
    path = script({"pieces": ["one ", "two"]}, slots=4)
    async with (
        run_server(settings(path, faults_per_request=True, api_keys="secret")) as server,
        httpx2.AsyncClient(
            base_url=server.url, headers={"authorization": "Bearer secret"}
        ) as client,
    ):
        for fault in ("status=429; retry-after=0", "status=503", "reset", "truncated-json"):
            rule = {"fault": fault, "operation": "chat", "times": 2}
            await client.post("/faults", json=rule)
        options = ("-i", source, "-o", out, "--server", f"{server.url}/v1")
        refused = await run_batch(*options)
        assert refused.returncode == 3
        assert "answered with 401: --key-env names the variable with its key" in refused.stderr
        done = await run_batch(*options, "--key-env", "SERVER_KEY", SERVER_KEY="secret")
    assert done.returncode == 0, done.stderr
    assert "40 of 40 lines answered" in done.stderr
    answers = read(out)
    usages = [line["response"]["body"]["usage"] for line in answers]
    prompt, completion = (
        sum(usage[f"{kind}_tokens"] for usage in usages) for kind in ("prompt", "completion")
    )
    assert f"tokens: {prompt:,} prompt, {completion:,} completion\n" in done.stderr
    assert [line["custom_id"] for line in answers] == [f"n{number}" for number in range(40)]
    assert {text(line) for line in answers} == {"one two"}


class ServerWithoutUsage(BaseHTTPRequestHandler):
    """Answers each line, and counts no tokens."""

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._reply({"choices": [{"index": 0, "text": "word"}]})

    def _reply(self, body: dict[str, Any]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


async def test_summary_of_a_shard_names_a_server_that_sends_no_token_counts(
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "in.jsonl", [call(f"n{number}") for number in range(5)])
    options = ("-i", source, "-o", tmp_path / "out.jsonl", "--shard", "1/2")
    with ThreadingHTTPServer(("127.0.0.1", 0), ServerWithoutUsage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = await run_batch(*options, "--server", url)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    ids = [line["custom_id"] for line in read(tmp_path / "out-00001.jsonl")]
    assert ids == ["n2", "n3", "n4"]
    assert "tokens/s" not in done.stderr
    assert "tokens: unknown, the answers have no token counts\n" in done.stderr


async def test_answers_of_a_server_are_validated_and_redacted(
    script: ScriptFactory, tmp_path: Path
) -> None:
    jobs = [
        {"custom_id": stop, "input": {"prompt": "hi", "sampling_params": {"stop": [stop]}}}
        for stop in ("END", "none")
    ]
    source = write(tmp_path / "in.jsonl", jobs)
    options = ("-i", source, "-o", tmp_path / "out.jsonl")
    path = script({"pieces": ["Write to ", "anna@example.com ", "END ", "more"]})
    async with run_server(settings(path)) as server:
        url = ("--server", server.url)
        refused = await run_batch(*options, *url, REDACT_PII="email")
        assert (refused.returncode, refused.stderr.splitlines()[-1]) == (
            2,
            "REDACT_PII needs --validate with --server, which keeps answers as they are",
        )
        done = await run_batch(*options, *url, "--validate", REDACT_PII="email")
    assert done.returncode == 0, done.stderr
    outputs = [line["output"] for line in read(tmp_path / "out.jsonl")]
    assert [each["choices"][0]["text"] for each in outputs] == [
        "Write to [email] ",
        "Write to [email] END more",
    ]
    assert all(each["validation"]["valid"] for each in outputs)


async def test_validation_without_servers_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [chat("a")])
    refused = await run_batch("-i", source, "-o", tmp_path / "out.jsonl", "--validate")
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (
        2,
        "--validate needs --server",
    )


@pytest.mark.long
async def test_run_continues_when_the_server_is_killed_and_started_again(
    script: ScriptFactory, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", [call(f"n{number}") for number in range(200)])
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    path = script({"pieces": [{"text": "word", "delay_ms": 20}]}, slots=4)
    variables = {"ENGINE": "scripted", "MODEL_PATH": str(path), "MODEL_NAME": "tiny"}

    def has_answers(count: int) -> bool:
        return journal.exists() and journal.read_bytes().count(b"\n") > count

    async with run_emulator(variables, "--port", "0") as server:
        await server.wait_until_listening()
        url = f"http://127.0.0.1:{server.port}"
        running = asyncio.create_task(
            run_batch("-i", source, "-o", out, "--server", url, "--concurrency", "4")
        )
        await wait_until(lambda: has_answers(40))
        server.process.kill()
    assert not running.done()
    async with run_emulator(variables, "--port", str(server.port)):
        done = await running
    assert done.returncode == 0, done.stderr
    assert "200 of 200 lines answered" in done.stderr
    assert [line["custom_id"] for line in read(out)] == [f"n{number}" for number in range(200)]


@pytest.mark.long
async def test_each_line_is_answered_once_although_both_sides_are_killed(
    script: ScriptFactory, tmp_path: Path
) -> None:
    lines = [call(f"n{number}", f"word {number}") for number in range(2_000)]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.partial"
    path = script({"pieces": [{"text": "word", "delay_ms": 5}]}, slots=8)
    variables = {"ENGINE": "scripted", "MODEL_PATH": str(path), "MODEL_NAME": "tiny"}
    command = [sys.executable, "-m", "batch", "run", "-i", str(source), "-o", str(out)]
    kills = 0
    port = 0
    code = None
    while code is None:
        async with run_emulator(variables, "--port", str(port)) as server:
            await server.wait_until_listening()
            port = server.port
            options = ["--server", f"http://127.0.0.1:{port}/v1", "--concurrency", "8"]
            own = environment(path, PYTHONPATH=str(ROOT))
            for _ in range(2):
                client = await asyncio.create_subprocess_exec(
                    *command, *options, env=own, stderr=asyncio.subprocess.DEVNULL
                )
                before = journal.read_bytes().count(b"\n") if journal.exists() else 0
                while client.returncode is None:
                    await asyncio.sleep(0.01)
                    grown = journal.exists() and journal.read_bytes().count(b"\n") > before + 200
                    if grown and kills < 6:
                        client.kill()
                        kills += 1
                        break
                code = await client.wait()
                code = None if code < 0 else code
                if code is not None:
                    break
    assert (code, kills) == (0, 6)
    answers = read(out)
    assert [line["custom_id"] for line in answers] == [line["custom_id"] for line in lines]
    assert json.dumps(answers).count('"word"') == len(lines)
