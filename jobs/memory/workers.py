"""The workers of a store: their leases, and the jobs that they must stop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

# A stop that a worker has not received by then is dropped: the worker is gone, or never polls.
STOP_RETENTION_S = 600.0


class WorkerState:
    """The leases of one worker and its pending stops; owned by `Workers`."""

    __slots__ = ("_has_stops", "_polls", "_stops", "job_ids")

    def __init__(self) -> None:
        # Dicts, because they keep the order. `_stops` maps each job to when its stop is dropped.
        self.job_ids: dict[str, None] = {}
        self._stops: dict[str, float] = {}
        self._polls = 0
        self._has_stops = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether the worker has no leases, no pending stops and no open poll for stops."""
        return not self.job_ids and not self._stops and not self._polls

    def add_stop(self, job_id: str, expires_at: float) -> None:
        """Add a stop; the next poll returns it."""
        self._stops[job_id] = expires_at
        self._has_stops.set()

    def drop_stop(self, job_id: str) -> None:
        """Drop the pending stop of a job, because the job was leased to this worker again."""
        self._stops.pop(job_id, None)

    def drop_expired_stops(self, now: float) -> None:
        """Drop the stops that the worker has not received in time."""
        for job_id in [each for each, expires_at in self._stops.items() if expires_at <= now]:
            del self._stops[job_id]

    async def receive_stops(self, wait_s: float) -> list[str]:
        """Remove and return the pending stops, waiting up to `wait_s` for the first one."""
        if not self._stops and wait_s > 0:
            self._has_stops.clear()
            self._polls += 1
            try:
                async with asyncio.timeout(wait_s):
                    await self._has_stops.wait()
            except TimeoutError:
                pass
            finally:
                self._polls -= 1
        stops, self._stops = list(self._stops), {}
        return stops


class Workers:
    """The state of each worker that has leases, stops or polls; owned by the store."""

    def __init__(self) -> None:
        self._states: dict[str, WorkerState] = {}
        # When a stop is sent a second time, by worker and job; earliest first.
        self._repeated_stops: dict[tuple[str, str], float] = {}
        # The number of leases of all workers.
        self._leases = 0
        self._no_leases = asyncio.Event()
        self._no_leases.set()

    def __len__(self) -> int:
        return len(self._states)

    def add_lease(self, worker_id: str, job_id: str) -> None:
        """Record a lease, and drop stops of the job: they belong to an earlier attempt."""
        state = self._get_or_create(worker_id)
        state.job_ids[job_id] = None
        state.drop_stop(job_id)
        self._repeated_stops.pop((worker_id, job_id), None)
        self._leases += 1
        self._no_leases.clear()

    def remove_lease(self, worker_id: str, job_id: str) -> None:
        """Remove a lease; no-op if the worker does not have it."""
        state = self._states.get(worker_id)
        if state is None or job_id not in state.job_ids:
            return
        del state.job_ids[job_id]
        self._drop_if_idle(worker_id, state)
        self._leases -= 1
        if not self._leases:
            self._no_leases.set()

    async def wait_until_idle(self) -> None:
        """Return when no worker has a lease."""
        await self._no_leases.wait()

    def list_leased_job_ids(self, worker_id: str) -> Sequence[str]:
        """Return the ids of the jobs that are leased to a worker."""
        state = self._states.get(worker_id)
        return list(state.job_ids) if state is not None else ()

    def request_stop(self, worker_id: str, job_id: str, now: float) -> None:
        """Tell a worker to stop a job."""
        self._get_or_create(worker_id).add_stop(job_id, now + STOP_RETENTION_S)

    def repeat_stop_at(self, worker_id: str, job_id: str, due_at: float) -> None:
        """Tell a worker a second time to stop a job, unless the job is leased to it again first.

        `due_at` must not be earlier than in any earlier call.
        """
        self._repeated_stops.pop((worker_id, job_id), None)
        self._repeated_stops[worker_id, job_id] = due_at

    @property
    def next_repeat_at(self) -> float:
        """The time of the next repeated stop, or infinity."""
        return next(iter(self._repeated_stops.values()), math.inf)

    async def receive_stops(self, worker_id: str, wait_s: float) -> list[str]:
        """Return the jobs that a worker must stop; none after `wait_s`."""
        state = self._get_or_create(worker_id)
        try:
            return await state.receive_stops(wait_s)
        finally:
            self._drop_if_idle(worker_id, state)

    def process_due_stops(self, now: float) -> None:
        """Repeat the stops that are due, and drop the expired ones.

        A worker that is killed, or cancelled, never receives its stops.
        """
        while self.next_repeat_at <= now:
            (worker_id, job_id), due_at = next(iter(self._repeated_stops.items()))
            del self._repeated_stops[worker_id, job_id]
            self.request_stop(worker_id, job_id, due_at)
        for worker_id, state in list(self._states.items()):
            state.drop_expired_stops(now)
            self._drop_if_idle(worker_id, state)

    def _get_or_create(self, worker_id: str) -> WorkerState:
        state = self._states.get(worker_id)
        if state is None:
            state = self._states[worker_id] = WorkerState()
        return state

    def _drop_if_idle(self, worker_id: str, state: WorkerState) -> None:
        if state.is_idle:
            self._states.pop(worker_id, None)
