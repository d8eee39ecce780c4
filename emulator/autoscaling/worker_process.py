"""Start a worker under a supervisor process, with the environment that the SDK needs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from emulator.autoscaling import supervisor
from emulator.autoscaling.output_reader import OutputReader
from emulator.autoscaling.program.volume import Volume
from emulator.autoscaling.worker_log import WorkerLog
from emulator.http.api_key import WORKER_KEY_PARAM

# Settings of this server whose names this package's worker would take for its own, misspelled.
_SERVER_SETTINGS = frozenset(
    {
        *("HOST", "PORT", "JOB_DB", "LOCAL_WORKER", "SCALER", "WORKERS", "WORKERS_MIN"),
        *("WORKER_COMMAND", "WORKER_PYTHON", "HANDLER_FILE", "RELOAD", "RELOAD_JOBS"),
        "VOLUME_DIR",
        *("WORKER_IMAGE", "WORKER_BUILD", "WORKER_PLATFORM", "WORKER_GPUS", "WORKER_NETWORK"),
        *("WORKER_RUN_ARGS", "WORKER_BUILD_ARGS", "CONTAINER_ENGINE"),
    }
)
# Not for any worker: the server's secret, and a variable with which the SDK takes no jobs.
_WITHHELD = frozenset({"API_KEYS", "RUNPOD_REALTIME_PORT"})
# The folder of the file that runs at the start of a launched Python, and its variable.
_WORKER_SITE = Path(__file__).parent / "worker_site"
_STATE_FOLDER = "WORKER_RKLLM_STATE_DIR"
# Set by SDK 2 in a process whose checks have run; a worker that inherits it skips its own.
_FITNESS_MARKER = "RUNPOD_EARLY_FITNESS_CHECKS_DONE"


class Process(Protocol):
    """One worker's process, as `spawn` returns it."""

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""

    def terminate(self) -> None:
        """Send SIGTERM: the worker finishes its jobs and exits."""

    def kill(self) -> None:
        """Kill the process and its child processes."""

    def kill_orphans(self) -> None:
        """Kill the remaining processes of a worker that has exited."""

    async def wait(self) -> int:
        """Wait until the process has exited; return the exit code."""

    @property
    def end_reason(self) -> str | None:
        """How the process ended, as a predicate, if its exit code does not say it."""


# Called with the worker's name, command and environment, its working folder, and its log.
Spawn = Callable[
    [str, Sequence[str], Mapping[str, str], "Path | None", WorkerLog], Awaitable[Process]
]


def worker_environment(
    url: str,
    endpoint: str,
    name: str,
    api_key: str | None,
    own_key: str | None = None,
    *,
    allows_private_targets: bool = True,
    variables: Mapping[str, str] | None = None,
    python: str | None = None,
    is_own_worker: bool = False,
    is_container: bool = False,
) -> Mapping[str, str]:
    """Return the environment of a worker of the server at `url`.

    `variables` are those of the handler's .env; the environment of this process comes first, and
    what makes it a worker of this server before both. `is_own_worker` means this package's worker.
    The folder of the `python` comes first in PATH, because a start script calls it by its name.
    A container gets only RunPod's variables of this process: it has its own PATH, HOME and files.

    The SDK sends the `api_key` only if ~/.runpod/config.toml has no key of the cloud, so the
    `own_key` is added to the URLs. `allows_private_targets` depends on the address that the server
    listens on, which the worker does not know.
    """
    base = f"{url}/v2/{endpoint}"
    query = "?gpu=local" if own_key is None else f"?gpu=local&{WORKER_KEY_PARAM.decode()}={own_key}"
    withheld = _WITHHELD | _SERVER_SETTINGS if is_own_worker else _WITHHELD
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key.upper() not in withheld and (not is_container or key.startswith("RUNPOD_"))
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
    defaults = {
        # The SDK's default is DEBUG, which logs prompts and outputs.
        "RUNPOD_LOG_LEVEL": "INFO",
        # SDK 2: the error of a failed job contains the last lines that its handler printed.
        "RUNPOD_LOG_CAPTURE": "all",
        # A handler that calls an endpoint means one of this server, and not of the paid cloud.
        "RUNPOD_ENDPOINT_BASE_URL": f"{url}/v2",
        # Without any key, the SDK's client does not call one. A server without keys takes all.
        "RUNPOD_API_KEY": api_key or "local",
        # Files of this machine, which SDK 1.12 would refuse to download.
        "RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS": "true" if allows_private_targets else "false",
    }
    environment = defaults | dict(variables or {}) | inherited | own
    environment.pop(_FITNESS_MARKER, None)
    if is_container:
        return environment
    if not is_own_worker:
        folders = [str(_WORKER_SITE), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
        environment[_STATE_FOLDER] = str(Path(tempfile.gettempdir(), f"worker-rkllm-{name}"))
    # Unlike `exists`, this raises nothing if a folder on the way may not be read.
    if python is not None and os.access(Path(python).with_name("python"), os.X_OK):
        folders = [str(Path(python).parent), environment.get("PATH", "")]
        environment["PATH"] = os.pathsep.join(filter(None, folders))
    return environment


class SupervisedProcess:
    """A worker under a supervisor process; a task of its own reads its output.

    The task removes the worker's `state_folder` after its end, if the worker has made it.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: OutputReader,
        state_folder: str | None = None,
    ) -> None:
        self._process = process
        self._reader = asyncio.create_task(self._read(output, state_folder))

    async def _read(self, output: OutputReader, state_folder: str | None) -> None:
        await output.read(self._process.stdout)
        await self._process.wait()
        if state_folder is not None:
            await asyncio.to_thread(shutil.rmtree, state_folder, ignore_errors=True)

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.returncode

    @property
    def end_reason(self) -> str | None:
        """None: the exit code says it."""
        return None

    def terminate(self) -> None:
        """Send SIGTERM: the worker finishes its jobs and exits."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the worker and its child processes: the supervisor does so when its stdin ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill_orphans(self) -> None:
        """Kill what a supervisor that was killed itself has left: it has not killed its group.

        The kernel kills only the worker then, and not the programs that a script has started.
        """
        if (self._process.returncode or 0) < 0:
            _kill_session(self._process.pid)

    async def wait(self) -> int:
        """Wait until the process has exited; return the exit code."""
        code = await self._process.wait()
        # Not `gather`, which would cancel the reader when this call is cancelled.
        await asyncio.wait({self._reader})
        return code


def _kill_session(leader: int) -> None:
    """Kill all processes of a session whose leader has ended. They are listed on Linux only."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process can end at any moment.
        with contextlib.suppress(OSError):
            # The name, in parentheses, may contain anything. The session is the fourth after it.
            if int(stat.read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)


def _require_folder(folder: Path) -> None:
    # The error of the start does not name the missing file.
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")


async def spawn_supervised(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None,
    log: WorkerLog,
    *,
    volume: Volume | None = None,
) -> SupervisedProcess:
    """Start a worker in a folder, or in this process's own.

    It has the `volume` as `/runpod-volume`; if that cannot be mounted, its log says so.

    Raises:
        OSError: the process cannot be started, for instance because the folder was removed.
        ValueError: a variable has a name or a value that no process can have.
    """
    if folder is not None:
        _require_folder(folder)
    if volume is not None and volume.problem is not None:
        log.append("system", volume.problem)
    prefix = () if volume is None else volume.command_prefix
    process = await start_supervisor(command, environment, folder, prefix)
    return SupervisedProcess(process, OutputReader(name, log), environment.get(_STATE_FOLDER))


async def start_supervisor(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None = None,
    prefix: Sequence[str] = (),
) -> asyncio.subprocess.Process:
    """Start the supervisor with its arguments; the `prefix` are words before its own command.

    Raises:
        OSError: the process cannot be started.
        ValueError: a variable has a name or a value that no process can have.
    """
    return await asyncio.create_subprocess_exec(
        *prefix,
        sys.executable,
        *("-I", "-S", supervisor.__file__),
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        env=environment,
        cwd=folder,
        # Not in the terminal's group: Ctrl-C is for the server, which stops the workers gracefully.
        start_new_session=True,
    )
