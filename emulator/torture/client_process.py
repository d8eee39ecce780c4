"""Run the client's command and read what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from emulator.torture.shaped_app import ShapedRequests
from emulator.torture.verdict import ClientRun

# A client that prints more than this has no answer of ours.
_MAX_OUTPUT_BYTES = 1_000_000
_READ_BYTES = 65_536
# How long the output may go on after the command has ended, and after all have been killed.
_OUTPUT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """The command of a client, which a shell runs, and how long it may take."""

    text: str
    timeout_s: float

    async def run(self, variables: Mapping[str, str], requests: ShapedRequests) -> ClientRun:
        """Run the command with variables added to the environment, and wait for its end.

        The run ends with the command, whatever its children do. All processes of its group are
        killed at its end, when its time is over, and when this task is cancelled.
        """
        started_at = time.monotonic()
        with _BoundedOutput() as output, _BoundedOutput() as errors:
            process = await asyncio.create_subprocess_shell(
                self.text,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.write_end,
                stderr=errors.write_end,
                env={**os.environ, "PYTHONIOENCODING": "utf-8", **variables},
                # A group of its own, so that its children can be killed too.
                start_new_session=True,
            )
            exit_code: int | None = None
            try:
                readers = {each.start_reading() for each in (output, errors)}
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.timeout_s):
                        exit_code = await process.wait()
                        # Children may still pass on what the command has printed.
                        await asyncio.wait(readers, timeout=_OUTPUT_TIMEOUT_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            # A child with a session of its own is not in the group, and may keep the pipe open.
            await asyncio.wait(readers, timeout=_OUTPUT_TIMEOUT_S)
        return ClientRun(
            printed=output.kept.decode("utf-8", "replace"),
            errors=errors.kept.decode("utf-8", "replace"),
            exit_code=exit_code,
            duration_s=time.monotonic() - started_at,
            requests=requests.count,
        )


class _BoundedOutput:
    """A pipe that is read while it is open; the first bytes of it are kept.

    The pipes of asyncio's processes do not serve: its `wait` returns only when all processes that
    have inherited them have ended. All bytes are read, for a full pipe would block the client.
    """

    def __init__(self) -> None:
        self.kept = bytearray()
        read_end, write_end = os.pipe()
        # File objects, because they can be closed twice.
        self._read_end = open(read_end, "rb", buffering=0)
        self.write_end = open(write_end, "wb", buffering=0)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        """Return the pipe."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading, and close both ends of the pipe."""
        self._stop()
        self._read_end.close()
        self.write_end.close()

    def start_reading(self) -> asyncio.Future[None]:
        """Read from now on, and return a future that is done at the end of the pipe."""
        # The end comes only when no process has a write end, and this one needs none.
        self.write_end.close()
        os.set_blocking(self._read_end.fileno(), False)
        asyncio.get_running_loop().add_reader(self._read_end, self._read)
        return self._ended

    def _read(self) -> None:
        part = self._read_end.read(_READ_BYTES)
        if part is None:
            return
        self.kept += part[: max(0, _MAX_OUTPUT_BYTES - len(self.kept))]
        if not part:
            self._stop()

    def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read_end)
        if not self._ended.done():
            self._ended.set_result(None)
