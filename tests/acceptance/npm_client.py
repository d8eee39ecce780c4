"""RunPod's client for Node.js, run as a program (tests/clients/runpod.mjs)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.integration.emulator.processes import ROOT

_LIMIT_S = 40


async def run_npm_client(url: str, scenario: str, *arguments: str) -> list[dict[str, Any]]:
    """Run one scenario of the program and return the JSON objects it printed."""
    clients = ROOT / "tests" / "clients"
    assert (clients / "node_modules").is_dir(), "`make test` installs what tests/clients needs"
    process = await asyncio.create_subprocess_exec(
        "node",
        str(clients / "runpod.mjs"),
        url,
        scenario,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]
