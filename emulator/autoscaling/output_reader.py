"""Read what a worker prints, into its log and onto the terminal."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable

from emulator.autoscaling.line_splitter import LineSplitter
from emulator.autoscaling.worker_log import WorkerLog
from emulator.http.api_key import WORKER_KEY_PARAM
from emulator.runpod.handler_exception import format_exception, read_exception
from emulator.runpod.sdk_log_line import parse_sdk_line

logger = logging.getLogger(__name__)

_READ_BYTES = 16_384
# More would fill the terminal faster than anyone reads, and take the server's time.
_MAX_LOGGED_PER_S = 500
# The SDK logs the URL of a failed request.
_SECRET = re.compile(rf"(?<={WORKER_KEY_PARAM.decode()}=)[\w-]+")
# The SDK logs this with the job's id, and in the next line the exception without it.
_EXCEPTION_FOLLOWS = "Captured Handler Exception"


class OutputReader:
    """Copies one worker's output to its log, and to the server's own log; one task runs it.

    Lines of the SDK's logger are shown as text, with the job that they name, and an exception of
    the handler as its traceback, with the job of the line before. Other lines have the job that
    runs. If a worker prints more than `max_logged_per_s` lines in a second, its log has all of
    them, and the server's log has the number of omitted ones.
    """

    def __init__(
        self,
        worker: str,
        log: WorkerLog,
        *,
        max_logged_per_s: int = _MAX_LOGGED_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._log = log
        self._max_logged_per_s = max_logged_per_s
        self._clock = clock
        # The job whose exception is the next line.
        self._failed_job: str | None = None
        self._second_started_at = -1.0
        self._logged_lines = 0
        self._omitted = 0

    async def read(self, output: asyncio.StreamReader | None) -> None:
        """Read to the end of the output; None if the process has no pipe."""
        if output is None:
            return
        splitter = LineSplitter()
        while block := await output.read(_READ_BYTES):
            started_at = self._clock()
            self._log.is_caught_up.clear()
            for line in splitter.feed(block):
                self._add(line)
            # As long as the lines took: a worker that floods the pipe gets half of the server's
            # time, and waits in between. Without it, no other task would run while there is more.
            await asyncio.sleep(self._clock() - started_at)
            self._log.is_caught_up.set()
        for line in splitter.finish():
            self._add(line)
        self._report_omitted()

    def _add(self, line: str) -> None:
        text = _SECRET.sub("…", line.rstrip())
        message, level, named_job = parse_sdk_line(text)
        job_id = named_job
        if job_id is None and self._failed_job is not None and read_exception(message) is not None:
            job_id = self._failed_job
        self._failed_job = named_job if message == _EXCEPTION_FOLLOWS else None
        job_id = job_id or self._log.find_job()
        self._log.append("container", text, job_id)
        if text and self._may_show():
            self._show(message, level, job_id)

    def _may_show(self) -> bool:
        now = self._clock()
        if now - self._second_started_at >= 1:
            self._report_omitted()
            self._second_started_at, self._logged_lines = now, 0
        self._logged_lines += 1
        if self._logged_lines > self._max_logged_per_s:
            self._omitted += 1
            return False
        return True

    def _report_omitted(self) -> None:
        if self._omitted:
            logger.warning(
                "%s: %s more lines are in the worker's log only", self._worker, f"{self._omitted:,}"
            )
            self._omitted = 0

    def _show(self, text: str, level: int, job_id: str | None) -> None:
        extra = None if job_id is None else {"job_id": job_id}
        exception = read_exception(text)
        if exception is not None:
            text = format_exception(exception)
        for line in text.splitlines():
            logger.log(level, "%s: %s", self._worker, line, extra=extra)
