"""Keep what each worker prints, and what the server does with it, within a bound."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple

# As many as RunPod's route returns at most.
MAX_LINES = 5_000
_MAX_CHARS = 1_000_000
# Logs of workers that have ended, in addition to those of the workers that run.
_MAX_ENDED = 20

_MAX_CATCH_UP_S = 1.0
# Turns of the event loop in which data in a pipe wakes the task that reads it.
_TURNS_OF_A_READ = 4

Source = Literal["container", "system"]


class LogLine(NamedTuple):
    """One line. `container`: the worker printed it; `system`: the server says it about the worker.

    `number` counts a worker's lines from 1, and `at` is the wall clock in seconds. `job_id` is the
    job that printed it, if that is known.
    """

    number: int
    at: float
    source: Source
    text: str
    job_id: str | None = None


class WorkerLog:
    """The newest lines of one worker, which any number of readers follow; owned by the event loop.

    A reader remembers the number of its last line, so a slow one holds nothing back: it misses the
    lines that were dropped in between, and `first_number` tells it so. `find_job` returns the job
    that runs on the worker, if it is only one.
    """

    def __init__(
        self,
        *,
        max_lines: int = MAX_LINES,
        max_chars: int = _MAX_CHARS,
        clock: Callable[[], float] = time.time,
        on_printed: Callable[[str], None] = lambda text: None,
        find_job: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.find_job = find_job
        self._on_printed = on_printed
        self._max_lines = max_lines
        self._max_chars = max_chars
        self._clock = clock
        self._lines: deque[LogLine] = deque()
        self._chars = 0
        self._last_number = 0
        self._changed = asyncio.Event()
        # Clear while lines that were printed are on their way into the log.
        self.is_caught_up = asyncio.Event()
        self.is_caught_up.set()
        self.is_closed = False

    @property
    def first_number(self) -> int:
        """The number of the oldest line that is kept, or of the next line if there is none."""
        return self._lines[0].number if self._lines else self._last_number + 1

    @property
    def last_number(self) -> int:
        """The number of the newest line; 0 if there was none."""
        return self._last_number

    def append(self, source: Source, text: str, job_id: str | None = None) -> None:
        """Add a line, and drop the oldest ones that are too many."""
        self._last_number += 1
        self._lines.append(LogLine(self._last_number, self._clock(), source, text, job_id))
        self._chars += len(text)
        while len(self._lines) > self._max_lines or (
            self._chars > self._max_chars and len(self._lines) > 1
        ):
            self._chars -= len(self._lines.popleft().text)
        self._changed.set()
        if source == "container":
            self._on_printed(text)

    def close(self) -> None:
        """Note that the worker has ended, so that the log is complete."""
        self.is_closed = True
        self._changed.set()

    def lines_after(self, number: int, limit: int = MAX_LINES) -> list[LogLine]:
        """Return the lines after the one of this number, the oldest first."""
        start = max(0, number + 1 - self.first_number)
        return list(islice(self._lines, start, start + limit))

    def number_before(self, at: float) -> int:
        """Return the number of the last line that is older than a time (wall clock, seconds)."""
        return next(
            (line.number - 1 for line in self._lines if line.at >= at),
            self._last_number,
        )

    def number_before_tail(self, count: int, sources: Sequence[Source]) -> int:
        """Return the number of the line before the newest `count` lines of these sources."""
        newest = (line.number for line in reversed(self._lines) if line.source in sources)
        first = list(islice(newest, count))[-1:]
        return first[0] - 1 if first else self._last_number

    def last_printed(self, limit: int) -> Sequence[str]:
        """Return the last lines that the worker itself has printed, without empty ones."""
        printed = (line.text for line in reversed(self._lines) if line.source == "container")
        return list(islice((text for text in printed if text.strip()), limit))[::-1]

    async def wait_for_line(self, number: int) -> None:
        """Wait until there is a line after the one of this number, or the log is closed."""
        while self._last_number <= number and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()


class WorkerLogs:
    """The logs of all managed workers, and of the last ones that have ended.

    `on_printed` is called with the endpoint, the worker and the text of each line that one prints.
    """

    def __init__(
        self,
        *,
        max_ended: int = _MAX_ENDED,
        on_printed: Callable[[str, str, str], None] = lambda endpoint, worker, text: None,
    ) -> None:
        self._max_ended = max_ended
        self._on_printed = on_printed
        # In the order of the workers' starts.
        self._logs: dict[tuple[str, str], WorkerLog] = {}

    def open(
        self, endpoint: str, worker: str, find_job: Callable[[], str | None] = lambda: None
    ) -> WorkerLog:
        """Return a new log for a worker that starts; drop the oldest of ended workers.

        `find_job` returns the job that runs on the worker, if it is only one.
        """
        ended = [key for key, log in self._logs.items() if log.is_closed]
        for key in ended[: max(0, len(ended) - self._max_ended)]:
            del self._logs[key]
        log = WorkerLog(on_printed=partial(self._on_printed, endpoint, worker), find_job=find_job)
        self._logs[endpoint, worker] = log
        return log

    def names(self, endpoint: str) -> Sequence[str]:
        """Return the workers of an endpoint whose logs are kept, in the order of their starts."""
        return [worker for each, worker in self._logs if each == endpoint]

    async def catch_up(self, endpoint: str, worker: str) -> None:
        """Wait until the log has what a worker has printed so far, for a second at most."""
        log = self.find(endpoint, worker)
        if log is None:
            return
        try:
            async with asyncio.timeout(_MAX_CATCH_UP_S):
                for _ in range(_TURNS_OF_A_READ):
                    await asyncio.sleep(0)
                    await log.is_caught_up.wait()
        except TimeoutError:
            # A worker that prints without end.
            return

    def find(self, endpoint: str, worker: str) -> WorkerLog | None:
        """Return the log of a worker; None if it was not started here, or long ago."""
        return self._logs.get((endpoint, worker))
