"""Start the workers of one endpoint, each with its own name, log and environment."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial

from emulator.autoscaling.containers.container_process import spawn_container
from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.program.worker_program import WorkerProgram, command_program
from emulator.autoscaling.start_watch import START_TIMEOUT_VARIABLE, parse_start_timeout
from emulator.autoscaling.worker_log import WorkerLog, WorkerLogs
from emulator.autoscaling.worker_process import (
    Process,
    Spawn,
    spawn_supervised,
    worker_environment,
)
from emulator.bucket.service import Bucket
from emulator.runpod.job_response import MANAGED_PREFIX

logger = logging.getLogger(__name__)


class WorkerNotStarted(Exception):
    """The system refused to start a worker; `reason` says why, as a predicate."""

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(f"{worker} {reason}")
        self.worker = worker
        self.reason = reason


class WorkerStarter:
    """Starts processes of a program, which are workers of this server.

    If this is not the only endpoint of the server, the names of its workers contain it. Owned by
    the event loop; only the autoscaler starts workers with it.
    """

    def __init__(
        self,
        endpoint: str,
        program: WorkerProgram | None = None,
        *,
        logs: WorkerLogs | None = None,
        api_key: str | None = None,
        own_key: str | None = None,
        allows_private_targets: bool = True,
        bucket: Bucket | None = None,
        is_only_one: bool = True,
        spawn: Spawn = spawn_supervised,
    ) -> None:
        self._endpoint = endpoint
        self.program = program or command_program("")
        self._logs = logs or WorkerLogs()
        self._api_key = api_key
        self._own_key = own_key
        self._allows_private_targets = allows_private_targets
        self._bucket = bucket
        self._spawn = spawn
        # Part of each name, so that no worker has the name of one before a restart of the server,
        # which may still have leases. The log has the lines of all workers, by their names.
        token = secrets.token_hex(3)
        self._series = token if is_only_one else f"{endpoint}-{token}"
        self._last_number = 0

    async def start(
        self, url: str, now: float, generation: int, find_job: Callable[[str], str | None]
    ) -> ManagedWorker:
        """Start a worker that asks the server at `url` for jobs.

        `find_job` returns the job that the worker with a name runs, for the lines of its log.
        Raises WorkerNotStarted.
        """
        self._last_number += 1
        name = f"{MANAGED_PREFIX}{self._series}-{self._last_number}"
        self._find_python()
        log = self._logs.open(self._endpoint, name, partial(find_job, name))
        bucket: Mapping[str, str] = {}
        image = self.program.image
        url = url if image is None else image.url_for_container(url)
        try:
            variables = self.program.variables()
            if self._bucket is not None:
                bucket = self._bucket.worker_variables(url, variables)
            environment = worker_environment(
                url,
                self._endpoint,
                name,
                self._api_key,
                self._own_key,
                allows_private_targets=self._allows_private_targets,
                variables={**variables, **bucket},
                python=None if self.program.python is None else self.program.python.path,
                is_own_worker=self.program.is_own_worker,
                is_container=image is not None,
            )
            process = await self._start_process(name, environment, log)
        # ValueError: a .env that is not text, or a variable in it that no process can have.
        except (OSError, ValueError) as error:
            reason = f"could not be started: {error}"
            log.append("system", f"{name} {reason}")
            log.close()
            raise WorkerNotStarted(name, reason) from error
        start_timeout_s = parse_start_timeout(environment.get(START_TIMEOUT_VARIABLE))
        worker = ManagedWorker(name, process, log, now, generation, start_timeout_s)
        worker.note("starts")
        if bucket:
            log.append("system", "it uploads to the bucket of this server: no BUCKET_* is set")
        return worker

    async def _start_process(
        self, name: str, environment: Mapping[str, str], log: WorkerLog
    ) -> Process:
        program = self.program
        if program.image is not None:
            return await spawn_container(name, program.image, environment, log)
        return await self._spawn(name, program.command, environment, program.folder, log)

    def _find_python(self) -> None:
        program = self.program.with_current_python()
        if program.python != self.program.python:
            logger.info("the handler runs with %s now", program.python)
        self.program = program
