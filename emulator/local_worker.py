"""The in-process worker of the default endpoint: the pipeline, no SDK in between."""

from __future__ import annotations

import asyncio
import logging

from engine import Engine
from engine.errors import EngineError
from handler.job import JobHandler
from jobs import MemoryJobStore

logger = logging.getLogger(__name__)


class LocalWorker:
    """Takes jobs from the store as many at a time as the engine has slots.

    None before the model is loaded, so that waiting for it counts as delay and not as execution;
    all of them when it cannot be loaded, so that each one fails with the reason. Owned by the event
    loop.
    """

    def __init__(self, store: MemoryJobStore, jobs: JobHandler, engine: Engine) -> None:
        self._store = store
        self._jobs = jobs
        self._engine = engine
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin taking jobs."""
        self._tasks = [asyncio.create_task(self._start())]

    async def _start(self) -> None:
        try:
            await self._engine.ready()
        except EngineError as error:
            logger.error("the engine did not start: %s", error)
        self._tasks += [asyncio.create_task(self._work()) for _ in range(self._engine.slots)]

    async def _work(self) -> None:
        while True:
            job = await self._store.receive()
            output = await self._jobs.run({"id": job.id, "input": job.input})
            if isinstance(output, dict) and "error" in output:
                await self._store.finish(job.id, error=output["error"])
            else:
                await self._store.finish(job.id, output=output)

    async def close(self) -> None:
        """Stop taking jobs and stop those that run."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                logger.error("the local worker had failed", exc_info=result)
