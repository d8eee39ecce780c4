"""Kill the engine's process repeatedly while jobs wait, and count how the jobs end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from dataclasses import dataclass, field

import httpx2

from tests.integration.emulator.serving import Server
from tests.waiting import wait_until

_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT")
_LOSSES_TO_FAIL = 3


@dataclass
class Kills:
    """The outcome: jobs by status, the number of kills, and crashes by job."""

    statuses: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    # During how many kills each job was running.
    hits: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    @property
    def failed_too_early(self) -> list[str]:
        """The jobs that failed although they were not running during three kills."""
        return [job_id for job_id in self.failed if self.hits[job_id] < _LOSSES_TO_FAIL]


def engine_pid(server: Server) -> int | None:
    """Return the process id of the server's engine, while there is one."""
    pid: int | None = getattr(server.engine, "_host").pid  # noqa: B009
    return pid


async def kill_while_jobs_wait(
    server: Server, prompt: str, *, jobs: int, kills: int, interval_s: float, within_s: float
) -> Kills:
    """Submit jobs, kill the engine at an interval, and wait until all jobs have ended.

    A kill that is due while the engine waits for its restart follows the restart immediately.
    """
    outcome = Kills()
    async with server.client() as client:
        ids = [await _submit(client, prompt) for _ in range(jobs)]
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(1, kills + 1):
            await asyncio.sleep(max(0.0, began + number * interval_s - loop.time()))
            # During the pause before a restart, the engine has no process.
            pid = await wait_until(lambda: engine_pid(server), within_s)
            running = [stream.request.request_id for stream in server.engine._streams]
            os.kill(pid, signal.SIGKILL)
            outcome.kills += 1
            outcome.hits.update(running)
        async with asyncio.timeout(within_s):
            for job_id in ids:
                status = await _wait_for_end(client, job_id)
                outcome.statuses[status] += 1
                if status == "FAILED":
                    outcome.failed.append(job_id)
    return outcome


async def _submit(client: httpx2.AsyncClient, prompt: str) -> str:
    answer = await client.post("/run", json={"input": {"prompt": prompt}})
    return str(answer.json()["id"])


async def _wait_for_end(client: httpx2.AsyncClient, job_id: str) -> str:
    while True:
        answer = await client.get(f"/status/{job_id}", params={"wait": 10_000})
        if (status := str(answer.json()["status"])) in _ENDED:
            return status
        await asyncio.sleep(0.05)
