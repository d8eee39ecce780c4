"""One worker that is a container: it is started, watched, and removed when it has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from emulator.autoscaling.containers.container_engine import ContainerEngine, ContainerEngineError
from emulator.autoscaling.containers.worker_image import WorkerImage, client_environment
from emulator.autoscaling.output_reader import OutputReader
from emulator.autoscaling.worker_exit import KILLED
from emulator.autoscaling.worker_log import WorkerLog
from emulator.autoscaling.worker_process import SupervisedProcess, start_supervisor

OUT_OF_MEMORY = "was killed because it used more memory than its container may"
REMOVED_FROM_OUTSIDE = "was killed by another program or with its engine, and its container is gone"
_CONTAINER_PREFIX = "worker-rkllm-"


class ContainerProcess:
    """The engine's program under a supervisor, and the container that it runs in the foreground.

    The program prints what the container prints, passes SIGTERM on, and ends with its exit code.
    When the server ends in any way, the supervisor removes the container. Owned by the event loop;
    a task asks the engine how the container ended and removes it.
    """

    def __init__(
        self, process: SupervisedProcess, engine: ContainerEngine, container: str, log: WorkerLog
    ) -> None:
        self._process = process
        self._engine = engine
        self._container = container
        self._log = log
        self._code: int | None = None
        self._end_reason: str | None = None
        self._is_killed_by_server = False
        self._finish_task = asyncio.create_task(self._finish())

    @property
    def returncode(self) -> int | None:
        """The container's exit code; None until it has ended."""
        return self._code

    @property
    def end_reason(self) -> str | None:
        """How it ended, as a predicate, if its exit code does not say it."""
        return self._end_reason

    def terminate(self) -> None:
        """Send SIGTERM to the image's command: it finishes its jobs and exits."""
        self._process.terminate()

    def kill(self) -> None:
        """Have the supervisor kill and remove the container."""
        self._is_killed_by_server = True
        self._process.kill()

    def kill_orphans(self) -> None:
        """Do nothing: the container is removed with all its processes."""

    async def wait(self) -> int:
        """Wait until the container is removed; return its exit code."""
        await asyncio.wait({self._finish_task})
        return self._code or 0

    async def _finish(self) -> None:
        code = await self._process.wait()
        state = await asyncio.to_thread(self._engine.inspect_container, self._container)
        ended = (state or {}).get("State") or {}
        if ended.get("OOMKilled"):
            self._end_reason = OUT_OF_MEMORY
        elif state is None and code == KILLED and not self._is_killed_by_server:
            self._end_reason = REMOVED_FROM_OUTSIDE
        # Before the removal, which can take longer than a worker may be away.
        self._code = code
        if state is not None:
            try:
                await self._engine.call_async(*self._engine.remove_command(self._container)[1:])
            except ContainerEngineError as error:
                self._log.append("system", f"its container was not removed: {error}")


async def spawn_container(
    name: str, image: WorkerImage, environment: Mapping[str, str], log: WorkerLog
) -> ContainerProcess:
    """Start a container of an image as a worker, with the variables of `environment`.

    Raises:
        OSError: the engine's program cannot be started.
        ValueError: a variable has a name or a value that no process can have.
    """
    container = f"{_CONTAINER_PREFIX}{name}"
    removal = json.dumps(image.engine.remove_command(container))
    process = await start_supervisor(
        ["--on-kill", removal, *image.run_command(container, environment)],
        client_environment(environment),
    )
    supervised = SupervisedProcess(process, OutputReader(name, log))
    return ContainerProcess(supervised, image.engine, container, log)
