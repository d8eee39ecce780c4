"""The state of one SDK worker, as it is known from its calls."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Literal, NamedTuple

from emulator.runpod.job_response import worker_key
from jobs import Job

# The SDK pauses for a second between two job-stop calls that returned no job.
_STOP_POLL_TIMEOUT_S = 1.5
# A worker that has never called job-stop has an older SDK, which never does, or is about to.
_FIRST_STOP_POLL_TIMEOUT_S = 0.25
# A free worker calls for a job again at once. A worker with as many jobs as it runs concurrently
# sleeps for a second first.
_MAX_TAKE_GAP_S = 1.5


class _Stop(NamedTuple):
    """A job that a worker has to stop: since when, until when it must have called, and why."""

    at: float
    due_at: float
    why: str


class RemoteWorker:
    """The open calls of one worker, and what they say about its jobs; owned by the registry."""

    __slots__ = (
        "_broke_at",
        "_calls_job_stop",
        "_has_open_stop_poll",
        "_last_job_call_at",
        "_last_poll_started_at",
        "_last_take_started_at",
        "_resumed",
        "_stop",
        "_unlisted_attempts",
        "endpoint",
        "has_broken_poll",
        "has_duplicate_name",
        "has_taken_jobs",
        "joined_at",
        "key",
        "last_active_at",
        "missing_attempts",
        "name",
        "open_stop_polls",
        "open_take_polls",
        "requests_replacement",
    )

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        self.key = worker_key(endpoint, name)
        # When it was first heard of, by the wall clock.
        self.joined_at = time.time()
        # Its open long-polls: job-take calls, and job-stop calls.
        self.open_take_polls = 0
        self.open_stop_polls = 0
        self.last_active_at = time.monotonic()
        # The time of its last job-take call or post about a job.
        self._last_job_call_at = self.last_active_at
        # Whether a long-poll broke off before it was answered, and no other has started since.
        self.has_broken_poll = False
        # When one last did, by the wall clock.
        self._broke_at = self.joined_at
        # Whether it has asked to be replaced (`stopPod`).
        self.requests_replacement = False
        # Whether two running workers have this name. Then reports about missing jobs are ignored.
        self.has_duplicate_name = False
        # Attempts that the store has leased to it but that it reports not to have, and since when.
        self.missing_attempts: dict[tuple[str, int], float] = {}
        # Attempts that its last ping did not list, and since when no ping has.
        self._unlisted_attempts: dict[tuple[str, int], float] = {}
        # The time at which its last job-take call started.
        self._last_take_started_at = -math.inf
        # The time at which its last long-poll of any kind started.
        self._last_poll_started_at = -math.inf
        # Whether any job was leased to it.
        self.has_taken_jobs = False
        # A job that it has to stop; None if it has made a call since.
        self._stop: _Stop | None = None
        # Whether it calls job-stop at all; None while that is not known.
        self._calls_job_stop: bool | None = None
        # Set while a job-stop call is open.
        self._has_open_stop_poll = asyncio.Event()
        # Set unless the worker is paused.
        self._resumed = asyncio.Event()
        self._resumed.set()

    @property
    def is_paused(self) -> bool:
        """Whether it gets no jobs for now, because a worker with newer code is starting."""
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Dispatch no jobs to this worker until `resume`; its running jobs continue."""
        self._resumed.clear()

    def resume(self) -> None:
        """Give it jobs again."""
        self._resumed.set()

    async def wait_until_resumed(self, limit_s: float) -> None:
        """Wait until it is not paused any more, for at most `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._resumed.wait()
        except TimeoutError:
            return

    @property
    def has_open_poll(self) -> bool:
        """Whether it has an open long-poll; the kernel closes its connections when it dies."""
        return self.open_take_polls + self.open_stop_polls > 0

    @contextmanager
    def poll(self, kind: Literal["take", "stop"]) -> Iterator[None]:
        """Count a long-poll while it is open; an exception means that its connection broke."""
        is_take = kind == "take"
        self._count_poll(kind, 1)
        self.has_broken_poll = False
        self._last_poll_started_at = time.monotonic()
        self._record_call(is_job_call=is_take)
        if is_take:
            self._last_take_started_at = self.last_active_at
        try:
            yield
        except BaseException:
            self.has_broken_poll = True
            self._broke_at = time.time()
            raise
        finally:
            self._count_poll(kind, -1)
            self._record_call(is_job_call=is_take)

    def _count_poll(self, kind: Literal["take", "stop"], change: int) -> None:
        if kind == "take":
            self.open_take_polls += change
            return
        self.open_stop_polls += change
        self._calls_job_stop = True
        if self.open_stop_polls:
            self._has_open_stop_poll.set()
        else:
            self._has_open_stop_poll.clear()

    async def wait_for_stop_poll(self) -> None:
        """Wait until the worker has an open job-stop call; return early if none comes in time.

        Its handler may block its event loop as soon as it has a job, and then it makes no call
        until the job ends. A poll that is open by then is the only sign by which its death would be
        noticed.
        """
        if self._calls_job_stop is False:
            return
        is_first = self._calls_job_stop is None
        limit_s = _FIRST_STOP_POLL_TIMEOUT_S if is_first else _STOP_POLL_TIMEOUT_S
        try:
            async with asyncio.timeout(limit_s):
                await self._has_open_stop_poll.wait()
        except TimeoutError:
            self._calls_job_stop = self._calls_job_stop or False

    def may_have_restarted_since(self, at: float) -> bool:
        """Return whether another process may call itself by this name since a time (wall clock).

        The connections of the earlier one are closed then.
        """
        return self._broke_at > at

    def record_post(self) -> None:
        """Record a post about a job as a sign of life; the post may have ended the worker's job."""
        self._record_call(is_job_call=True)

    def _record_call(self, *, is_job_call: bool) -> None:
        self.last_active_at = time.monotonic()
        if is_job_call:
            self._last_job_call_at = self.last_active_at

    def is_shutting_down(self, now: float) -> bool:
        """Return whether a worker without jobs has stopped calling for jobs.

        A worker that was asked to stop only waits for the answer to its job-stop call.
        """
        return not self.open_take_polls and now - self._last_job_call_at > _MAX_TAKE_GAP_S

    def record_stop(self, now: float, grace_s: float, why: str) -> None:
        """Record that a job of this worker has ended without it, and that it must stop the job.

        A worker whose loop runs makes a call at once: it gets the stop as the answer to its
        job-stop call, and calls again. One whose handler blocks the loop makes none. `why` is a
        predicate of the job.
        """
        self._stop = _Stop(now, now + grace_s, why)

    def forget_stop(self) -> None:
        """Forget that it has to stop a job."""
        self._stop = None

    def record_unstopped_job(self, why: str) -> None:
        """Record that it has reported a job as running that it had to stop some time ago."""
        self._stop = _Stop(-math.inf, -math.inf, why)
        self._last_poll_started_at = -math.inf

    def find_unstopped_job(self, now: float) -> str | None:
        """Return why a job that it still runs had to stop; None if it runs no such job.

        With an older SDK, which does not call job-stop, that is unknown while a call is open.
        """
        if self._stop is None or now < self._stop.due_at:
            return None
        if self._last_poll_started_at > self._stop.at:
            self._stop = None
            return None
        return self._stop.why if self._calls_job_stop is True or not self.has_open_poll else None

    def report_no_jobs(self, leased: Sequence[Job]) -> None:
        """Mark all leased jobs as missing: the worker has reported that it runs no job.

        The SDK counts a job as in progress until it has posted the result or given up posting it.
        """
        now = time.monotonic()
        for job in leased:
            self.missing_attempts.setdefault((job.id, job.attempt), now)

    def report_jobs(self, listed_ids: Set[str], leased: Sequence[Job]) -> None:
        """Mark the leased jobs as missing that two consecutive pings did not list.

        The worker must also have started a job-take call between the two pings. Until then it may
        not have read the response with the job, because a handler that blocks its loop delays that.
        """
        now = time.monotonic()
        unlisted_attempts: dict[tuple[str, int], float] = {}
        for job in leased:
            if job.id not in listed_ids:
                attempt = (job.id, job.attempt)
                since = unlisted_attempts[attempt] = self._unlisted_attempts.get(attempt, now)
                if since < self._last_take_started_at:
                    self.missing_attempts.setdefault(attempt, now)
        self._unlisted_attempts = unlisted_attempts
