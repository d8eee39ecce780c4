"""Codex and Claude Code, as npm installs them, against the server.

They answer, run a command, edit a file, send a key, read a picture, and shorten a conversation that
is too long.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.acceptance.client_program import run_program
from tests.acceptance.page_checks import ALL
from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.unit.handler.input.images import png

pytestmark = pytest.mark.asyncio(loop_scope="module")

PACKAGES = ("@openai/codex@0.171.0", "@anthropic-ai/claude-code@2.1.332")
PAGE = [block for block in ALL if block.page == "docs/agents.md"]
INSTALL_S, RUN_S = 600, 120
CLAUDE_URL = "ANTHROPIC_BASE_URL"
KEY_LINE, KEY_VARIABLE = 'env_key = "LOCAL_API_KEY"', "LOCAL_API_KEY"
COMMAND = "echo hello-from-a-shell"
PATCH = json.dumps({"input": "*** Begin Patch\n*** Add File: a.txt\n+hi\n*** End Patch"})
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
        {"when": "Success. Updated", "pieces": ["It", " is there."]},
        {
            "when": "patch it as Codex",
            "pieces": [
                '<tool_call>{"name": "apply_patch", "arguments": ',
                f"{PATCH}}}</tool_call>",
            ],
        },
        # The model reads only text, so a sentence is in the place of the picture.
        {"when": "look at it(.|\n)*<tool_response>(.|\n)*and then", "pieces": ["Still", " here."]},
        {
            "when": "look at it(.|\n)*image left out: this model reads only text",
            "pieces": ["I", " cannot see it."],
        },
        {
            "when": "look at it as Codex",
            "pieces": [
                '<tool_call>{"name": "view_image", "arguments": ',
                '{"path": "dot.png"}}</tool_call>',
            ],
        },
        {
            "when": "look at it as Claude",
            "pieces": [
                '<tool_call>{"name": "Read", "arguments": ',
                '{"file_path": "dot.png"}}</tool_call>',
            ],
        },
        {"pieces": ["Good", " day"]},
    ],
    "context_length": 32_768,
    "slots": 4,
}
MODEL, KEY = "SmolLM2-135M-Instruct", "open-sesame"
# A name that Codex knows: it offers `apply_patch` to these models only.
KNOWN_MODEL = "gpt-5.5"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages; they come with programs for this machine, 660 MB together."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "package.json").write_text('{"private": true}')
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    await run(["npm", "install", *options, *PACKAGES], folder, {}, INSTALL_S)
    return folder / "node_modules"


@asynccontextmanager
async def run_server(folder: Path, **settings: str) -> AsyncIterator[EmulatorProcess]:
    path = folder / "script.json"
    path.write_text(json.dumps(SCRIPT))
    async with run_emulator({"MODEL_PATH": str(path), **settings}, "--port", "0") as running:
        await running.wait_until_listening()
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_server(tmp_path_factory.mktemp("agents"), MODEL_NAME=MODEL) as running:
        yield running


async def run(
    command: list[str], folder: Path, environment: Mapping[str, str], limit_s: float
) -> str:
    """Return what a program prints whose home is the folder."""
    return await run_program(command, folder, {"HOME": str(folder), **environment}, limit_s)


def find_claude(modules: Path) -> Path:
    """Return the program for this machine, which npm's own script would link."""
    (program,) = modules.glob("@anthropic-ai/claude-code-*/claude")
    return program


def codex_command(server: EmulatorProcess, modules: Path, home: Path, added: str = "") -> list[str]:
    """Write the configuration of the page, and return the command without its prompt.

    `added` are lines of the provider's table.
    """
    (block,) = [each for each in PAGE if "wire_api" in each.text]
    (home / ".codex").mkdir()
    config = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}") + added
    (home / ".codex" / "config.toml").write_text(config)
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return [str(modules / ".bin" / "codex"), "exec", *options]


@pytest.mark.parametrize(
    ("prompt", "answer"), [("hello", "Good day"), ("run it as Codex", "It said hello.")]
)
async def test_codex_answers_and_runs_a_command(
    server: EmulatorProcess, modules: Path, tmp_path: Path, prompt: str, answer: str
) -> None:
    codex = codex_command(server, modules, tmp_path)
    assert answer in await run([*codex, prompt], tmp_path, {}, RUN_S)


async def test_codex_sends_a_key_and_edits_a_file(modules: Path, tmp_path: Path) -> None:
    async with run_server(tmp_path, MODEL_NAME=KNOWN_MODEL, API_KEYS=KEY) as server:
        codex = codex_command(server, modules, tmp_path, f"{KEY_LINE}\n")
        prompt = ["--model", KNOWN_MODEL, "patch it as Codex"]
        variables = {KEY_VARIABLE: KEY}
        assert "It is there." in await run([*codex, *prompt], tmp_path, variables, RUN_S)
    assert (tmp_path / "a.txt").read_text() == "hi\n"


async def test_codex_shortens_a_conversation_before_it_is_too_long(
    server: EmulatorProcess, modules: Path, tmp_path: Path
) -> None:
    codex = codex_command(server, modules, tmp_path)
    resume = ("resume", "--last")
    # With the third prompt, the conversation would have more tokens than the context.
    for options, words in (((), 13_000), (resume, 13_000), (resume, 4_000)):
        answer = await run([*codex, *options, "word " * words], tmp_path, {}, RUN_S)
        assert "Good day" in answer
    assert not [line for line in server.lines if "POST /v1/responses 400" in line]


def claude_variables(server: EmulatorProcess) -> dict[str, str]:
    """Return the variables of the page."""
    (block,) = [each for each in PAGE if each.text.startswith(CLAUDE_URL)]
    variables = dict(line.split("=", 1) for line in block.text.split())
    return variables | {CLAUDE_URL: f"http://127.0.0.1:{server.port}"}


@pytest.mark.parametrize(
    ("prompt", "answer"), [("hello", "Good day"), ("run it as Claude", "It said hello.")]
)
async def test_claude_code_answers_and_runs_a_command(
    server: EmulatorProcess, modules: Path, tmp_path: Path, prompt: str, answer: str
) -> None:
    command = [str(find_claude(modules)), "-p", prompt, "--allowedTools", "Bash"]
    assert answer in await run(command, tmp_path, claude_variables(server), RUN_S)


async def test_claude_code_shortens_a_conversation_that_is_too_long(
    server: EmulatorProcess, modules: Path, tmp_path: Path
) -> None:
    claude = [str(find_claude(modules)), "-p", "word " * 9_000]
    for options in ((), ("--continue",), ("--continue",)):
        answer = await run([*claude, *options], tmp_path, claude_variables(server), RUN_S)
        assert "Good day" in answer
    refused = [line for line in server.lines if "POST /v1/messages 400" in line]
    assert len(refused) == 1


async def test_codex_looks_at_a_picture_and_goes_on(
    server: EmulatorProcess, modules: Path, tmp_path: Path
) -> None:
    codex = codex_command(server, modules, tmp_path)
    (tmp_path / "dot.png").write_bytes(png(8, 8, (200, 10, 10)))
    answer = await run([*codex, "look at it as Codex"], tmp_path, {}, RUN_S)
    assert "I cannot see it." in answer
    answer = await run([*codex, "resume", "--last", "and then"], tmp_path, {}, RUN_S)
    assert "Still here." in answer
    assert not [line for line in server.lines if "POST /v1/responses 400" in line]


async def test_claude_code_reads_a_picture_and_goes_on(
    server: EmulatorProcess, modules: Path, tmp_path: Path
) -> None:
    (tmp_path / "dot.png").write_bytes(png(8, 8, (200, 10, 10)))
    claude, variables = str(find_claude(modules)), claude_variables(server)
    command = [claude, "-p", "look at it as Claude", "--allowedTools", "Read"]
    refused = sum("POST /v1/messages 400" in line for line in server.lines)
    assert "I cannot see it." in await run(command, tmp_path, variables, RUN_S)
    answer = await run([claude, "-p", "and then", "--continue"], tmp_path, variables, RUN_S)
    assert "Still here." in answer
    assert sum("POST /v1/messages 400" in line for line in server.lines) == refused
