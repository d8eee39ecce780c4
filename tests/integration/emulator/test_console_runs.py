"""The console's requests against a real server, in Node.js: each kind, whole and streamed."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import emulator.console
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

FOLDER = Path(emulator.console.__file__).with_name("static")
PROGRAM = """
    import { Run } from "./playground/run.js";
    const { fetch } = globalThis;
    globalThis.fetch = (path, options) => fetch(process.argv[1] + path, options);
    const run = new Run(JSON.parse(process.argv[2]), () => {});
    await run.go();
    const { state, outcome, error } = run;
    const text = run.log.text();
    console.log(JSON.stringify({ state, text, outcome, error: error?.message ?? null }));
"""
PATHS = {
    "completion": "/v1/completions",
    "chat": "/v1/chat/completions",
    "response": "/v1/responses",
    "message": "/v1/messages",
}


def body_of(kind: str, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    match kind:
        case "completion":
            return {"prompt": text}
        case "response":
            return {"input": messages}
        case "message":
            return {"model": "tiny", "messages": messages, "max_tokens": 99}
        case _:
            return {"messages": messages}


@pytest.fixture
async def server(serve: Serve, script: ScriptFactory) -> Server:
    return await serve(
        script(
            {"when": "think", "pieces": ["<think>", "hm", "</think>", "four"]},
            {"when": "fail", "pieces": ["so far", {"error": "out of memory", "delay_ms": 20}]},
            {"pieces": ["Good", " day"]},
        ),
        model_name="tiny",
    )


async def run(server: Server, folder: Path, kind: str, text: str, *, stream: bool) -> Any:
    """Return what the console shows of a request."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')
    # The real ones ask for a key in a dialog of the page.
    keys = "export const key = () => null, keyHeaders = () => ({}), askKey = async () => false;"
    (folder / "server" / "keys.js").write_text(keys)
    body = body_of(kind, text) | {"stream": stream}
    request = {"kind": kind, "path": PATHS[kind], "body": body, "stream": stream}
    process = await asyncio.create_subprocess_exec(
        *("node", "--input-type=module", "--eval", PROGRAM, "--", server.url, json.dumps(request)),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


@pytest.mark.long_except("chat", "message")
@pytest.mark.parametrize("kind", PATHS)
async def test_whole_and_streamed_answer_are_shown_alike(
    server: Server, tmp_path: Path, kind: str
) -> None:
    whole = await run(server, tmp_path, kind, "hi", stream=False)
    streamed = await run(server, tmp_path, kind, "hi", stream=True)
    assert whole["state"] == streamed["state"] == "done"
    assert whole["outcome"]["text"] == streamed["text"] == streamed["outcome"]["raw"] == "Good day"
    assert whole["outcome"]["tokens"] == streamed["outcome"]["tokens"]
    assert whole["outcome"]["tokens"]["output"] == 2
    assert whole["outcome"]["finish"] == streamed["outcome"]["finish"] is not None
    for each in (whole, streamed):
        for name in ("id", "created", "created_at", "completed_at", "timings"):
            each["outcome"]["json"].pop(name, None)
    if kind == "message":
        assert whole["outcome"]["json"] == streamed["outcome"]["json"]


@pytest.mark.long_except("message")
@pytest.mark.parametrize("kind", ["response", "message"])
async def test_reasoning_is_part_of_the_stream(server: Server, tmp_path: Path, kind: str) -> None:
    streamed = await run(server, tmp_path, kind, "think", stream=True)
    assert streamed["text"] == "hmfour"
    whole = await run(server, tmp_path, kind, "think", stream=False)
    assert whole["outcome"]["text"] == "four"


@pytest.mark.long_except("response", "completion")
@pytest.mark.parametrize("kind", PATHS)
async def test_failure_during_the_stream_is_shown(
    server: Server, tmp_path: Path, kind: str
) -> None:
    failed = await run(server, tmp_path, kind, "fail", stream=True)
    assert (failed["state"], failed["text"]) == ("failed", "so far")
    assert "out of memory" in failed["error"]
