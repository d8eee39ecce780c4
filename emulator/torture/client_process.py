"""Run the client's command and read what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from emulator.torture.shaped_app import ShapedRequests
from emulator.torture.verdict import ClientRun

# A client that prints more than this has no answer of ours.
_MAX_OUTPUT_BYTES = 1_000_000
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """The command of a client, which a shell runs, and how long it may take."""

    text: str
    timeout_s: float

    async def run(self, variables: Mapping[str, str], requests: ShapedRequests) -> ClientRun:
        """Run the command with variables added to the environment, and wait for its end.

        All processes that it has started are killed at its end, when its time is over, and when
        this task is cancelled.
        """
        started_at = time.monotonic()
        process = await asyncio.create_subprocess_shell(
            self.text,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONIOENCODING": "utf-8", **variables},
            # A group of its own, so that its children can be killed too.
            start_new_session=True,
        )
        if process.stdout is None or process.stderr is None:
            raise RuntimeError("the process was started without pipes")
        output = asyncio.create_task(_read_bounded(process.stdout))
        errors = asyncio.create_task(_read_bounded(process.stderr))
        exit_code: int | None = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.timeout_s):
                    exit_code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await asyncio.wait({output, errors})
        return ClientRun(
            printed=output.result().decode("utf-8", "replace"),
            errors=errors.result().decode("utf-8", "replace"),
            exit_code=exit_code,
            duration_s=time.monotonic() - started_at,
            requests=requests.count,
        )


async def _read_bounded(stream: asyncio.StreamReader) -> bytes:
    """Read to the end, and keep the first bytes only: a full pipe would block the client."""
    kept = bytearray()
    while part := await stream.read(_READ_BYTES):
        kept += part[: max(0, _MAX_OUTPUT_BYTES - len(kept))]
    return bytes(kept)
