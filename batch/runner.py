"""Runs the lines of a batch that have no answer yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from batch.input.line import Line, parse_line
from batch.input.source import InputError, LineSource
from batch.line_executor import Executor, LineOutcome
from batch.output.journal import BatchJournal
from batch.progress import BatchProgress
from handler.job.attempts import MAX_CRASHES

_MIN_RETRY_DELAY_S = 0.5
_MAX_RETRY_DELAY_S = 30.0


class BatchRunner:
    """Answers `concurrency` lines at a time and appends their answers to the journal.

    A kill loses the lines in progress, so the default concurrency is the number of engine slots:
    the next line is read within microseconds, so no slot stays idle. Lines are read as
    they are needed. Owned by the event loop, which also reads and writes the files, because both
    take a few microseconds per line.
    """

    def __init__(
        self,
        source: LineSource,
        journal: BatchJournal,
        executor: Executor,
        progress: BatchProgress,
        *,
        concurrency: int,
        max_attempts: int,
    ) -> None:
        self._source = source
        self._journal = journal
        self._executor = executor
        self._progress = progress
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._lines = self._read_unanswered_lines(source)
        self._stopping = False
        self._input_error: InputError | None = None
        # The number of lines that are being answered.
        self.in_progress = 0

    def stop(self) -> None:
        """Stop starting lines; the lines in progress are finished."""
        self._stopping = True

    async def run(self) -> None:
        """Answer all lines; after `stop`, return when the lines in progress are finished.

        Raises:
            ExecutorLost: nothing answers lines any more.
            OSError: the journal cannot be written.
            InputError: the input cannot be read, or was changed; lines in progress were answered.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._answer_lines())
        except BaseExceptionGroup as failures:
            # The first failure cancelled the other tasks.
            raise failures.exceptions[0] from None
        if self._input_error is not None:
            raise self._input_error

    async def _answer_lines(self) -> None:
        for line in self._lines:
            self.in_progress += 1
            try:
                outcome = await self._answer(line)
            finally:
                self.in_progress -= 1
            if outcome is None:
                return
            number = line.number - self._source.lines_before
            self._journal.add(number, outcome.line, ok=outcome.ok)
            self._progress.record_line(ok=outcome.ok, tokens=outcome.tokens)
            if self._stopping:
                return

    async def _answer(self, line: Line) -> LineOutcome | None:
        """Return the final outcome of a line, after retries of temporary failures.

        If the engine crashed while the line was running, the line's last attempt is exclusive. So
        of the lines that ran concurrently at a crash, only the line that causes crashes fails.

        Return None if the runner stops while attempts are left: the next run makes them.
        """
        delay_s, crashes = _MIN_RETRY_DELAY_S, 0
        for attempts_left in reversed(range(self._max_attempts)):
            is_last = not attempts_left or crashes == MAX_CRASHES - 1
            outcome = await self._executor.answer(line, exclusive=bool(crashes) and is_last)
            crashes += outcome.crashed
            if outcome.ok or not outcome.retryable or not attempts_left or crashes == MAX_CRASHES:
                break
            if self._stopping:
                return None
            self._progress.retries += 1
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _MAX_RETRY_DELAY_S)
        return outcome

    def _read_unanswered_lines(self, source: LineSource) -> Iterator[Line]:
        try:
            for number, raw in enumerate(source.lines(), 1):
                if self._stopping:
                    return
                if self._journal.is_missing(number):
                    yield parse_line(raw, source.lines_before + number)
        except InputError as error:
            # `run` raises it later: raising here would cancel the lines in progress.
            self._input_error = error
