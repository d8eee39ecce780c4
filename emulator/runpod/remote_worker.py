"""One SDK worker, as far as its calls tell of it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Literal

from emulator.runpod.job_response import worker_key
from jobs import Job

# The SDK pauses for a second between two calls of job-stop that told it nothing.
_LISTENS_AGAIN_S = 1.5
# A worker that has never called job-stop is an old one that does not, or is about to.
_LISTENS_FIRST_S = 0.25
# A free worker asks for a job again at once, or after the second it sleeps when it has as many
# jobs as it takes.
_ASKS_AGAIN_S = 1.5


class Worker:
    """One worker's signs of life; owned by the fleet."""

    __slots__ = (
        "_absent",
        "_asked_at",
        "_hears",
        "_listening",
        "_took_at",
        "dropped",
        "endpoint",
        "key",
        "missing",
        "name",
        "refresh",
        "seen_at",
        "stops",
        "takes",
        "twins",
    )

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        self.key = worker_key(endpoint, name)
        # Its open long-polls: for jobs, and for what to stop.
        self.takes = 0
        self.stops = 0
        self.seen_at = self._asked_at = time.monotonic()
        # One of its long-polls has broken off, unanswered, and no other has been begun since.
        self.dropped = False
        # It has asked to be replaced (`stopPod`).
        self.refresh = False
        # Two of the name are at work at once; what one of them says is not true of the other.
        self.twins = False
        # Attempts that it held by our book and not by its own word, and since when.
        self.missing: dict[tuple[str, int], float] = {}
        # Those that its last ping did not name, and since when none has.
        self._absent: dict[tuple[str, int], float] = {}
        # When it began its last call for jobs.
        self._took_at = -math.inf
        # Whether it calls job-stop at all; None while that is not known.
        self._hears: bool | None = None
        # Set while such a call is open.
        self._listening = asyncio.Event()

    @property
    def polling(self) -> bool:
        """Whether a long-poll of it is open, which the kernel closes when it dies."""
        return self.takes + self.stops > 0

    @contextmanager
    def poll(self, kind: Literal["takes", "stops"]) -> Iterator[None]:
        """Count a long-poll for as long as it is open; leaving by an exception means it broke."""
        asked = kind == "takes"
        self._count(kind, 1)
        self.dropped = False
        self._seen(asked=asked)
        if asked:
            self._took_at = self.seen_at
        try:
            yield
        except BaseException:
            self.dropped = True
            raise
        finally:
            self._count(kind, -1)
            self._seen(asked=asked)

    def _count(self, kind: Literal["takes", "stops"], change: int) -> None:
        if kind == "takes":
            self.takes += change
            return
        self.stops += change
        self._hears = True
        if self.stops:
            self._listening.set()
        else:
            self._listening.clear()

    async def listens(self) -> None:
        """Wait until it can be told to stop, unless it does not come to be.

        It may block its event loop as soon as it has a job, and then makes no call until the job is
        over. The poll that is open by then is the one sign by which its death would be noticed.
        """
        if self._hears is False:
            return
        limit_s = _LISTENS_FIRST_S if self._hears is None else _LISTENS_AGAIN_S
        try:
            async with asyncio.timeout(limit_s):
                await self._listening.wait()
        except TimeoutError:
            self._hears = self._hears or False

    def posted(self) -> None:
        """Take a post about a job as a sign of life; the worker may have become free by it."""
        self._seen(asked=True)

    def _seen(self, *, asked: bool) -> None:
        self.seen_at = time.monotonic()
        if asked:
            self._asked_at = self.seen_at

    def leaving(self, now: float) -> bool:
        """Whether it asks for no jobs any more, though it has none: it was told to end.

        It then waits for the answer to its call of job-stop, and for nothing else.
        """
        return not self.takes and now - self._asked_at > _ASKS_AGAIN_S

    def has_none(self, held: Sequence[Job]) -> None:
        """Take its word that it has no job, where by our book it has.

        The SDK counts a job as in progress until its result has been posted or given up.
        """
        now = time.monotonic()
        for job in held:
            self.missing.setdefault((job.id, job.attempt), now)

    def names(self, named: Set[str], held: Sequence[Job]) -> None:
        """Take its pings' word for which jobs it has, where by our book it has more.

        What two pings in a row do not name it has lost, but only if it has begun a call for jobs
        in between: until then it may not have read the answer that the job was in, which a handler
        that blocks its loop puts off.
        """
        now = time.monotonic()
        absent: dict[tuple[str, int], float] = {}
        for job in held:
            if job.id not in named:
                attempt = (job.id, job.attempt)
                since = absent[attempt] = self._absent.get(attempt, now)
                if since < self._took_at:
                    self.missing.setdefault(attempt, now)
        self._absent = absent
