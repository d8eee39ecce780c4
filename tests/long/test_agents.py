"""Codex and Claude Code, as npm installs them, against the server: an answer, and a command."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.acceptance.page_checks import ALL
from tests.integration.emulator.processes import EmulatorProcess, run_emulator

pytestmark = pytest.mark.asyncio(loop_scope="module")

PACKAGES = ("@openai/codex@0.171.0", "@anthropic-ai/claude-code@2.1.332")
PAGE = [block for block in ALL if block.page == "docs/agents.md"]
INSTALL_S, RUN_S = 600, 120
COMMAND = "echo hello-from-a-shell"
SCRIPT = {
    "answers": [
        {"when": "<tool_response>(.|\n)*hello-from-a-shell", "pieces": ["It", " said hello."]},
        {
            "when": "run it as Codex",
            "pieces": [
                '<tool_call>{"name": "exec_command", "arguments": ',
                f'{{"cmd": "{COMMAND}"}}}}</tool_call>',
            ],
        },
        {
            "when": "run it as Claude",
            "pieces": [
                '<tool_call>{"name": "Bash", "arguments": ',
                f'{{"command": "{COMMAND}"}}}}</tool_call>',
            ],
        },
        {"pieces": ["Good", " day"]},
    ],
    "context_length": 200_000,
    "slots": 4,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages; they come with programs for this machine, 660 MB together."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "package.json").write_text('{"private": true}')
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    await run(["npm", "install", *options, *PACKAGES], folder, {}, INSTALL_S)
    return folder / "node_modules"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    path = tmp_path_factory.mktemp("agents") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    settings = {"MODEL_PATH": str(path), "MODEL_NAME": "SmolLM2-135M-Instruct"}
    async with run_emulator(settings, "--port", "0") as running:
        await running.wait_until_listening()
        yield running


async def run(
    command: list[str], folder: Path, environment: Mapping[str, str], limit_s: float
) -> str:
    """Return what a program prints."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode() + errors.decode()
    return output.decode()


def find_claude(modules: Path) -> Path:
    """Return the program for this machine, which npm's own script would link."""
    (program,) = modules.glob("@anthropic-ai/claude-code-*/claude")
    return program


@pytest.mark.parametrize(
    ("prompt", "answer"), [("hello", "Good day"), ("run it as Codex", "It said hello.")]
)
async def test_codex_answers_and_runs_a_command(
    server: EmulatorProcess, modules: Path, tmp_path: Path, prompt: str, answer: str
) -> None:
    (block,) = [each for each in PAGE if "wire_api" in each.text]
    (tmp_path / ".codex").mkdir()
    config = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    (tmp_path / ".codex" / "config.toml").write_text(config)
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    codex = str(modules / ".bin" / "codex")
    assert answer in await run([codex, "exec", *options, prompt], tmp_path, {}, RUN_S)


@pytest.mark.parametrize(
    ("prompt", "answer"), [("hello", "Good day"), ("run it as Claude", "It said hello.")]
)
async def test_claude_code_answers_and_runs_a_command(
    server: EmulatorProcess, modules: Path, tmp_path: Path, prompt: str, answer: str
) -> None:
    claude = find_claude(modules)
    start = "ANTHROPIC_BASE_URL"
    (block,) = [each for each in PAGE if each.text.startswith(start)]
    variables = dict(line.split("=", 1) for line in block.text.split())
    variables[start] = f"http://127.0.0.1:{server.port}"
    command = [str(claude), "-p", prompt, "--allowedTools", "Bash"]
    assert answer in await run(command, tmp_path, variables, RUN_S)
