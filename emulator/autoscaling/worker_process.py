"""Start a worker under a supervisor process, with the environment that the SDK needs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from emulator.autoscaling import supervisor
from emulator.http.request_target import WORKER_KEY_PARAM
from handler.setting_error import NO_SDK

logger = logging.getLogger(__name__)

_MAX_LINE_BYTES = 2**16
# The SDK logs the URL of a failed request.
_SECRET = re.compile(rf"(?<={WORKER_KEY_PARAM.decode()}=)[\w-]+")
# The SDK's last line after a failed fitness check; the reason is in the line before it.
_SDK_EXIT_LINE = "Worker is unhealthy, exiting."
# Prefixes of variables that configure this server, or a worker of another server.
_NOT_INHERITED = (
    *("API_KEYS", "HOST", "PORT", "JOB_DB", "LOCAL_WORKER", "SCALER", "WORKERS", "WORKER_"),
    "RUNPOD_",
)
_INHERITED = ("RUNPOD_LOG_LEVEL", "RUNPOD_DEBUG_LEVEL", "RUNPOD_PING_INTERVAL")

# As a file and with -P: in the working folder, `-m handler` would find a handler.py of the user's.
_HANDLER_FILE = Path(__file__).resolve().parents[2] / "handler" / "__main__.py"
_OWN_WORKER = (sys.executable, "-P", str(_HANDLER_FILE))


class Process(Protocol):
    """One worker's process, as `spawn` returns it."""

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""

    @property
    def last_line(self) -> str:
        """The last line of its output, without the SDK's line that it exits."""

    def terminate(self) -> None:
        """Send SIGTERM: the worker finishes its jobs and exits."""

    def kill(self) -> None:
        """Kill the process and its child processes."""

    async def wait(self) -> int:
        """Wait until the process has exited; return the exit code."""


Spawn = Callable[[str, Sequence[str], Mapping[str, str]], Awaitable[Process]]


def worker_environment(
    url: str,
    endpoint: str,
    name: str,
    api_key: str | None,
    own_key: str | None = None,
    *,
    allows_private_targets: bool = True,
) -> Mapping[str, str]:
    """Return the environment of a worker of the server at `url`.

    The SDK sends the `api_key` only if ~/.runpod/config.toml has no key of the cloud, so the
    `own_key` is added to the URLs. `allows_private_targets` depends on the address that the server
    listens on, which the worker does not know.
    """
    base = f"{url}/v2/{endpoint}"
    query = "?gpu=local" if own_key is None else f"?gpu=local&{WORKER_KEY_PARAM.decode()}={own_key}"
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key in _INHERITED or not key.upper().startswith(_NOT_INHERITED)
    }
    own = {
        "RUNPOD_WEBHOOK_GET_JOB": f"{base}/job-take/$ID{query}",
        "RUNPOD_WEBHOOK_POST_OUTPUT": f"{base}/job-done/$RUNPOD_POD_ID/$ID{query}",
        "RUNPOD_WEBHOOK_POST_STREAM": f"{base}/job-stream/$RUNPOD_POD_ID/$ID{query}",
        "RUNPOD_WEBHOOK_PING": f"{base}/ping/$RUNPOD_POD_ID{query}",
        "RUNPOD_POD_ID": name,
        "RUNPOD_ENDPOINT_ID": endpoint,
        # The checks need a network and a GPU.
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "RUNPOD_SKIP_GPU_CHECK": "true",
        "PRIVATE_TARGETS": "on" if allows_private_targets else "off",
        "PYTHONUNBUFFERED": "1",
    }
    if api_key is not None:
        own["RUNPOD_AI_API_KEY"] = api_key
    # The SDK's default is DEBUG, which logs prompts and outputs.
    return {"RUNPOD_LOG_LEVEL": "INFO"} | inherited | own


def parse_worker_command(command_line: str) -> list[str]:
    """Split a command line into arguments; an empty one starts this package's worker.

    `python` is replaced by the interpreter of this process, because there may be no other one, or
    one without the SDK. Raises ValueError if quotes do not match.
    """
    command = shlex.split(command_line)
    if not command:
        return list(_OWN_WORKER)
    return [sys.executable, *command[1:]] if command[0] in ("python", "python3") else command


def missing_sdk(command: str) -> str | None:
    """Return why this package's worker cannot be started; None if it can.

    The user's own command may use another interpreter, so it is not checked.
    """
    if shlex.split(command) or find_spec("runpod") is not None:
        return None
    return f"WORKERS: {NO_SDK}"


class SupervisedProcess:
    """A worker under a supervisor process; its output goes to the log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.last_line = ""
        self._reader = asyncio.create_task(self._log(name, process.stdout))

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.returncode

    def terminate(self) -> None:
        """Send SIGTERM: the worker finishes its jobs and exits."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the worker and its child processes: the supervisor does so when its stdin ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def wait(self) -> int:
        """Wait until the process has exited; return the exit code."""
        code = await self._process.wait()
        await asyncio.gather(self._reader, return_exceptions=True)
        return code

    async def _log(self, name: str, output: asyncio.StreamReader | None) -> None:
        while output is not None:
            try:
                line = await output.readline()
            except ValueError:
                # Longer than _MAX_LINE_BYTES; the reader has dropped it.
                continue
            if not line:
                return
            if text := _SECRET.sub("…", line.decode("utf-8", "replace").rstrip()):
                logger.info("%s: %s", name, text)
                if _SDK_EXIT_LINE not in text:
                    self.last_line = text


async def spawn_supervised(
    name: str, command: Sequence[str], environment: Mapping[str, str]
) -> SupervisedProcess:
    """Start a worker. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", supervisor.__file__),
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        env=environment,
        limit=_MAX_LINE_BYTES,
        # Not in the terminal's group: Ctrl-C is for the server, which stops the workers gracefully.
        start_new_session=True,
    )
    return SupervisedProcess(name, process)
