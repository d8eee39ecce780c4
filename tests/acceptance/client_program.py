"""Runs a client as a program of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path


async def run_program(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], limit_s: float
) -> str:
    """Return what a program prints; it inherits only PATH.

    Raises:
        AssertionError: it exits with another code than 0; with all that it has printed.
        TimeoutError: it does not end within `limit_s`. It is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
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
