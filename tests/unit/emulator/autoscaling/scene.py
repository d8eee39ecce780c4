"""An autoscaler with fake processes and a clock that the test advances."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.autoscaling.autoscaler import Autoscaler
from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.worker_log import WorkerLog, WorkerLogs
from emulator.autoscaling.worker_starter import WorkerStarter
from emulator.runpod.job_response import worker_key
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.limits import ScalingPolicy
from jobs import Job, MemoryJobStore, NewJob

ENDPOINT = "here"
URL = "http://127.0.0.1:1"


class Process:
    """A process that runs until the test calls `end` or the autoscaler kills it."""

    def __init__(self, name: str, environment: Mapping[str, str], log: WorkerLog) -> None:
        self.name = name
        self.environment = environment
        self.log = log
        self.returncode: int | None = None
        self.end_reason: str | None = None
        self.prints = ["first", "its last line"]
        self.terminated = 0
        self.killed = 0
        self._exited = asyncio.Event()

    def terminate(self) -> None:
        self.terminated += 1

    def kill(self) -> None:
        self.killed += 1
        self.end(137)

    def kill_orphans(self) -> None:
        pass

    def end(self, code: int = 0) -> None:
        for line in self.prints:
            self.log.append("container", line)
        self.returncode = code
        self._exited.set()

    async def wait(self) -> int:
        await self._exited.wait()
        return self.returncode or 0


class AutoscalerScene:
    """An autoscaler whose clock the test advances."""

    def __init__(self, **scaling: Any) -> None:
        self.time = 1_000.0
        self.processes: list[Process] = []
        self.refuses = False
        self.store = MemoryJobStore(now=lambda: self.time, monotonic=lambda: self.time)
        self.worker_registry = WorkerRegistry(self.store, lease_s=30, grace_s=2)
        self.logs = WorkerLogs()
        self.autoscaler = Autoscaler(
            self.store,
            self.worker_registry,
            ENDPOINT,
            ScalingPolicy(**scaling),
            WorkerStarter(ENDPOINT, logs=self.logs, spawn=self._spawn),
            local="local",
            now=lambda: self.time,
            wall_clock=lambda: self.time,
        )
        self.autoscaler._url = URL

    async def _spawn(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None,
        log: WorkerLog,
    ) -> Process:
        if self.refuses:
            raise FileNotFoundError("no such program")
        self.processes.append(Process(name, environment, log))
        return self.processes[-1]

    async def after(self, seconds: float) -> None:
        """Advance the clock, with a tick of the autoscaler every quarter of a second."""
        end = self.time + seconds
        while self.time < end:
            self.time = min(end, self.time + 0.25)
            await self.autoscaler.tick()

    async def enqueue(self, count: int = 1) -> list[Job]:
        new = NewJob(endpoint=ENDPOINT, input=b"{}")
        return [await self.store.enqueue(new) for _ in range(count)]

    def join(self, *processes: Process) -> None:
        for process in processes or self.processes:
            self.worker_registry.get_or_register(ENDPOINT, process.name)

    async def take(self, name: str, count: int = 1) -> list[Job]:
        return await self.store.receive(
            ENDPOINT, worker_key(ENDPOINT, name), lease_s=1e9, limit=count
        )

    async def finish(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            assert await self.store.ack(job.id, job.attempt, output=b"1")

    @property
    def alive(self) -> list[Process]:
        return [each for each in self.processes if each.returncode is None]

    @property
    def counts(self) -> tuple[int, int, int]:
        counts = self.worker_registry.count_workers(ENDPOINT)
        return counts["initializing"], counts["idle"], counts["running"]


def build_worker(name: str, started_at: float = 0.0, generation: int = 1) -> ManagedWorker:
    """Return a worker that no autoscaler has started."""
    log = WorkerLog()
    return ManagedWorker(name, Process(name, {}, log), log, started_at, generation, 420.0)
